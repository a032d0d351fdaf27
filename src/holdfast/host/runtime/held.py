"""One piece of work that runs, as this agent holds it: the line to its shim, its ports, its name.

Made by `runtime` when it launches or adopts work, and gone when the end of that work is proven.
"""

from __future__ import annotations

import asyncio
import math

from holdfast.agent.words import Attempt
from holdfast.host.runtime.attempts import Choices
from holdfast.host.runtime.line import Line
from holdfast.host.runtime.ports import Ports
from holdfast.host.runtime.records import State
from holdfast.model.kinds.replica import Process

# The shim kills at the end of the grace; one that has not done so this much later never will.
KILL_BOUND_MS = 2_000


class Held:
    """What is known of it in this life of the agent."""

    def __init__(self, attempt: Attempt, boot: str) -> None:
        self.attempt = attempt
        self.process = Process()
        self.state: State | None = None
        self.ports = Ports({}, {})
        self.choices = Choices()
        # Names of ports at which it was seen to listen.
        self.opened: set[str] = set()
        # When the agent was told that it runs, or found it itself, as the event loop counts.
        self.known_s = 0.0
        # Whether the agent was told that it runs, or found it itself.
        self.is_known = False
        # Why this agent itself ended it; empty if it did not.
        self.stopped_for = ""
        # Set when its end is proven.
        self.is_over = asyncio.Event()
        self._boot = boot
        self._line: Line | None = None
        self._deadline_ms: int | None = None
        self._stop_by_ms: int | None = None

    @property
    def line(self) -> Line | None:
        return self._line

    @property
    def unopened(self) -> tuple[str, ...]:
        """The ports at which another user may come to listen, as it does not itself yet."""
        return tuple(it for it in self.choices.told_apart if it not in self.opened)

    def connect(self, line: Line) -> None:
        """Speak to the shim over this line, first of what it has missed."""
        self._line = line
        if self._deadline_ms is not None:
            self.extend(self._deadline_ms)
        if self._stop_by_ms is not None:
            self._say_stop()

    def extend(self, deadline_ms: int) -> None:
        """Move the deadline. The shim refuses what is earlier, too late, or not for its work."""
        self._deadline_ms = deadline_ms
        if self._line is not None:
            self._line.say(f"extend {self._boot} {deadline_ms}")

    def stop(self, grace_ms: int) -> None:
        """Ask the shim to stop the work, and remember to see to it."""
        by_ms = self._now_ms() + max(0, grace_ms)
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)
        self._say_stop()

    def _say_stop(self) -> None:
        if self._line is not None and self._stop_by_ms is not None:
            self._line.say(f"stop {max(0, self._stop_by_ms - self._now_ms())}")

    def overdue_in_s(self) -> float:
        """In how long the shim has surely failed to stop it as it was asked to."""
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
