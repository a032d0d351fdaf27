"""Which object a request is about, and what that object shows about its outcome."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.reservation import Intent, ReservationOwner
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.operation_evidence import (
    Evidence,
    evidence_in,
    operation_id,
    settling_read,
)
from holdfast.model.read_requests import Get
from holdfast.model.requests import (
    REQUESTS,
    AcquireLease,
    Bind,
    BindTogether,
    CommitGang,
    Create,
    ForgetOperations,
    HoldCapacity,
    JudgeNode,
    Move,
    NodeAction,
    Patch,
    PatchType,
    RegisterNode,
    Remove,
    RenewLease,
    ReportStage,
    Request,
    Target,
    Term,
    Update,
)
from tests.plane import template

TERM = Term("scheduler:one", 3)
TARGET = Target("acme", "web-0-0", "uid", 4)
BIND = Bind(TARGET, "n", "uid-n", TERM, operation="mine")
NODE = Node(ObjectMeta(name="n", uid="uid-n"))
AT = datetime(2030, 1, 1, tzinfo=UTC)
DONE = Operation(id="mine", digest="", at=AT)
OWNER = ReservationOwner("Workload", "web", "w")
HOLD = HoldCapacity("acme", OWNER, Intent.RECOVERY, (), AT, TERM)


def replica(number: int = 4, uid: str = "uid", operations: tuple[Operation, ...] = ()) -> Replica:
    meta = ObjectMeta(name="web-0-0", namespace="acme", uid=uid, operations=operations)
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    return Replica(
        meta, spec=spec, status=ReplicaStatus(state=State.PENDING, transition_number=number)
    )


@pytest.mark.parametrize(
    "request_, read",
    [
        (BIND, Get("replicas", "web-0-0", "acme")),
        (BindTogether((BIND,)), Get("replicas", "web-0-0", "acme")),
        (Move(TARGET, State.RELEASED), Get("replicas", "web-0-0", "acme")),
        (Create(replica()), Get("replicas", "web-0-0", "acme")),
        (Create(Replica(ObjectMeta(generate_name="web-"), spec=replica().spec)), None),
        (Remove("replicas", "acme", "web-0-0"), Get("replicas", "web-0-0", "acme")),
        (JudgeNode("n", "u", NodeAction.MARK, TERM), Get("nodes", "n")),
        (RegisterNode(NODE), Get("nodes", "n")),
        (HOLD, Get("reservations", "web-recovery", "acme")),
        (CommitGang("acme", "web-gang", "u", TERM), Get("reservations", "web-gang", "acme")),
        (AcquireLease("scheduler:one", 1), Get("leases", "scheduler-one")),
        (RenewLease(TERM), Get("leases", "scheduler-one")),
        (ForgetOperations(("a",)), None),
    ],
)
def test_a_request_is_about_one_object_or_about_none(request_: Request, read: Get | None) -> None:
    """That is what is read when its outcome is unknown. [E5]"""
    assert settling_read(request_) == read


@pytest.mark.parametrize(
    "found, evidence",
    [
        (replica(operations=(DONE,), number=5), Evidence.DONE),
        (replica(operations=(DONE,), number=8), Evidence.DONE),
        (replica(), Evidence.ABSENT),
        (replica(number=5), Evidence.OVERTAKEN),
        (replica(uid="another", operations=(DONE,)), Evidence.OVERTAKEN),
        (None, Evidence.OVERTAKEN),
    ],
)
@pytest.mark.parametrize("request_", [BIND, BindTogether((BIND,), operation="of all")])
def test_what_a_replica_shows_about_a_transition(
    request_: Request, found: Object | None, evidence: Evidence
) -> None:
    """By the operation that the replica remembers, not by where it runs. [F6, E5]"""
    assert evidence_in(request_, found) is evidence


def test_a_report_that_changes_no_transition_is_absent_until_it_is_remembered() -> None:
    """[E5]"""
    report = ReportStage(TARGET, Stage.READY, operation="mine")
    assert evidence_in(report, replica()) is Evidence.ABSENT
    assert evidence_in(report, replica(operations=(DONE,))) is Evidence.DONE


def test_a_deletion_is_done_once_the_object_is_gone_by_any_client() -> None:
    """[E5]"""
    remove = Remove("replicas", "acme", "web-0-0", uid="uid", operation="mine")
    assert evidence_in(remove, None) is Evidence.DONE
    assert evidence_in(remove, replica(uid="another")) is Evidence.DONE
    assert evidence_in(remove, replica()) is Evidence.ABSENT


@pytest.mark.parametrize(
    "request_, evidence",
    [
        (Create(replica(), operation="mine"), Evidence.ABSENT),
        (Patch("replicas", "acme", "web-0-0", PatchType.APPLY, {}), Evidence.ABSENT),
        (RegisterNode(Node(ObjectMeta(name="n"))), Evidence.ABSENT),
        (Update(replica()), Evidence.OVERTAKEN),
        (JudgeNode("n", "u", NodeAction.MARK, TERM), Evidence.OVERTAKEN),
    ],
)
def test_only_a_request_about_a_certain_object_is_overtaken_when_there_is_none(
    request_: Request, evidence: Evidence
) -> None:
    """[E5]"""
    assert evidence_in(request_, None) is evidence


def test_a_request_without_an_id_is_not_found_among_remembered_operations() -> None:
    """[E5]"""
    anonymous = msgspec.structs.replace(BIND, operation="")
    assert evidence_in(anonymous, replica(operations=(DONE,))) is Evidence.ABSENT


def test_the_id_of_a_group_is_the_one_that_its_first_member_remembers() -> None:
    """[E5]"""
    assert operation_id(BIND) == operation_id(BindTogether((BIND,), operation="of all")) == "mine"
    assert operation_id(BindTogether(())) == operation_id(ForgetOperations(())) == ""


def test_a_request_says_itself_that_it_needs_no_id() -> None:
    """A third file would have to name it otherwise. [C3]"""
    without = {it for it in REQUESTS if "operation" not in it.__struct_fields__}
    assert without
    assert all(it.operation == "" for it in without)


def test_only_creations_are_expected_to_be_seen() -> None:
    """[C3]"""
    assert Create(replica()).creates_subject
    assert HOLD.creates_subject
    assert not BIND.creates_subject
