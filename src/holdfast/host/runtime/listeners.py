"""Whose the listeners of this machine are, by what the kernel says of its sockets.

Called by `keeping` and `probing`. All processes of a node share its ports, and nothing keeps one
tenant from listening where another one's work was about to. What the kernel does know is the user
that each socket is of, and each tenant has its own: so work whose port is someone else's is
never asked how it is, and is ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_NET = Path("/proc/net")
# The files of the kernel, and the state in which a socket of that kind is reached by others.
_FILES = {"TCP": (("tcp", "tcp6"), "0A"), "UDP": (("udp", "udp6"), "07")}
_LOCAL, _STATE, _USER = 1, 3, 7

Owners = Mapping[str, frozenset[int]]


def owners(net: Path = _NET) -> Owners:
    """The users of all listeners, by a port such as TCP/20001."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for protocol, (names, state) in _FILES.items():
        for name in names:
            try:
                lines = (net / name).read_text(encoding="ascii", errors="replace").splitlines()
            except OSError:
                # A kernel without IPv6 has no such file.
                continue
            for words in (line.split() for line in lines[1:]):
                if len(words) > _USER and words[_STATE] == state:
                    number = int(words[_LOCAL].rpartition(":")[2], 16)
                    found[f"{protocol}/{number}"].add(int(words[_USER]))
    return {port: frozenset(users) for port, users in found.items()}


def foreign(ports: Iterable[str], user: int, known: Owners) -> str:
    """The first of these ports that somebody else listens on; empty if there is none."""
    return next((port for port in ports if known.get(port, frozenset()) - {user}), "")
