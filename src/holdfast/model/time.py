"""Moments, without a clock.

Pure code never reads a clock; a shell passes an Instant with each stimulus. It carries two readings
that must not be mixed: `monotonic_ms` counts on one machine's CLOCK_BOOTTIME and is the only one
that fencing, takeover and timers may use; `wall_ms` is that machine's wall clock, for timestamps
that users read and for administrative deadlines, which allow for a skew.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

DAY_MS = 86_400_000


class Instant(msgspec.Struct, frozen=True, gc=False, order=True):
    """One moment by the clocks of one machine."""

    monotonic_ms: int
    wall_ms: int


# All decisions of one moment need the same one.
@lru_cache(maxsize=64)
def timestamp(wall_ms: int) -> datetime:
    """The timestamp of objects for this moment: UTC, to the millisecond."""
    return _EPOCH + timedelta(milliseconds=wall_ms)


def wall_ms(moment: datetime) -> int:
    """The inverse of `timestamp`, rounding down to a millisecond."""
    return (moment - _EPOCH) // _MILLISECOND


def rfc3339(wall_ms: int) -> str:
    """The moment as text for messages, to the second."""
    return timestamp(wall_ms).isoformat(timespec="seconds").replace("+00:00", "Z")


def sooner(a: int | None, b: int | None) -> int | None:
    """The earlier of two moments that may not be set."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
