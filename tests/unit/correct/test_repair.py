"""controller:repair: what is surely gone, and what is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import BY_NODE
from holdfast.correct.repair import LATE_MS, RepairController
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import Object
from holdfast.model.requests import Evict, JudgeNode, Move, NodeAction, Reserve, Unreserve
from holdfast.model.time import timestamp
from holdfast.observe.cache import ObjectChange
from tests.plane import NODES, SCHEDULER, accepted, target, template
from tests.unit.correct.controller_rig import Rig
from tests.unit.correct.views import (
    TEMPLATE,
    TERM,
    at,
    later,
    meta,
    node,
    record,
    replica,
    view,
)

KEY = ("acme", "web-0-0")
KEEP = msgspec.structs.replace(TEMPLATE, on_disconnect=OnDisconnect.KEEP, replace_after_seconds=60)
GONE = [
    node(phase=NodePhase.FENCED, mark=1),
    node(phase=NodePhase.LOST, mark=1),
    node(incarnation=2),
]
THERE = [node(), node(phase=NodePhase.SUSPECT), node(phase=NodePhase.UNKNOWN, mark=1)]


def plan(*objects: Object, after_ms: int = 0, told: int = 1_000) -> Any:
    controller = RepairController()
    return controller.reconcile(view(*objects, told=told), KEY, TERM, later(after_ms))


def step(*objects: Object, after_ms: int = 0) -> State | None:
    """The state that the replica is to be moved to, if any."""
    requests = plan(*objects, after_ms=after_ms).requests
    match requests:
        case ():
            return None
        case (Move(to=to, term=term),):
            assert term == TERM
            return to
        case (Evict(cause=Cause.REPAIR),):
            return State.STOPPING
        case (Unreserve(),):
            return State.PENDING
    raise AssertionError(requests)


@pytest.mark.parametrize("machine", GONE)
@pytest.mark.parametrize(
    "state, to",
    [
        (State.UNKNOWN, State.FAILED),
        (State.FAILED, State.RELEASED),
        (State.SUCCEEDED, State.RELEASED),
        (State.STOPPING, State.RELEASED),
    ],
)
def test_what_a_fence_or_a_later_life_proved_gone_is_moved_on(
    machine: Node, state: State, to: State
) -> None:
    """One step at a time, each with its evidence. [I2, I3, C6.4]"""
    assert step(machine, replica(state)) is to


@pytest.mark.parametrize("machine", THERE)
@pytest.mark.parametrize(
    "state", [State.UNKNOWN, State.FAILED, State.SUCCEEDED, State.STOPPING, State.RUNNING]
)
def test_what_may_still_run_is_left_alone(machine: Node, state: State) -> None:
    """Out of contact is not gone. [C6.4, H5]"""
    assert step(machine, replica(state)) is None


@pytest.mark.parametrize("state", [State.BOUND, State.RUNNING])
def test_work_of_an_earlier_life_without_a_record_is_stopped(state: State) -> None:
    """Its node lives on without it; on a node that is only fenced it becomes Unknown first. [I2]"""
    assert step(node(incarnation=2), replica(state)) is State.STOPPING
    assert step(node(phase=NodePhase.FENCED, mark=1), replica(state)) is None


def test_what_never_had_a_node_is_released() -> None:
    """A job that failed while it waited, for one."""
    assert step(replica(State.FAILED, binding=None)) is State.RELEASED


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPING, State.SUCCEEDED])
def test_the_share_of_keep_work_comes_back_only_by_proof_of_stop(state: State) -> None:
    """It runs on when it is cut off: no fence proves its end. [C6.4, H8]"""
    assert [step(it, replica(state, template=KEEP)) for it in GONE] == [None, None, None]


def test_keep_work_is_given_up_when_its_owner_does_not_want_to_wait() -> None:
    """replaceAfter counts from when it became Unknown, with room for a clock that is ahead. [I3]"""
    out = replica(State.UNKNOWN, template=KEEP, transitions=(record(State.UNKNOWN, "x"),))
    marked = node(phase=NodePhase.FENCED, mark=1)
    assert plan(marked, out).wake_after_ms == 60_000 + LATE_MS
    assert step(marked, out, after_ms=60_000 + LATE_MS - 1) is None
    assert step(marked, out, after_ms=60_000 + LATE_MS) is State.FAILED
    assert step(node(incarnation=2), out) is State.FAILED
    patient = msgspec.structs.replace(KEEP, replace_after_seconds=None)
    for_ever = replica(State.UNKNOWN, template=patient, transitions=out.status.transitions)
    assert step(marked, for_ever, after_ms=10**9) is None


def reservation(deadline_ms: int) -> Reservation:
    spec = ReservationSpec(
        owner=ReservationOwner("Replica", "web-0-0", "uid-web-0-0"),
        intent=Intent.BIND,
        deadline=at(deadline_ms),
    )
    status = ReservationStatus(claims=(Claim(node="node-a", replica="web-0-0"),))
    return Reservation(meta("hold", "acme"), spec=spec, status=status)


def test_a_place_that_was_reserved_for_too_long_is_given_back() -> None:
    """Late by the authority's own allowance, so that it is not asked in vain. [I3, C6.5]"""
    waiting = replica(State.RESERVED, reservation="hold")
    held = reservation(10_000)
    assert plan(held, waiting).wake_after_ms == 10_000 + LATE_MS
    assert step(held, waiting, after_ms=10_000 + LATE_MS) is State.PENDING


