"""How a replica of a service ended, and when its place may be taken again.

controller:workload waits by this before it makes the next incarnation, and controller:status says
so. Work that ends by itself soon after it was placed is likely to do so again, wherever it is put:
each such ending in a row doubles the pause. Work that was stopped on purpose, or lost with its
node, says nothing about the next one, which therefore comes at once.

The number of endings in a row is carried by the replicas themselves, since nobody else is there
to remember it when a controller starts anew.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.correct.pacing import MonotonicWaits
from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.lifecycle import State
from holdfast.model.time import Instant, wall_ms

# How many incarnations before this one ended by themselves, in a row and soon.
ENDINGS_ANNOTATION = "holdfast.dev/endings-before"
PAUSE_MIN_MS = 1_000
PAUSE_MAX_MS = 300_000
_DOUBLINGS_MAX = 9
# Whatever ran for so long was well, and its end counts as the first.
STABLE_AFTER = timedelta(minutes=10)
# The reason under which a waiting place is counted in the workload's status.
BACKOFF_REASON = "CrashLoopBackoff"


def ending(replica: Replica) -> TransitionRecord | None:
    """The step by which it ended by itself, as its agent saw it, if it did.

    What an agent says of work that was out of contact is the end of its node's silence.
    """
    for record in reversed(replica.status.transitions):
        if record.to in (State.FAILED, State.SUCCEEDED):
            own = record.by.startswith(NODE_PREFIX) and record.from_state is not State.UNKNOWN
            return record if own else None
    return None


def endings(replica: Replica) -> int:
    """How many incarnations in a row ended by themselves and soon, up to and with this one."""
    record, binding = ending(replica), replica.status.binding
    if record is None:
        return 0
    if binding is None or binding.at is None or record.at - binding.at >= STABLE_AFTER:
        return 1
    return endings_before(replica) + 1


def endings_before(replica: Replica) -> int:
    """What was counted when it was made."""
    text = replica.metadata.annotations.get(ENDINGS_ANNOTATION, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def _pause(replica: Replica) -> tuple[datetime, int] | None:
    """When the pause after it began, and how long it is."""
    count, record = endings(replica), ending(replica)
    if not count or record is None:
        return None
    return record.at, min(PAUSE_MAX_MS, PAUSE_MIN_MS << min(count - 1, _DOUBLINGS_MAX))


def replaced_at_ms(replica: Replica) -> int:
    """From when, by the calendar, a released replica may be followed by the next; for people."""
    pause = _pause(replica)
    return wall_ms(pause[0]) + pause[1] if pause is not None else 0


def pause_left_ms(replica: Replica, waits: MonotonicWaits, now: Instant) -> int:
    """For how long a released replica may not yet be followed by the next incarnation."""
    pause = _pause(replica)
    if pause is None:
        return 0
    return waits.left_ms(replica.metadata.uid, BACKOFF_REASON, *pause, now, credit=True)
