"""What answers and reads say about a bind, and the request for a proposal."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.model.errors import Conflict, Expired, OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta, Operation
from holdfast.model.placement.fit import Allocation
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Bind, Target, Term
from holdfast.observe.watch_events import GetResult
from holdfast.propose.bind_operation import (
    PAUSE_MAX_MS,
    PAUSE_MIN_MS,
    BindOutcome,
    BindPhase,
    Course,
    bind_of,
    outcome_of_bind,
    outcome_of_look,
)
from holdfast.propose.feasibility.outcome import Proposal
from tests.plane import template

TERM = Term("scheduler:one", 3)
BIND = Bind(Target("acme", "web-0-0", "uid", 4), "n", "uid-n", TERM, operation="mine")
DONE = Operation(id="mine", digest="", at=datetime(2030, 1, 1, tzinfo=UTC))


def course(sends: int = 1) -> Course:
    return Course(("acme", "web-0-0"), BIND, sends=sends)


def replica(number: int = 4, uid: str = "uid", operations: tuple[Operation, ...] = ()) -> Replica:
    meta = ObjectMeta(name="web-0-0", namespace="acme", uid=uid, operations=operations)
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    status = ReplicaStatus(state=State.PENDING, transition_number=number)
    return Replica(meta, spec=spec, status=status)


@pytest.mark.parametrize(
    "answer, sends, outcome",
    [
        (Accepted(7), 1, BindOutcome.COMMITTED),
        (Accepted(7, replayed=True), 2, BindOutcome.COMMITTED),
        (Refusal(Reason.NODE_FULL, ""), 2, BindOutcome.REFUSED),
        (Unavailable("busy"), 1, BindOutcome.UNDONE),
        (Unavailable("busy"), 2, BindOutcome.UNKNOWN),
        (Conflict("no"), 1, BindOutcome.UNDONE),
        (OutcomeUnknown("?"), 1, BindOutcome.UNKNOWN),
        (Expired("?"), 1, BindOutcome.UNKNOWN),
        ("nonsense", 1, BindOutcome.UNKNOWN),
    ],
)
def test_only_an_answer_about_the_only_copy_settles_a_bind(
    answer: object, sends: int, outcome: BindOutcome
) -> None:
    """[F6, E5]"""
    assert outcome_of_bind(course(sends), answer) is outcome


@pytest.mark.parametrize(
    "found, outcome",
    [
        (GetResult(replica(operations=(DONE,), number=5), 9), BindOutcome.COMMITTED),
        (GetResult(replica(operations=(DONE,), number=8), 9), BindOutcome.COMMITTED),
        (GetResult(replica(), 9), BindOutcome.ABSENT),
        (GetResult(replica(number=5), 9), BindOutcome.OVERTAKEN),
        (GetResult(replica(uid="another"), 9), BindOutcome.OVERTAKEN),
        (GetResult(None, 9), BindOutcome.OVERTAKEN),
        (Unavailable("busy"), BindOutcome.UNREAD),
        (Refusal(Reason.NOT_ALLOWED, ""), BindOutcome.UNREAD),
    ],
)
def test_what_is_read_says_whether_the_bind_happened(found: object, outcome: BindOutcome) -> None:
    """By the operation that the replica records, not by where it runs. [F6]"""
    assert outcome_of_look(course(), found) is outcome


def test_pauses_grow_to_a_bound() -> None:
    """[E5]"""
    one = course()
    pauses = [one.pause(BindPhase.TO_LOOK, tries, 0, 0.5) for tries in range(40)]
    assert pauses[0] == PAUSE_MIN_MS * 3 // 4
    assert pauses == sorted(pauses)
    assert one.pause(BindPhase.TO_SEND, 40, 0, 0.999) <= PAUSE_MAX_MS
    assert one.phase is BindPhase.TO_SEND


def test_the_same_intention_has_the_same_id_after_a_restart() -> None:
    """Another node, transition or scheduler is another intention. [E5]"""

    def made(node: str = "n", number: int = 4, who: str = "system:scheduler:one") -> str:
        held = Allocation(charge={})
        proposal = Proposal(node, "uid-n", held, 1.0, {}, 1, {}, "p", 8, 12)
        bind = bind_of(who, replica(number), proposal, TERM)
        assert (bind.policy, bind.snapshot_revision, bind.snapshot_age_ms) == ("p", 8, 12)
        return bind.operation

    ids = [made(), made("m"), made(number=5), made(who="system:scheduler:two")]
    assert len(set(ids)) == 4
    assert made() == ids[0]