def test_what_has_not_arrived_yet_is_not_taken_for_gone() -> None:
    """Kinds arrive on streams of their own. [C3, N3]"""
    waiting = replica(State.RESERVED, reservation="hold")
    assert plan(waiting, told=6).requests == ()
    assert plan(waiting, told=6).wake_after_ms is not None
    assert step(waiting) is State.PENDING
    assert plan(replica(State.UNKNOWN), told=6).requests == ()
    assert step(replica(State.UNKNOWN)) is State.FAILED
    assert step(replica(State.RUNNING)) is None


def test_a_node_concerns_its_replicas_only_when_its_life_changes() -> None:
    """A node that reports new images queues no key."""
    snapshot = view(node(), replica(), replica(State.FAILED, 1), replica(ordinal=2, node="other"))
    controller = RepairController()
    assert len(snapshot.found(BY_NODE, "node-a")) == 2
    quiet = msgspec.structs.replace(
        node(), status=msgspec.structs.replace(node().status, images=("x",))
    )
    assert controller.keys_of(ObjectChange("nodes", node(), quiet), snapshot) == ()
    keys = [("acme", "web-0-0"), ("acme", "web-1-0")]
    fenced = node(phase=NodePhase.FENCED, mark=1)
    assert list(controller.keys_of(ObjectChange("nodes", node(), fenced), snapshot)) == keys
    assert list(controller.keys_of(ObjectChange("nodes", node(), None), snapshot)) == keys
    assert list(
        controller.keys_of(ObjectChange("reservations", None, reservation(0)), snapshot)
    ) == [KEY]


def test_reserved_places_past_their_deadline_come_back_on_the_real_authority() -> None:
    """The scheduler reserved and died. [INV12, F7, I3]"""
    rig = Rig()
    rig.plane.tenant()
    machine = rig.plane.node("node-a")
    rig.plane.workload(replicas=1)
    rig.run()
    term = rig.plane.term(SCHEDULER)
    waiting = rig.get("replicas", "web-0-0", "acme")
    deadline = rig.plane.at(30)
    reserve = Reserve(target(waiting), "node-a", machine.metadata.uid, term, deadline)
    accepted(rig.plane.ask(SCHEDULER, reserve))
    rig.run(30_000)
    assert rig.states() == {"web-0-0": "Reserved"}
    rig.run(5_000)
    assert rig.states() == {"web-0-0": "Pending"}


def test_keep_work_is_replaced_while_its_old_copy_still_holds_its_share() -> None:
    """After replaceAfter there is a second copy; the first is charged until it has stopped. [I3]"""
    rig = Rig()
    rig.plane.tenant()
    for name in ("node-a", "node-b", "node-c"):
        rig.plane.node(name)
    keep = template(on_disconnect=OnDisconnect.KEEP, replace_after_seconds=20)
    rig.plane.workload(replicas=1, template=keep)
    rig.turn()
    rig.silent = {"node-a"}
    rig.run(50_000)
    assert rig.states() == {"web-0-0": "Unknown"}
    since = rig.get("replicas", "web-0-0", "acme").status.transitions[-1].at
    rig.run(20_000)
    failed = rig.get("replicas", "web-0-0", "acme")
    assert failed.status.transitions[-1].at - since >= timedelta(seconds=22)
    rig.turn()
    rig.run(60_000)
    assert rig.states() == {"web-0-0": "Failed", "web-0-1": "Running"}
    assert rig.plane.ledger("node-a").used
    rig.silent = set()
    rig.register("node-a")
    rig.turn()
    assert rig.states() == {"web-0-1": "Running"}
    assert not rig.plane.ledger("node-a").used


