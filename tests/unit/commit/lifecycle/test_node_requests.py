"""Node requests: what agents and controller:nodes may report, and how the ledger follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ages import Ages
from holdfast.commit.context import PlaneSettings
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import (
    Device,
    Node,
    NodeDrain,
    NodePhase,
    NodeSpec,
    NodeStatus,
    PortShare,
    Protection,
)
from holdfast.model.kinds.placement import Taint, TaintEffect
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta
from holdfast.model.plane import Plane, PlaneRole
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Move, NodeAction, RegisterNode, Update
from tests.furnished import AGENT, ANN, Furnished
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, accepted, refused, target, template

OTHER = who.agent("node-b")


def registration(name: str = "node-a", meta: dict[str, Any] | None = None, **spec: Any) -> Node:
    spec = {"region": "eu-west", "capacity": {"cpu": "8", "memory": "32Gi"}, **spec}
    return Node(ObjectMeta(name=name, **(meta or {})), spec=NodeSpec(**spec))


# Registration ------------------------------------------------------------------------------------


def test_an_agent_registers_its_own_node_and_no_other() -> None:
    """[C6.7]"""
    it = Furnished()
    for identity in (OTHER, ADMIN, ANN, NODES, SCHEDULER, who.server("node-a")):
        refused(it.ask(identity, RegisterNode(registration())), Reason.NOT_OWNER)
    refused(it.ask(AGENT, RegisterNode(registration("node-b"))), Reason.NOT_OWNER)


@pytest.mark.parametrize(
    "plane", [Plane("us", PlaneRole.REGION, "us"), Plane("world", PlaneRole.GLOBAL)]
)
def test_a_node_of_another_region_is_refused_at_its_first_registration(plane: Plane) -> None:
    """One that is registered stays, whatever role its plane got since."""
    it = Furnished()
    it.plane.settings = PlaneSettings(plane=plane)
    it.plane.authority = it.plane.new_authority()
    answer = it.ask(OTHER, RegisterNode(registration("node-b")))
    refused(answer, Reason.REGION_MISMATCH)
    assert str(plane) in answer.message
    it.yes(AGENT, RegisterNode(registration(capacity={"cpu": "16", "memory": "32Gi"})))


def test_a_first_registration_says_where_the_machine_is_and_nothing_of_its_use() -> None:
    """Cordons, taints and protection are the operator's, whatever an agent sends. [C6.7]"""
    it = Furnished()
    given = registration(
        "node-b",
        {"labels": {"rack": "7"}, "annotations": {"a": "b"}, "finalizers": ("x",)},
        zone="eu-west-b",
        pool="gpu",
        cordoned=True,
        taints=(Taint(key="mine"),),
        drain=NodeDrain(reason="me"),
        protected_for=Protection(tenants=("acme",)),
        overcommit={"cpu": 900},
    )
    given = msgspec.structs.replace(
        given, status=NodeStatus(incarnation=9, phase=NodePhase.LOST, marks=4, address="10.0.0.1")
    )
    made = it.yes(OTHER, RegisterNode(given))
    assert (made.spec.region, made.spec.zone, made.spec.pool) == ("eu-west", "eu-west-b", "gpu")
    assert (made.spec.cordoned, made.spec.taints, made.spec.drain) == (False, (), None)
    assert (made.spec.protected_for, made.spec.overcommit) == (None, {})
    assert (made.status.phase, made.status.incarnation, made.status.marks) == (
        NodePhase.READY,
        1,
        0,
    )
    assert made.status.address == "10.0.0.1"
    assert made.metadata.labels == {"rack": "7"}
    assert (made.metadata.annotations, made.metadata.finalizers) == ({}, ())
    assert made.metadata.uid not in ("", "forged")


