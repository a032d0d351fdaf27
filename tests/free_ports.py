"""Ports for the servers of tests and benchmarks.

A server gets its port by an option and listens some time later. A number that the kernel handed out
would lie in the range from which it takes the local ports of outgoing connections: in a run of many
tests, one of those has taken the number before the server listens. So these numbers lie below that
range and below the ports that agents pick for work, and no two processes get the same one before
all others have had their turn.
"""

from __future__ import annotations

import fcntl
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 10_000, 19_999
# One file for all test runs of this machine: two of them at a time do not meet either.
_LAST_GIVEN = Path(tempfile.gettempdir()) / "holdfast-tests-last-port"


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, each given to no other caller for a long time."""
    with _LAST_GIVEN.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or LAST)
        found: list[int] = []
        for _ in range(FIRST, LAST + 1):
            last = last + 1 if last < LAST else FIRST
            if _is_free(last):
                found.append(last)
            if len(found) == count:
                break
        file.truncate(0)
        file.write(str(last))
    assert len(found) == count, f"{count} of the ports {FIRST} to {LAST} are not free"
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections of an earlier listener that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
