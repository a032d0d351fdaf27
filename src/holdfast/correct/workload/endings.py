"""How a replica ended, and when its next incarnation may be created.

controller:workload waits for this before it creates the next incarnation, and controller:status
reports it. Work that ends by itself soon after it was placed is likely to do so again on any node:
each such ending in a row doubles the pause. Work that was stopped on purpose, or lost with its
node, says nothing about the next incarnation, which therefore comes at once.

The replicas themselves store the number of endings in a row, so that it survives a restart of the
controller.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.correct.pacing import MonotonicWaits
from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.lifecycle import State
from holdfast.model.time import Instant, wall_ms

# How many incarnations before this one ended soon by themselves, in a row.
ENDINGS_ANNOTATION = "holdfast.dev/endings-before"
PAUSE_MIN_MS = 1_000
PAUSE_MAX_MS = 300_000
_DOUBLINGS_MAX = 9
# Work that ran for this long was healthy, and its end counts as the first.
STABLE_AFTER = timedelta(minutes=10)
# The reason under which a waiting ordinal is counted in the workload's status.
BACKOFF_REASON = "CrashLoopBackoff"


def ending(replica: Replica) -> TransitionRecord | None:
    """The transition by which it ended by itself, as its agent reported it, if it did.

    A report about work that was out of contact marks the end of its node's silence instead.
    """
    for record in reversed(replica.status.transitions):
        if record.to in (State.FAILED, State.SUCCEEDED):
            own = record.by.startswith(NODE_PREFIX) and record.from_state is not State.UNKNOWN
            return record if own else None
    return None


def endings(replica: Replica) -> int:
    """How many incarnations in a row ended soon by themselves, up to and including this one."""
    record, binding = ending(replica), replica.status.binding
    if record is None:
        return 0
    if binding is None or binding.at is None or record.at - binding.at >= STABLE_AFTER:
        return 1
    return endings_before(replica) + 1


def endings_before(replica: Replica) -> int:
    """The count when it was created."""
    text = replica.metadata.annotations.get(ENDINGS_ANNOTATION, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _pause(replica: Replica) -> tuple[datetime, int] | None:
    """The start and the length of the pause after it."""
    count, record = endings(replica), ending(replica)
    if not count or record is None:
        return None
    return record.at, min(PAUSE_MAX_MS, PAUSE_MIN_MS << min(count - 1, _DOUBLINGS_MAX))


def replaced_at_ms(replica: Replica) -> int:
    """When, by the wall clock, the next incarnation may follow a released replica; for messages."""
    pause = _pause(replica)
    return wall_ms(pause[0]) + pause[1] if pause is not None else 0


def pause_left_ms(replica: Replica, waits: MonotonicWaits, now: Instant) -> int:
    """The time until the next incarnation may follow a released replica."""
    pause = _pause(replica)
    if pause is None:
        return 0
    return waits.left_ms(replica.metadata.uid, BACKOFF_REASON, *pause, now, credit=True)