def test_later_registrations_change_what_the_machine_is_and_nothing_else() -> None:
    """[C6.7]"""
    it = Furnished()
    it.updated(it.node, cordoned=True, taints=(Taint(key="ops"),), pool="gpu")
    before = it.get(it.node)
    given = registration(
        "node-a",
        {"labels": {"tier": "gold"}},
        region="us-east",
        zone="us-east-a",
        pool="general",
        capacity={"cpu": "16", "memory": "64Gi"},
        protected_for=Protection(tenants=("acme",)),
    )
    after = it.yes(AGENT, RegisterNode(given))
    assert after.spec.capacity == {"cpu": "16", "memory": "64Gi"}
    assert after.metadata.generation == before.metadata.generation + 1
    same = msgspec.structs.replace(
        after.spec, capacity=before.spec.capacity, devices=before.spec.devices
    )
    assert same == before.spec
    assert after.metadata.labels == before.metadata.labels
    assert it.plane.ledger("node-a").allocatable["cpu"] == 16_000


def test_a_life_belongs_to_one_agent_and_another_waits_for_the_fence() -> None:
    """It would start once more whatever the first one runs, under the same name. [C6.7, INV2]"""
    it = Furnished()

    def given(installation: str) -> RegisterNode:
        node = registration()
        status = msgspec.structs.replace(node.status, installation=installation)
        return RegisterNode(msgspec.structs.replace(node, status=status))

    # One from before there were names gets hers now.
    assert it.yes(AGENT, given("one")).status.installation == "one"
    for other in ("two", ""):
        refused(it.ask(AGENT, given(other)), Reason.NOT_OWNER)
    it.marked()
    refused(it.ask(AGENT, given("two")), Reason.NOT_OWNER)
    assert it.yes(AGENT, given("one")).status.incarnation == 1
    it.fenced()
    assert it.yes(AGENT, given("two")).status.incarnation == 2
    refused(it.ask(AGENT, given("one")), Reason.NOT_OWNER)


def test_a_registration_that_says_nothing_new_writes_nothing() -> None:
    it = Furnished()
    before = it.plane.store.revision
    it.registered()
    assert it.plane.store.revision == before


def test_a_repeated_registration_begins_one_life() -> None:
    """[INV3]"""
    it = Furnished()
    it.fenced()
    request = RegisterNode(registration(), operation="life-2")
    assert it.yes(AGENT, request).status.incarnation == 2
    assert it.ask(AGENT, request).replayed
    it.yes(AGENT, RegisterNode(registration()))
    assert it.get(it.node).status.incarnation == 2


def test_a_registration_rests_on_a_version_and_not_on_any() -> None:
    """ "0" is any version, which no success would change."""
    it = Furnished()
    seen = {"uid": it.node.metadata.uid, "resource_version": "0"}
    it.plane.grounds = False
    refused(it.ask(AGENT, RegisterNode(registration(meta=seen))), Reason.STALE_OBJECT)


@pytest.mark.parametrize(
    "spec",
    [
        {"capacity": {"cpu": "-4"}},
        {"capacity": {"cpu": "lots"}},
        {"capacity": {"cpu": "4"}, "reserved": {"cpu": "5"}},
        {"region": "Not A Name"},
        {"pool": ""},
        {"devices": tuple(Device(id="gpu-0", device_class="gpu") for _ in range(2))},
        {"devices": (Device(id="gpu-0", device_class="cpu"),)},
        {"devices": tuple(Device(id=f"d-{i}", device_class="gpu") for i in range(2_000))},
    ],
)
def test_an_agent_that_talks_nonsense_is_refused(spec: dict[str, Any]) -> None:
    """What it registers is held to the rules of every other object."""
    it = Furnished()
    refused(it.ask(OTHER, RegisterNode(registration("node-b", **spec))), Reason.INVALID)
    assert it.plane.read("objects/nodes/node-b") is None
    if "region" not in spec and "pool" not in spec:
        refused(it.ask(AGENT, RegisterNode(registration(**spec))), Reason.INVALID)