def test_work_that_does_not_start_in_its_time_is_stopped_and_placed_again() -> None:
    """By our own clock since it was seen bound; only where an agent can stop it. [A7, C7.6]"""
    controller, quick = (
        RepairController(),
        msgspec.structs.replace(TEMPLATE, startup_deadline_seconds=60),
    )
    bound = replica(State.BOUND, template=quick)

    def asked(after_ms: int, machine: Node | None = None) -> Any:
        snapshot = view(machine or node(), bound)
        return controller.reconcile(snapshot, KEY, TERM, later(after_ms))

    assert asked(1_000_000).wake_after_ms == 60_000
    assert asked(1_059_999).requests == ()
    for phase in (NodePhase.SUSPECT, NodePhase.UNKNOWN):
        assert asked(1_060_000, node(phase=phase, mark=1)).requests == ()
    (evict,) = asked(1_060_000).requests
    assert isinstance(evict, Evict)
    assert evict.evidence == "not started on node-a within startupDeadlineSeconds=60"
    # Another replica of that name has its own time.
    metadata = msgspec.structs.replace(bound.metadata, uid="uid-other")
    bound = msgspec.structs.replace(bound, metadata=metadata)
    assert asked(1_060_000).wake_after_ms == 60_000


def test_a_member_is_stopped_once_its_gang_is_over_or_runs_without_it() -> None:
    """[G5]"""
    controller = RepairController()
    member = replica(State.RUNNING)
    metadata = msgspec.structs.replace(member.metadata, resource_version="10")
    spec = msgspec.structs.replace(member.spec, gang="web")
    member = msgspec.structs.replace(member, metadata=metadata, spec=spec)

    def asked(phase: ReservationPhase | None, *named: str, revision: int = 100) -> Any:
        uid = spec.workload_uid
        owner = ReservationOwner("Workload", "web", uid)
        held = ReservationSpec(owner, Intent.GANG, timestamp(0), min_available=2)
        status = ReservationStatus(
            phase=phase or ReservationPhase.HELD, claims=tuple(Claim(replica=it) for it in named)
        )
        record = Reservation(meta("web-gang", member.namespace), spec=held, status=status)
        found = (node(), member) if phase is None else (node(), member, record)
        snapshot = msgspec.structs.replace(view(*found), revision=revision)
        return controller.reconcile(snapshot, KEY, TERM, later(0))

    runs = ReservationPhase.CONSUMED
    assert asked(runs, member.name, "web-1-0").requests == ()
    assert asked(ReservationPhase.COMMITTED, member.name).requests == ()
    assert asked(None, revision=0).requests == (), "the record may not have arrived yet"
    for plan, why in (
        (asked(ReservationPhase.RELEASED, member.name), "gang web is over"),
        (asked(runs, "web-1-0"), "gang web runs without it"),
        (asked(None), "gang web has no record"),
    ):
        (evict,) = plan.requests
        assert (evict.cause, why in evict.evidence) == (Cause.REPAIR, True)


def test_running_work_that_its_node_forgot_is_stopped_and_released() -> None:
    """The node was fenced before its replica became Unknown, and lives on. [I2, H2, H6]"""
    rig = Rig([RepairController()])
    rig.plane.tenant()
    machine = rig.plane.node("node-a")
    running = rig.plane.replica(rig.plane.workload(replicas=1))
    rig.bind_all()
    rig.agents()
    term = rig.plane.term(NODES)
    for action, mark in ((NodeAction.MARK, 0), (NodeAction.FENCE, 1)):
        judge = JudgeNode("node-a", machine.metadata.uid, action, term, mark)
        accepted(rig.plane.ask(NODES, judge))
    rig.run()
    assert rig.states() == {"web-0-0": "Running"}
    rig.register("node-a")
    rig.run()
    ended = rig.get("replicas", running.name, "acme")
    steps = [(it.to, it.by, it.reason) for it in ended.status.transitions[-2:]]
    assert steps == [
        (State.STOPPING, "system:controller:repair", "Repair"),
        (State.RELEASED, "system:controller:repair", "NodeReturned"),
    ]
    assert not rig.plane.ledger("node-a").used
