"""How a replica of a service ended, and when its place may be taken again.

controller:workload waits by this before it makes the next incarnation, and controller:status says
so. Work that ends by itself soon after it was placed is likely to do so again, wherever it is put:
each such ending in a row doubles the pause. Work that was stopped on purpose, or lost with its
node, says nothing about the next one, which therefore comes at once.

The number of endings in a row is carried by the replicas themselves, since nobody else is there
to remember it when a controller starts anew.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.model.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.time import wall_ms

# How many incarnations before this one ended by themselves, in a row and soon.
ENDINGS_ANNOTATION = "holdfast.dev/endings-before"
PAUSE_MIN_MS = 1_000
PAUSE_MAX_MS = 300_000
_DOUBLINGS_MAX = 9
# Whatever ran for so long was well, and its end counts as the first.
STABLE_AFTER = timedelta(minutes=10)
# The reason of a step that controller:repair takes because the node lives in another life.
NODE_RETURNED = "NodeReturned"
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


def vacates(replica: Replica) -> bool:
    """Whether its place may be taken: it was released, or its owner does not want to wait for it.

    The latter is `keep` work out of contact that was given up after replaceAfter. It may still run
    beside its successor; whoever wants that asked for it.
    """
    state, steps = replica.status.state, replica.status.transitions
    if state is not State.FAILED or replica.spec.template.on_disconnect is not OnDisconnect.KEEP:
        return state is State.RELEASED
    last = steps[-1]
    # One whose agent has told how it ended, or whose node is back in another life, will also be
    # proven to have stopped, and soon.
    is_back = last.by.startswith(NODE_PREFIX) or last.reason == NODE_RETURNED
    return last.from_state is State.UNKNOWN and not is_back


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


def replaced_at_ms(replica: Replica) -> int:
    """From when, by the calendar, a released replica may be followed by the next incarnation."""
    count, record = endings(replica), ending(replica)
    if not count or record is None:
        return 0
    pause_ms = min(PAUSE_MAX_MS, PAUSE_MIN_MS << min(count - 1, _DOUBLINGS_MAX))
    return wall_ms(record.at) + pause_ms