def test_labels_that_no_selector_could_match_are_refused() -> None:
    it = Furnished()
    given = registration("node-b", {"labels": {"Not A Key!": "x"}})
    refused(it.ask(OTHER, RegisterNode(given)), Reason.INVALID)


# What controller:nodes says ----------------------------------------------------------------------

WORDS = {
    # The phase that each action leads to, by its first phase.
    (NodePhase.READY, NodeAction.SUSPECT): NodePhase.SUSPECT,
    (NodePhase.READY, NodeAction.TRUST): NodePhase.READY,
    (NodePhase.READY, NodeAction.MARK): NodePhase.UNKNOWN,
    (NodePhase.SUSPECT, NodeAction.SUSPECT): NodePhase.SUSPECT,
    (NodePhase.SUSPECT, NodeAction.TRUST): NodePhase.READY,
    (NodePhase.SUSPECT, NodeAction.MARK): NodePhase.UNKNOWN,
    (NodePhase.UNKNOWN, NodeAction.CLEAR): NodePhase.READY,
    (NodePhase.UNKNOWN, NodeAction.FENCE): NodePhase.FENCED,
    (NodePhase.FENCED, NodeAction.LOSE): NodePhase.LOST,
}


def in_phase(phase: NodePhase) -> Furnished:
    it = Furnished()
    match phase:
        case NodePhase.SUSPECT:
            it.yes(NODES, it.judge(NodeAction.SUSPECT))
        case NodePhase.UNKNOWN:
            it.marked()
        case NodePhase.FENCED:
            it.fenced()
        case NodePhase.LOST:
            it.fenced()
            it.yes(NODES, it.judge(NodeAction.LOSE))
    return it


@pytest.mark.parametrize("phase", NodePhase)
@pytest.mark.parametrize("word", NodeAction)
def test_each_action_is_allowed_in_its_phases_only(phase: NodePhase, word: NodeAction) -> None:
    """[A7, H4]"""
    it = in_phase(phase)
    answer = it.ask(NODES, it.judge(word, mark=it.mark_of()))
    expected = WORDS.get((phase, word))
    assert isinstance(answer, Accepted) == (expected is not None)
    after = expected or phase
    assert it.get(it.node).status.phase is after
    assert it.plane.ledger("node-a").gate.phase is after


@pytest.mark.parametrize("word", NodeAction)
def test_only_its_controller_judges_a_node(word: NodeAction) -> None:
    """[C6.7]"""
    it = Furnished()
    request = it.judge(word)
    for identity in (ADMIN, AGENT, REPAIR, SCHEDULER, ANN):
        refused(it.ask(identity, request), Reason.NOT_OWNER)


def test_a_mark_says_who_when_and_under_which_epoch_and_is_in_the_ledger() -> None:
    """[A8, H4]"""
    it = Furnished()
    it.yes(NODES, it.judge(NodeAction.MARK, reason="silent for 9 s" + "." * 5_000))
    mark = it.get(it.node).status.mark
    assert (mark.number, mark.by, mark.epoch, mark.at) == (1, NODES.name, 1, it.plane.at())
    assert mark.reason.startswith("silent for 9 s")
    assert len(mark.reason) < 2_000
    assert it.plane.ledger("node-a").gate.mark == 1


def test_clearing_and_fencing_are_about_the_very_mark() -> None:
    """A verdict on an older mark says nothing about the new one. [C6.4]"""
    it = Furnished()
    first = it.marked()
    it.cleared()
    assert it.get(it.node).status.mark is None
    assert it.plane.ledger("node-a").gate.mark == 0
    second = it.marked()
    assert second == first + 1
    for word in (NodeAction.CLEAR, NodeAction.FENCE):
        for mark in (0, first, second + 1):
            refused(it.ask(NODES, it.judge(word, mark=mark)), Reason.STALE_MARK)
    it.yes(NODES, it.judge(NodeAction.FENCE, mark=second))


