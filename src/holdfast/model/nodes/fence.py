"""The fencing inequality: how long to wait until work on a silent node has certainly stopped.

A server acknowledges a renewal only if a linearizable read that it sent within `ack_window_ms`
showed no mark on the node. An agent counts `self_stop_after_ms` from the moment it sent the last
acknowledged renewal; then its work gets `grace_ms` to stop and is killed within `kill_bound_ms`.
The controller counts `fence_after_ms` on its own clock from when it saw its mark committed. Both
clocks may run wrong by up to `drift_ppm`, in opposite directions.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.node import HeldTiming

PPM = 1_000_000


class FenceTiming(msgspec.Struct, frozen=True, gc=False):
    """The timing parameters of a fence; `short_of_fence_ms` checks whether they are safe."""

    ack_window_ms: int = 2_000
    self_stop_after_ms: int = 30_000
    grace_ms: int = 10_000
    kill_bound_ms: int = 2_000
    drift_ppm: int = 200
    margin_ms: int = 1_000
    fence_after_ms: int = 46_000

    @property
    def renew_every_ms(self) -> int:
        """How often an agent renews: three times per renewal lifetime, so that one or two lost
        renewals have no effect.
        """
        return self.self_stop_after_ms // 3


def _check(timing: FenceTiming) -> None:
    """Refuses values that would reverse the inequality and so make any wait look safe."""
    errors = [
        FieldError(path=field, value=str(units), rule="must not be negative")
        for field, units in msgspec.structs.asdict(timing).items()
        if units < 0
    ]
    if timing.drift_ppm >= PPM:
        rule = f"must be less than {PPM}: a clock that stands still cannot time a fence"
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


# Changes of the fence timing: which timing work on a node may use, and what a fence must wait for.
#
# The servers' settings may change at any restart, and servers may differ for a while. Work keeps
# the timing that it received: the shim its grace for as long as it runs, and a deadline computed
# from the timing of the server that acknowledged the last renewal. So the store holds, for each
# node, the greatest timing that any work on it may use. A server acknowledges no more than that, a
# fence waits for that, and only the node's own agent can report that less is in use.

# The node condition that says whether its work uses greater times than the plane's present timing.
TIMING_PENDING = "TimingPending"
# The times that a server sends an agent with an acknowledgement. The others are assumptions about
# the machines, which only the fence uses.
_GIVEN = ("ack_window_ms", "self_stop_after_ms", "grace_ms")


class HeldTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The greatest times that an agent's work uses: the time until it stops itself, and the grace.

    `number` is the number of the node's timing record that the agent knows. An agent without one
    has just started and does not know what its earlier processes reported.
    """

    self_stop_after_ms: int
    grace_ms: int
    number: int = 0


# A plane has few timings, and each renewal and look at a node asks for the same ones.
@lru_cache(maxsize=64)
def greatest_timing(timing: FenceTiming, *others: FenceTiming) -> FenceTiming:
    """The maximum of each time over all timings, with a fence wait that covers them."""
    after = timing
    for other in others:
        after = FenceTiming(
            **{
                field: max(value, getattr(other, field))
                for field, value in msgspec.structs.asdict(after).items()
            }
        )
    return msgspec.structs.replace(
        after, fence_after_ms=max(after.fence_after_ms, fence_after_min_ms(after))
    )


@lru_cache(maxsize=64)
def limit_timing(timing: FenceTiming, held: FenceTiming | None) -> FenceTiming:
    """The timing that an agent may receive, limited by its node's timing record."""
    if held is None:
        return timing
    given = {it: min(getattr(timing, it), getattr(held, it)) for it in _GIVEN}
    return msgspec.structs.replace(timing, **given)


def exceeds(timing: FenceTiming, other: FenceTiming) -> bool:
    """Whether any time of the first timing is greater than in the second."""
    times, others = msgspec.structs.asdict(timing), msgspec.structs.asdict(other)
    return any(value > others[field] for field, value in times.items())


def timing_of(record: HeldTiming | None) -> FenceTiming | None:
    """The timing in a node's record."""
    if record is None:
        return None
    times = msgspec.structs.asdict(record)
    del times["number"]
    return FenceTiming(**times)


def timing_record(timing: FenceTiming, number: int) -> HeldTiming:
    """A node's record of a timing."""
    return HeldTiming(number=number, **msgspec.structs.asdict(timing))


def fence_wait_ms(record: HeldTiming | None, timing: FenceTiming) -> int:
    """How long a fence of this node must wait, by its record and the plane's present timing."""
    held = timing_of(record)
    return timing.fence_after_ms if held is None else greatest_timing(held, timing).fence_after_ms
