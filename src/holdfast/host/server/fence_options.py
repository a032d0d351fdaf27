"""The plane's fence timing on the command line of a server.

All servers of a plane must have the same values. An operator who changes how long work runs without
contact need not compute the fence: by default it is the shortest safe one. One that is too short is
refused, with the shortest that would be safe.
"""

from __future__ import annotations

import argparse

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.nodes.fence import FenceTiming, fence_after_min_ms, short_of_fence_ms
from holdfast.model.nodes.heartbeat import (
    ZONE_SILENCE_LEAST_MS,
    ZONE_SILENCE_MAX_MS,
    ZONE_SILENCE_MOST_MS,
)

SECONDS_MAX = 86_400
# A shell's timers are only accurate to some milliseconds; a shorter time could not be kept.
SELF_STOP_MIN_MS = 500

# Options in seconds: the field and its meaning.
OPTIONS = {
    "ack-window": ("ack_window_ms", "how old the data behind the answer to a renewal may be"),
    "self-stop-after": ("self_stop_after_ms", "how long work runs without contact"),
    "stop-grace": ("grace_ms", "how long work without contact may take to stop"),
    "kill-bound": ("kill_bound_ms", "how soon a node kills work that does not stop"),
    "fence-margin": ("margin_ms", "safety margin added to the fence"),
    "fence-after": (
        "fence_after_ms",
        "how long after its mark a silent node counts as stopped; default: the shortest safe time",
    ),
}
DRIFT = "clock-drift-ppm"
ZONE_SILENCE = "zone-silence-max"
ZONE_SILENCE_HELP = "how long a zone of which most nodes are silent is held back"


def timing_of(arguments: argparse.Namespace) -> FenceTiming:
    """Return the timing on the command line. Raises Invalid if it is not safe."""
    given: dict[str, int] = {}
    for option, (field, _) in OPTIONS.items():
        text = getattr(arguments, option.replace("-", "_"))
        if text is not None:
            given[field] = _milliseconds(f"--{option}", text)
    drift = getattr(arguments, DRIFT.replace("-", "_"))
    if drift is not None:
        if not (drift.isascii() and drift.isdigit() and len(drift) <= 6):
            raise _wrong(f"--{DRIFT}", drift, "must be a whole number below 1000000")
        given["drift_ppm"] = int(drift)
    timing = msgspec.structs.replace(FenceTiming(), **given)
    if given and "fence_after_ms" not in given:
        timing = msgspec.structs.replace(timing, fence_after_ms=fence_after_min_ms(timing))
    check(timing)
    return timing


def check(timing: FenceTiming) -> None:
    """Check that a timing is safe. Raises Invalid."""
    short_ms = short_of_fence_ms(timing)
    if short_ms:
        least = f"{fence_after_min_ms(timing) / 1_000:.3f}"
        raise _wrong(
            "--fence-after",
            f"{timing.fence_after_ms / 1_000:g}",
            f"must be at least {least} s with the other times as given: a replacement could start "
            "while its predecessor still runs",
        )
    if timing.self_stop_after_ms < SELF_STOP_MIN_MS:
        rule = f"must be at least {SELF_STOP_MIN_MS / 1_000:g} s, or renewals arrive too late"
        raise _wrong("--self-stop-after", f"{timing.self_stop_after_ms / 1_000:g}", rule)


def zone_silence_max_ms_of(arguments: argparse.Namespace) -> int:
    """Return how long a silent zone is held back, by the command line. Raises Invalid."""
    text = arguments.zone_silence_max
    if text is None:
        return ZONE_SILENCE_MAX_MS
    wait_ms = _milliseconds(f"--{ZONE_SILENCE}", text)
    check_zone_silence(wait_ms)
    return wait_ms


def check_zone_silence(wait_ms: int) -> None:
    """Check how long a silent zone is held back. Raises Invalid."""
    if not ZONE_SILENCE_LEAST_MS <= wait_ms <= ZONE_SILENCE_MOST_MS:
        rule = f"must be from {ZONE_SILENCE_LEAST_MS // 1_000} to {SECONDS_MAX} seconds"
        raise _wrong(f"--{ZONE_SILENCE}", f"{wait_ms / 1_000:g}", rule)


def _milliseconds(option: str, text: str) -> int:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= SECONDS_MAX:
        raise _wrong(option, text, f"must be a number of seconds from 0 to {SECONDS_MAX}")
    return round(seconds * 1_000)


def _wrong(option: str, value: str, rule: str) -> Invalid:
    error = FieldError(option, value[:40], rule)
    return Invalid(str(error), (error,))
