"""The fencing inequality: how long to wait until work on a silent node has surely stopped.

A server acknowledges a renewal only if a linearizable read that it sent within `ack_window_ms`
showed no mark on the node. An agent counts `self_stop_after_ms` from the moment it sent the last
acknowledged renewal; then its work gets `grace_ms` to stop and is killed within `kill_bound_ms`.
The controller counts `fence_after_ms` on its own clock from when it saw its mark committed. Both
clocks may run wrong by up to `drift_ppm`, in opposite directions.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import FieldError, Invalid

PPM = 1_000_000


class FenceTiming(msgspec.Struct, frozen=True, gc=False):
    """The times that belong together; `short_of_fence_ms` says whether they are safe."""

    ack_window_ms: int = 2_000
    self_stop_after_ms: int = 30_000
    grace_ms: int = 10_000
    kill_bound_ms: int = 2_000
    drift_ppm: int = 200
    margin_ms: int = 1_000
    fence_after_ms: int = 46_000

    @property
    def renew_every_ms(self) -> int:
        """How often an agent renews: three times in the life of a renewal, so that one or two lost
        ones cost nothing.
        """
        return self.self_stop_after_ms // 3


def _check(timing: FenceTiming) -> None:
    """Refuse what would turn the inequality around, and so call any wait safe."""
    errors = [
        FieldError(path=field, value=str(units), rule="must not be negative")
        for field, units in msgspec.structs.asdict(timing).items()
        if units < 0
    ]
    if timing.drift_ppm >= PPM:
        rule = f"must be less than {PPM}: a clock that stands still fences nothing"
        errors.append(FieldError(path="drift_ppm", value=str(timing.drift_ppm), rule=rule))
    if errors:
        raise Invalid("; ".join(str(error) for error in errors), tuple(errors))


def fence_after_min_ms(timing: FenceTiming) -> int:
    """The smallest safe wait: (ack + selfStop + grace)(1+ρ)/(1-ρ) + κ(1+ρ) + margin, rounded up.

    Raises Invalid for times that no clock can keep.
    """
    _check(timing)
    fast, slow = PPM + timing.drift_ppm, PPM - timing.drift_ppm
    running = timing.ack_window_ms + timing.self_stop_after_ms + timing.grace_ms
    return -(-running * fast // slow) + -(-timing.kill_bound_ms * fast // PPM) + timing.margin_ms


def short_of_fence_ms(timing: FenceTiming) -> int:
    """By how much the configured wait is too short; 0 when it is safe."""
    return max(0, fence_after_min_ms(timing) - timing.fence_after_ms)