@pytest.mark.parametrize(
    "scope",
    [
        {"zones": ("eu-west-b",)},
        {"zones": ("eu-west-a",), "regions": ("us-west",)},
        {"zones": ("eu-west-a",), "controllers": ("repair",)},
        {"zones": ("eu-west-a",), "nodes": ("node-a",)},
        {"zones": ("eu-west-a",), "tenants": ("acme",)},
        {"nodes": ("node-a",)},
    ],
)
def test_a_mark_rests_on_no_approval_for_something_else(scope: dict[str, Any]) -> None:
    """All that the scope names has to match. [H10, L1, L3]"""
    it = Furnished()
    it.approval("other", **scope)
    refused(
        it.ask(NODES, it.judge(NodeAction.MARK, approval="other")), Reason.OVERRIDE_NOT_IN_FORCE
    )
    refused(
        it.ask(NODES, it.judge(NodeAction.MARK, approval="unknown")), Reason.OVERRIDE_NOT_IN_FORCE
    )


HOUR_MS, DAYS_MS = 3_600_000, 40 * 86_400_000


@pytest.mark.parametrize("after_ms, ahead_ms", [(HOUR_MS, 0), (HOUR_MS, -DAYS_MS), (1, DAYS_MS)])
def test_an_approval_ends_by_the_authoritys_calendar_and_by_its_duration(
    after_ms: int, ahead_ms: int
) -> None:
    """A calendar that is set back does not prolong it. [H10, L1, INV9]"""
    it = Furnished()
    ages = it.plane.authority.ages = Ages()
    ages.begin(it.plane.now)
    it.approval(zones=("eu-west-a",), regions=("eu-west",))
    it.yes(NODES, it.judge(NodeAction.SUSPECT, approval="burnt-down"))
    it.plane.elapsed_ms += after_ms
    it.plane.ahead_ms = ahead_ms
    mark = it.judge(NodeAction.MARK, approval="burnt-down")
    refused(it.ask(NODES, mark), Reason.OVERRIDE_NOT_IN_FORCE)


def test_a_node_of_the_same_name_is_another_node() -> None:
    it = Furnished()
    request = msgspec.structs.replace(it.judge(NodeAction.MARK), uid="another")
    refused(it.ask(NODES, request), Reason.NODE_MISSING)
    bind = it.bind(it.pending())
    refused(
        it.ask(SCHEDULER, msgspec.structs.replace(bind, node_uid="another")), Reason.NODE_CHANGED
    )
    refused(it.ask(SCHEDULER, msgspec.structs.replace(bind, node="none")), Reason.NODE_MISSING)


def test_a_repeated_action_is_answered_and_one_that_changes_nothing_is_not_written() -> None:
    """[INV3]"""
    it = Furnished()
    request = it.judge(NodeAction.MARK, operation="mark-1")
    it.yes(NODES, request)
    it.cleared()
    assert it.ask(NODES, request).replayed
    assert it.get(it.node).status.phase is NodePhase.READY
    before = it.plane.store.revision
    it.yes(NODES, it.judge(NodeAction.TRUST))
    assert it.plane.store.revision == before


def test_a_fenced_node_comes_back_in_a_new_life_without_its_mark() -> None:
    """[C7.3, C6.4]"""
    it = Furnished()
    unknown = it.unknown()
    it.fenced()
    back = it.registered()
    assert (back.status.phase, back.status.mark, back.status.incarnation) == (
        NodePhase.READY,
        None,
        2,
    )
    gate = it.plane.ledger("node-a").gate
    assert (gate.phase, gate.mark, gate.incarnation) == (NodePhase.READY, 0, 2)
    # The old copy is not resurrected, whatever the agent says.
    for life in (1, 2):
        for to in (State.RUNNING, State.SUCCEEDED, State.FAILED):
            move = Move(target(unknown), to, incarnation=life)
            refused(it.ask(AGENT, move), Reason.STALE_INCARNATION)
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    it.yes(REPAIR, it.repaired(failed, State.RELEASED))
    assert it.plane.ledger("node-a").used == {}
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_a_registration_before_the_fence_keeps_the_life_and_the_mark() -> None:
    """Coming back is for controller:nodes to believe. [H4]"""
    it = Furnished()
    it.unknown()
    after = it.registered(capacity={"cpu": "4", "memory": "16Gi"})
    assert (after.status.phase, after.status.incarnation) == (NodePhase.UNKNOWN, 1)
    assert after.status.mark is not None


