"""The record of the greatest timing that work on a node may hold, as registrations change it.

Called by `nodes.register`. The record only grows, but for two cases: a new life, which begins when
nothing of the old one runs, and an agent that says on the record which it knows that its work
holds less. Not under a mark, whose countdown began when more was held. The window of answers falls
with a new life only.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.model.kinds.node import NodeStatus
from holdfast.model.meta import Condition, ConditionStatus, condition, with_condition
from holdfast.model.requests import RegisterNode
from holdfast.model.timings import TIMING_PENDING, exceeds, greatest, limited, recorded, timing_of


def timed(
    context: Context, request: RegisterNode, before: NodeStatus | None, after: NodeStatus
) -> NodeStatus:
    """The status with its record; `before` is None at the first registration."""
    plane, holds = context.settings.fence, request.holds
    record = before.timing if before is not None else None
    held = timing_of(record)
    is_new_life = before is None or before.incarnation != after.incarnation
    is_known = holds is not None and record is not None and holds.number == record.number
    may_fall = is_new_life or (is_known and after.mark is None)
    most = greatest(plane) if held is None else greatest(held, plane)
    timing = greatest(plane) if may_fall else most
    if not is_new_life:
        # A server may still answer from a read that it sent under the longer window, also after
        # the record has fallen: within one life the fence goes on waiting for that.
        timing = greatest(msgspec.structs.replace(timing, ack_window_ms=most.ack_window_ms))
    if holds is not None:
        given = msgspec.structs.replace(
            plane, self_stop_after_ms=holds.self_stop_after_ms, grace_ms=holds.grace_ms
        )
        # Nothing was ever given beyond the record. An agent that claims more would put off the
        # fence of its node for as long as it likes, and with it every replacement.
        timing = greatest(timing, limited(given, most))
    number = record.number if record is not None else 0
    # A process that has just started ends the claims of those before it, which may still arrive.
    is_news = timing != held or (holds is not None and not holds.number)
    made = recorded(timing, number + is_news)
    is_pending = exceeds(timing, greatest(plane))
    return msgspec.structs.replace(
        after,
        timing=made,
        conditions=_conditions(context, after, is_pending, timing.fence_after_ms),
    )


def _conditions(
    context: Context, status: NodeStatus, is_pending: bool, wait_ms: int
) -> tuple[Condition, ...]:
    """Say that a lowered setting waits for work that holds more, or that it does not any more."""
    if not is_pending and condition(status.conditions, TIMING_PENDING) is None:
        return status.conditions
    news = Condition(
        TIMING_PENDING,
        ConditionStatus.TRUE if is_pending else ConditionStatus.FALSE,
        reason="WorkHoldsMore" if is_pending else "InForce",
        message=f"work on this node was started under longer times than the servers' present "
        f"settings: it is fenced {wait_ms} ms after its mark until that work has ended"
        if is_pending
        else "the servers' present settings are in force",
    )
    return with_condition(status.conditions, news, context.at)
