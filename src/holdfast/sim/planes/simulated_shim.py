"""The simulated shim: what `host/runtime/shim.c` decides, without a kernel below it.

`process_table` holds one for each attempt and gives it the readings of the host's clock. The names
are those of the C program, and both play the scripts in tests/golden/shim, so that neither can
change without the other.
"""

from __future__ import annotations

DEADLINE_PASSED, STOPPED = "DeadlinePassed", "Stopped"
EXTENDED = "extended"


class Shim:
    """One deadline, and how the work below it is stopped. Times are readings in milliseconds."""

    __slots__ = (
        "asked_ms",
        "deadline_ms",
        "grace_ms",
        "has_struck",
        "is_killed",
        "kill_ms",
        "reason",
    )

    def __init__(self, deadline_ms: int | None, grace_ms: int) -> None:
        self.deadline_ms, self.grace_ms = deadline_ms, grace_ms
        # The end that the earliest stop request allows, and when the work is killed: the earlier
        # of that and of the end that the deadline allows.
        self.asked_ms: int | None = None
        self.kill_ms: int | None = None
        # Why it is being stopped; empty while it is not.
        self.reason = ""
        # Whether the deadline has passed (then it no longer moves), and whether the kill is due.
        self.has_struck = self.is_killed = False

    @property
    def next_ms(self) -> int | None:
        """When the shim has to act next."""
        return self.kill_ms if self.reason else self.deadline_ms

    def is_late(self, now_ms: int) -> bool:
        """Whether nothing may be started any more."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms

    def keep_time(self, now_ms: int) -> None:
        """Act on the clock. This comes before any request, so that none takes effect too late."""
        if not self.has_struck and self.deadline_ms is not None and self.is_late(now_ms):
            self.has_struck = True
            self.stop(DEADLINE_PASSED, self.deadline_ms, self.grace_ms)
        if self.kill_ms is not None and now_ms >= self.kill_ms:
            self.is_killed = True

    def extend(self, until_ms: int, *, is_foreign: bool = False) -> str:
        """Move the deadline, unless there are reasons not to. Returns what the shim answers."""
        if is_foreign:
            return "refused boot"
        if self.deadline_ms is None:
            return "refused none"
        if self.has_struck:
            return "refused stopping"
        if until_ms < self.deadline_ms:
            return "refused earlier"
        self.deadline_ms = until_ms
        self._settle_end()
        return EXTENDED

    def stop(self, why: str, from_ms: int, within_ms: int) -> None:
        """Begin to stop, or stop sooner. A stop is never undone."""
        end_ms = from_ms + within_ms
        if self.asked_ms is None or end_ms < self.asked_ms:
            self.asked_ms = end_ms
        self.reason = self.reason or why
        self._settle_end()

    def ended(self, how: str) -> str:
        """Why the work ended, when it did so by itself: a stop that had begun is the reason."""
        return self.reason or how

    def _settle_end(self) -> None:
        """A fence relies on deadline + grace, whatever stop was requested."""
        self.kill_ms = self.asked_ms
        if self.kill_ms is not None and self.deadline_ms is not None:
            self.kill_ms = min(self.kill_ms, self.deadline_ms + self.grace_ms)