def test_an_agent_says_which_fixed_ports_are_its_node_s() -> None:
    """Later too: a bind that was decided on the old report is refused. [C6.1]"""
    it = Furnished()
    fixed = template(ports=(Port(name="http", port=81),))
    work = it.pending(it.plane.workload("fixed", template=fixed))
    it.registered(port_share=PortShare(index=0, of=2))
    refused(it.ask(SCHEDULER, it.bind(work)), Reason.PORT_NOT_OFFERED)
    it.registered(port_share=PortShare(index=1, of=2))
    it.yes(SCHEDULER, it.bind(work))


def test_repair_frees_nothing_before_the_fence() -> None:
    """[C6.4, H5, I3]"""
    it = Furnished()
    unknown = it.unknown()
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.fenced()
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    released = it.yes(REPAIR, it.repaired(failed, State.RELEASED))
    assert released.status.state is State.RELEASED
    assert it.plane.ledger("node-a").used == {}


# The gate ----------------------------------------------------------------------------------------

CLOSED: dict[str, tuple[dict[str, Any], Reason]] = {
    "cordon": ({"cordoned": True}, Reason.NODE_CORDONED),
    "drain": ({"drain": NodeDrain(reason="disks")}, Reason.NODE_DRAINING),
    "taint": ({"taints": (Taint(key="x"),)}, Reason.TAINTED),
    "no-execute": (
        {"taints": (Taint(key="x", effect=TaintEffect.NO_EXECUTE),)},
        Reason.TAINTED,
    ),
    "protection": (
        {"protected_for": Protection(tenants=("globex",))},
        Reason.TENANCY_FORBIDDEN,
    ),
    "class": (
        {"protected_for": Protection(priority_classes=("high",))},
        Reason.PROTECTED_CAPACITY,
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_bind_that_was_decided_before_the_gate_was_closed_is_refused(name: str) -> None:
    """The change is written to the ledger by its own transaction, which the bind compares; the
    refusal names the revision it rested on and the current one. [C4, H2, SC2]
    """
    spec, reason = CLOSED[name]
    it = Furnished()
    replica = it.pending()
    seen = it.plane.store.revision
    before = it.plane.store.get("objects/nodes/node-a")
    assert before is not None
    node_seen = before.modified
    # Another server accepts the operator's statement between the decision and its commit.
    mine, other = it.plane.authority, it.plane.new_authority()
    bind = it.bind(replica, snapshot_revision=seen, node_revision=node_seen)
    closed: list[Any] = []

    def close(effect: Any) -> Any:
        transaction = getattr(effect, "transaction", None)
        if transaction is not None and transaction.writes and not closed:
            closed.append(effect)
            it.plane.authority, it.plane.spoil = other, None
            node = it.get(it.node)
            wanted = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, **spec))
            accepted(it.plane.ask(ADMIN, Update(wanted)))
            it.plane.authority = mine
        return None

    it.plane.spoil = close
    refusal = refused(it.plane.ask(SCHEDULER, bind), reason)
    assert len(closed) == 1
    ledger = it.plane.store.get("ledgers/node/node-a")
    node = it.plane.store.get("objects/nodes/node-a")
    assert ledger is not None
    assert node is not None
    assert refusal.details["snapshotRevision"] == str(seen)
    assert refusal.details["observedNodeRevision"] == str(node_seen)
    assert refusal.details["nodeRevision"] == str(node.modified)
    assert refusal.details["ledgerRevision"] == str(ledger.modified)
    assert ledger.modified == node.modified > seen >= node_seen
    it.check()
    it.updated(it.node, cordoned=False, drain=None, taints=(), protected_for=None)
    it.yes(SCHEDULER, it.bind(replica))


