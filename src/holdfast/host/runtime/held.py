"""One running attempt as this agent holds it: the connection to its shim, its ports, its name.

`supervisor` makes one when work is launched or adopted, and drops it when the end of that work is
proven.
"""

from __future__ import annotations

import asyncio
import math
import socket
from typing import cast

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.attempts import AttemptFolders, Choices
from holdfast.host.runtime.ports import Ports
from holdfast.host.runtime.shim_records import ProcessIdentity, ShimState
from holdfast.model.kinds.replica import Process

# The open connection to one shim.
#
# There is one for each running attempt, so the agent needs neither signals nor polling to learn of
# its end: the shim says so, or the connection breaks.

ANSWER_BYTES_MAX = 4_096
# A shim that reads nothing is stopped or stuck. More requests would not reach it sooner.
UNSENT_BYTES_MAX = 4_096


class ShimConnection(asyncio.Protocol):
    """The messages of one shim. The futures never fail: a connection that breaks has ended."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # True when the work has begun; False when the connection broke before.
        self.begun: asyncio.Future[bool] = loop.create_future()
        # The errno and the step for which the shim gave up before it began anything.
        self.failure: tuple[int, str] | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        # The work's process, from the shim's answer to `status`.
        self.work: asyncio.Future[ProcessIdentity | None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._text = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._hear(line.decode("ascii", "replace").split(" "))
        if len(self._text) > ANSWER_BYTES_MAX:
            self.close()

    def _hear(self, words: list[str]) -> None:
        match words:
            case ["started"]:
                self._begin(True)
            case ["failed", error, step] if error.isdigit():
                self.failure = (int(error), step)
            # A shim of another version may send more fields.
            case ["status", stage, who, *_]:
                pid, _, start = who.partition("/")
                is_whole = pid.isdigit() and start.isdigit()
                if not self.work.done():
                    self.work.set_result(
                        ProcessIdentity(int(pid), int(start)) if is_whole else None
                    )
                if stage == "running":
                    self._begin(True)
            case _:
                # Answers to `extend` and `stop`, which are repeated or enforced in any case, and
                # `exited`, after which the connection ends.
                return

    def _begin(self, has_begun: bool) -> None:
        if not self.begun.done():
            self.begun.set_result(has_begun)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._begin(False)
        if not self.work.done():
            self.work.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    def say(self, text: str) -> bool:
        """Send a request. False when the connection is broken or the shim reads nothing."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return False
        transport.write(text.encode("ascii") + b"\n")
        return True

    def close(self) -> None:
        """Close the connection. The shim goes on without this agent."""
        if self._transport is not None:
            self._transport.abort()


async def open_line(near: socket.socket) -> ShimConnection:
    """A shim connection over a connected socket."""
    loop = asyncio.get_running_loop()
    _, line = await loop.create_unix_connection(ShimConnection, sock=near)
    return line


def connect(attempts: AttemptFolders, attempt: Attempt) -> socket.socket:
    """A socket to the shim of an attempt. OSError when no process listens there."""
    near = socket.socket(socket.AF_UNIX)
    try:
        near.setblocking(False)
        with attempts.of(attempt) as fd:
            # The full path would often be longer than the 107 bytes that an address may have.
            near.connect(f"/proc/self/fd/{fd}/control")
    except BaseException:
        near.close()
        raise
    return near


# The shim kills at the end of the grace; one that has not done so this much later never will.
KILL_BOUND_MS = 2_000


class HeldAttempt:
    """What this agent process knows of a running attempt."""

    def __init__(self, attempt: Attempt, boot: str) -> None:
        self.attempt = attempt
        self.process = Process()
        self.state: ShimState | None = None
        self.ports = Ports({}, {})
        self.choices = Choices()
        # How the kernel's choice of what to kill for memory was set.
        self.oom = ""
        # Names of the ports at which it was seen to listen.
        self.opened: set[str] = set()
        # When the agent got to know that it runs, on the event loop's clock.
        self.known_s = 0.0
        # Whether the agent's machine knows that it runs: by a report, or because it asked.
        self.is_known = False
        # Why this agent itself ended it; empty if it did not.
        self.stopped_for = ""
        # Set when its end is proven.
        self.is_over = asyncio.Event()
        self._boot = boot
        self._line: ShimConnection | None = None
        self._deadline_ms: int | None = None
        self._stop_by_ms: int | None = None

    @property
    def line(self) -> ShimConnection | None:
        return self._line

    @property
    def unopened_ports(self) -> tuple[str, ...]:
        """The ports that another user may still take, since it does not listen there yet."""
        return tuple(it for it in self.choices.ports_by_name if it not in self.opened)

    def connect(self, line: ShimConnection) -> None:
        """Use this connection to the shim, and send what it has missed first."""
        self._line = line
        if self._deadline_ms is not None:
            self.extend(self._deadline_ms)
        if self._stop_by_ms is not None:
            self._say_stop()

    def extend(self, deadline_ms: int) -> None:
        """Move the deadline. The shim refuses one that is earlier, too late, or of another boot."""
        self._deadline_ms = deadline_ms
        if self._line is not None:
            self._line.say(f"extend {self._boot} {deadline_ms}")

    def stop(self, grace_ms: int) -> None:
        """Ask the shim to stop the work, and remember by when it must have."""
        by_ms = self._now_ms() + max(0, grace_ms)
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)
        self._say_stop()

    def _say_stop(self) -> None:
        if self._line is not None and self._stop_by_ms is not None:
            self._line.say(f"stop {max(0, self._stop_by_ms - self._now_ms())}")

    def overdue_in_s(self) -> float:
        """The time after which the shim has certainly failed to stop the work as asked."""
        if self._stop_by_ms is None:
            return math.inf
        return max(0, self._stop_by_ms + KILL_BOUND_MS - self._now_ms()) / 1000

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def let_go(self) -> None:
        """Leave the work to its shim."""
        self.ports.release()
        if self._line is not None:
            self._line.close()
