"""How fast a controller does what nobody waits for: some at once, then so many a second.

What clears up or tells people must never take the plane's time from the work itself, least of all
during an incident, when there is most to clear up and to tell.
"""

from __future__ import annotations

from holdfast.model.time import Instant


class Pace:
    """Acts at a rate, counted in thousandths on the controller's monotonic clock."""

    def __init__(self, per_s: int, burst: int) -> None:
        self._per_s, self._most = per_s, burst * 1_000
        self._left, self._at_ms = self._most, 0

    def has(self, now: Instant, spare: int = 0) -> bool:
        """Whether one more might be done now and leave so many to spare for what matters more."""
        passed_ms = max(0, now.monotonic_ms - self._at_ms)
        self._left = min(self._most, self._left + passed_ms * self._per_s)
        self._at_ms = max(self._at_ms, now.monotonic_ms)
        return self._left >= (spare + 1) * 1_000

    def takes(self, now: Instant, spare: int = 0) -> bool:
        """Do one more, if there is one to take."""
        if not self.has(now, spare):
            return False
        self._left -= 1_000
        return True
