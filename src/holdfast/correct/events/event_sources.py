"""What has happened to an object, derived from the object itself.

`controller.py` makes events of these. The objects already store what happened, by whom and on what
evidence, so that a component that moves a replica need not record an event as well: the last
transitions of a replica and why it waits, the conditions of a workload, the phase of a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor, Cause, State
from holdfast.model.meta import Condition, ConditionStatus

# A workload that was just created is not expected to be available yet.
YOUNG = timedelta(minutes=1)
_WORD = "OperatorsWord"
_FORCED = (Cause.PREEMPTION.value, Cause.REPAIR.value, Cause.RECLAIM.value)
_REPAIR = f"system:{Actor.REPAIR.value}"


class Occurrence(msgspec.Struct, frozen=True):
    """Something that happened, once or several times.

    `numbers` are the numbers of the transitions with this reason; without them, it counts once for
    each `stamp`. `at` None means that the object has no timestamp for it; then it is now.
    """

    reason: str
    message: str
    warns: bool = False
    at: datetime | None = None
    numbers: tuple[int, ...] = ()
    stamp: str = ""

    @property
    def stored_text(self) -> str:
        """What the event stores of it, to count nothing twice."""
        return self.stamp or str(max(self.numbers, default=0))

    def since(self, told: str) -> int:
        """How many of it the event has not counted yet."""
        if self.stamp:
            return int(told != self.stamp)
        last = int(told) if told.isascii() and told.isdigit() else -1
        return sum(number > last for number in self.numbers)


def step_reason(step: TransitionRecord) -> tuple[str, bool]:
    """The event reason of a transition, empty if it has none, and whether it is a warning."""
    if step.reason == _WORD:
        return _WORD, True
    match step.from_state, step.to:
        case _, State.BOUND:
            return "Scheduled", False
        case State.RUNNING, State.RUNNING:
            return "Restarted", True
        case State.UNKNOWN, State.RUNNING:
            return "Returned", False
        case _, State.RUNNING:
            return "Started", False
        case _, State.STOPPING:
            return "Stopping", step.reason in _FORCED
        case _, State.UNKNOWN:
            return "OutOfContact", True
        case _, State.FAILED:
            return "Failed", True
        case _, State.SUCCEEDED:
            return "Succeeded", False
        case State.RESERVED, State.PENDING:
            return "PlaceGivenBack", True
        case _, State.RELEASED if step.by == _REPAIR:
            return "Repaired", True
    return "", False


def of_replica(replica: Replica, since: datetime) -> Iterable[Occurrence]:
    """Its transitions since a time, grouped by reason, and why it waits."""
    status = replica.status
    first = status.transition_number - len(status.transitions) + 1
    alike: dict[str, list[tuple[int, TransitionRecord]]] = {}
    for number, step in enumerate(status.transitions, first):
        reason, _ = step_reason(step)
        if reason and step.at >= since:
            alike.setdefault(reason, []).append((number, step))
    for reason, steps in alike.items():
        number, last = steps[-1]
        yield Occurrence(
            reason,
            _step_message(replica, last),
            step_reason(last)[1],
            last.at,
            tuple(number for number, _ in steps),
        )
    pending = status.pending
    if pending is not None and status.state is State.PENDING:
        reasons = ", ".join(f"{count} {name}" for name, count in sorted(pending.reasons.items()))
        message = pending.message or reasons
        what = f"{pending.verdict}/{sorted(pending.reasons)}/{pending.smallest_change}"
        yield Occurrence("FailedScheduling", message, True, stamp=_digest(what))


def _step_message(replica: Replica, step: TransitionRecord) -> str:
    binding = replica.status.binding
    where = f" on {binding.node}" if binding is not None else ""
    why = ": ".join(it for it in (step.reason, step.evidence) if it)
    return f"{step.to.value}{where} by {step.by}{f': {why}' if why else ''}"


def _digest(text: str) -> str:
    return f"#{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


_CONDITIONS = {
    ("Available", ConditionStatus.TRUE): ("Available", False),
    ("Available", ConditionStatus.FALSE): ("Unavailable", True),
    ("Complete", ConditionStatus.TRUE): ("Complete", False),
    ("Failed", ConditionStatus.TRUE): ("JobFailed", True),
    ("Progressing", ConditionStatus.FALSE): ("NotProgressing", True),
    ("RollbackObserved", ConditionStatus.TRUE): ("RolledBack", True),
}


def of_workload(workload: Workload, since: datetime) -> Iterable[Occurrence]:
    """The changes of its conditions since a time."""
    made = workload.metadata.creation_timestamp
    for condition in workload.status.conditions:
        reason, warns = _CONDITIONS.get((condition.type, condition.status), ("", False))
        at = condition.last_transition_time
        if not reason or at is None or at < since:
            continue
        if reason == "Unavailable" and made is not None and at - made < YOUNG:
            continue
        yield Occurrence(reason, _condition_message(condition), warns, at, stamp=at.isoformat())


def _condition_message(condition: Condition) -> str:
    text = ": ".join(it for it in (condition.reason, condition.message) if it)
    return text or f"{condition.type} is {condition.status.value}"


PHASES = {phase: f"Node{phase.value}" for phase in NodePhase}


def of_node(node: Node) -> Occurrence:
    """Its phase."""
    phase, mark = node.status.phase, node.status.mark
    why = f"mark {mark.number}: {mark.reason}" if mark is not None else ""
    message = f"incarnation {node.status.incarnation}{f', {why}' if why else ''}"
    return Occurrence(PHASES[phase], message, phase is not NodePhase.READY, stamp=phase.value)
