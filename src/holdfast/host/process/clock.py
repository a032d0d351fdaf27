"""The clocks of this computer, as machines see them.

The shell takes one reading for each stimulus. CLOCK_BOOTTIME advances while the computer is
suspended, so a lease or a fence that expired meanwhile has expired when it resumes.
"""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.model.time import Instant

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> Instant:
    """Return both readings of this moment."""
    return Instant(monotonic_ms(), time.time_ns() // 1_000_000)


def monotonic_ms() -> int:
    """Return the clock of timers, leases and fences."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """Return the id of the present boot: monotonic readings of another one are meaningless."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