def test_a_change_of_the_gate_later_in_the_same_group_is_seen() -> None:
    """[C4]"""
    it = Furnished()
    one, two = it.pending(), it.pending()
    node = it.get(it.node)
    cordoned = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, cordoned=True))
    it.plane.authority = it.plane.new_authority()
    first, second, third = it.plane.ask_all(
        (SCHEDULER, it.bind(one)), (ADMIN, Update(cordoned)), (SCHEDULER, it.bind(two))
    )
    accepted(first)
    accepted(second)
    assert first.revision == second.revision
    refusal = refused(third, Reason.NODE_CORDONED)
    assert refusal.details["nodeRevision"] == "uncommitted"


def test_a_status_write_never_gets_in_the_way_of_a_bind() -> None:
    """The ledger is left alone, so the bind's compare still holds. [C4]"""
    it = Furnished()
    before = it.plane.store.get("ledgers/node/node-a")
    node = it.get(it.node)
    ready = Condition(type="Ready", status=ConditionStatus.TRUE)
    status = msgspec.structs.replace(node.status, conditions=(ready,))
    it.yes(NODES, Update(msgspec.structs.replace(node, status=status), subresource="status"))
    assert it.plane.store.get("ledgers/node/node-a") == before


def test_a_device_that_disappears_stays_its_owners_until_proof_of_stop() -> None:
    """[C6.1, INV1]"""
    it = Furnished()
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    train = it.plane.workload("train", template=template(devices=gpu), replicas=4)
    running = it.running(train)
    device = running.status.binding.devices[0].device
    left = tuple(d for d in it.get(it.node).spec.devices if d.id != device)
    it.registered(devices=left)
    slot = it.plane.ledger("node-a").devices[device]
    assert (slot.absent, slot.owners) == (True, {running.metadata.uid: 1000})
    it.running(train)
    refused(it.ask(SCHEDULER, it.bind(it.pending(train))), Reason.DEVICE_TAKEN)
    it.moved(it.moved(running, State.FAILED), State.RELEASED)
    refused(it.ask(SCHEDULER, it.bind(it.pending(train))), Reason.DEVICE_TAKEN)
    it.registered(devices=it.get(it.node).spec.devices)
    assert it.plane.ledger("node-a").devices[device].owners == {}


def test_a_device_that_disappears_and_comes_back_is_still_promised() -> None:
    """[C6.1, G4]"""
    it = Furnished()
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)

    def work(name: str) -> Any:
        made = template(devices=gpu, priority_class=name)
        return it.plane.workload(f"gpu-{name}", template=made, replicas=4)

    low, high = work("low"), work("high")
    victim, _ = it.running(low), it.running(low)
    device = victim.status.binding.devices[0].device
    preemptor = it.pending(high)
    promise = it.yes(SCHEDULER, it.preempt(preemptor, victim))
    it.moved(it.get(victim), State.RELEASED)
    devices = it.get(it.node).spec.devices
    it.registered(devices=tuple(d for d in devices if d.id != device))
    name = promise.name
    refused(it.ask(SCHEDULER, it.bind(it.get(preemptor), reservation=name)), Reason.DEVICE_TAKEN)
    it.registered(devices=devices)
    refused(it.ask(SCHEDULER, it.bind(it.pending(high))), Reason.DEVICE_TAKEN)
    it.yes(SCHEDULER, it.bind(it.get(preemptor), reservation=name))


def test_a_node_that_shrinks_evicts_nothing_and_takes_nothing_more() -> None:
    """[INV4]"""
    it = Furnished()
    it.running()
    it.running()
    it.registered(capacity={"cpu": "1", "memory": "32Gi"})
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_FULL)
    assert it.plane.ledger("node-a").used["cpu"] == 2000
