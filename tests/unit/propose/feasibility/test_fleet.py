"""The fleet adds up what the commit's ledgers say, also while only some changes have arrived."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.model.kinds.node import Device, Node, NodePhase, NodeSpec
from holdfast.model.kinds.replica import Binding, DeviceShare, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.lifecycle import CHARGED, Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Allocation, claim, demand_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.cache import ObjectChange
from holdfast.propose.feasibility.fleet import ASSUMED_MS, Fleet
from tests.plane import template

GPU = DeviceShare(device="gpu-0", device_class="gpu", milli=1000)
WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def node(name: str = "n", **status: Any) -> Node:
    spec = NodeSpec(
        capacity={"cpu": "4", "memory": "8Gi"}, devices=(Device(id="gpu-0", device_class="gpu"),)
    )
    made = Node(ObjectMeta(name=name, uid=f"uid-{name}"), spec=spec)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, **status))


def replica(state: State = State.BOUND, uid: str = "r", where: str = "n", **more: Any) -> Replica:
    binding = Binding(
        node=where,
        node_uid=f"uid-{where}",
        charge={"cpu": 1000, "replicas": 1, **({"gpu": 1000} if "devices" in more else {})},
        devices=more.pop("devices", ()),
        ports=more.pop("ports", ()),
    )
    status = ReplicaStatus(state=state, binding=None if state is State.PENDING else binding, **more)
    spec = ReplicaSpec(workload="w", workload_uid="w", template=template())
    return Replica(ObjectMeta(name=uid, namespace="acme", uid=uid), spec=spec, status=status)


def reservation(intent: Intent, *, consumed: bool = False, **more: Any) -> Reservation:
    spec = ReservationSpec(
        owner=ReservationOwner(kind="Replica", name="x", uid="x"), intent=intent, deadline=WHEN
    )
    claims = (
        Claim(
            node="n",
            charge={"cpu": 2000, "gpu": 1000},
            devices=(GPU,),
            ports=("TCP/80",),
            consumed=consumed,
        ),
    )
    meta = ObjectMeta(name="x-held", namespace="acme", uid="held")
    return Reservation(meta, spec=spec, status=ReservationStatus(claims=claims, **more))


def fleet(*objects: Any) -> Fleet:
    made = Fleet()
    for obj in objects:
        apply(made, None, obj)
    return made


def apply(made: Fleet, before: Any, after: Any) -> list[str]:
    plural = {Node: "nodes", Replica: "replicas"}.get(type(after or before), "reservations")
    freed = made.notice(ObjectChange(plural, before, after))
    agrees(made)
    return freed


def agrees(made: Fleet) -> None:
    """The columns always say what the ledgers say: sums, devices and ports."""
    columns = made.columns
    for site in made:
        free = [int(units) for units in columns.free[:, site.row]]
        assert free == [site.ledger.free(resource) for resource in columns.resources.values]
        devices = [slot.free() for _, slot in sorted(site.ledger.devices.items())]
        assert columns.devices.free[site.row][: len(devices)].tolist() == devices
        ports = site.ledger.ports | site.ledger.promised_ports
        assert (site.row in columns.ports.taken("TCP/80", settled=False)) == ("TCP/80" in ports)
        assert bool(columns.shunned[site.row]) == (site.shunned is not None)


def used(made: Fleet, name: str = "n") -> dict[str, int]:
    site = made.get(name)
    assert site is not None
    return site.ledger.used


def test_charged_replicas_hold_their_share_and_others_do_not() -> None:
    for state in State:
        made = fleet(node(), replica(state))
        holds = state in CHARGED and state is not State.PENDING
        assert used(made) == ({"cpu": 1000, "replicas": 1} if holds else {}), state


def test_a_replica_may_arrive_before_its_node() -> None:
    made = fleet(replica(), node())
    assert used(made) == {"cpu": 1000, "replicas": 1}
    apply(made, node(), None)
    assert made.get("n") is None
    apply(made, None, node())
    assert used(made) == {"cpu": 1000, "replicas": 1}


def test_what_is_released_is_free_and_its_node_is_named() -> None:
    made = fleet(node(), replica())
    assert apply(made, replica(), replica(State.RUNNING)) == []
    assert apply(made, replica(State.RUNNING), replica(State.RELEASED)) == ["n"]
    assert used(made) == {}
    assert apply(made, replica(State.RELEASED), None) == []


def test_reservations_hold_what_they_claim_until_it_is_consumed_or_released() -> None:
    held = reservation(Intent.RECOVERY)
    made = fleet(node(), held)
    site = made.get("n")
    assert site is not None
    assert site.ledger.used == {"cpu": 2000}
    assert site.ledger.devices["gpu-0"].free() == 0
    assert site.ledger.ports == {"TCP/80": "held/0"}
    assert apply(made, held, reservation(Intent.RECOVERY, consumed=True)) == ["n"]
    assert site.ledger.used == {}
    apply(made, None, held)
    apply(made, held, reservation(Intent.RECOVERY, phase=ReservationPhase.RELEASED))
    assert site.ledger.used == {}


def test_a_binding_that_arrives_before_its_claim_is_gone_counts_twice_for_a_moment() -> None:
    """It errs towards taken: nothing breaks, and the next change corrects it."""
    bound = replica(devices=(GPU,), ports=("TCP/80",))
    made = fleet(node(), reservation(Intent.BIND), bound)
    site = made.get("n")
    assert site is not None
    assert site.ledger.devices["gpu-0"].free() < 0
    apply(made, reservation(Intent.BIND), reservation(Intent.BIND, consumed=True))
    assert site.ledger.devices["gpu-0"].owners == {"r": 1000}
    assert site.ledger.ports == {"TCP/80": "r"}


def test_a_device_that_the_node_does_not_list_breaks_nothing() -> None:
    gone = DeviceShare(device="gpu-9", device_class="gpu", milli=1000)
    made = fleet(node(), replica(devices=(gone,)))
    assert used(made) == {"cpu": 1000, "replicas": 1}


def test_a_promised_place_is_for_its_holder_only() -> None:
    """The victims still hold it, and what they release is promised."""
    victim = replica(State.STOPPING, cause=Cause.PREEMPTION, devices=(GPU,))
    made = fleet(node(), reservation(Intent.PREEMPTION), victim)
    site = made.get("n")
    assert site is not None
    wanted = demand_of(template(devices=(DeviceRequest(device_class="gpu"),)))
    assert isinstance(claim(site.ledger, wanted), Refusal)
    made.assume("x", KEY, "n", HELD, 0)
    agrees(made)
    made.unassume("x")
    agrees(made)
    apply(made, victim, replica(State.RELEASED))
    assert isinstance(claim(site.ledger, wanted), Refusal), "promised to the one it was freed for"
    assert site.ledger.free("cpu") == 2000
    assert isinstance(claim(site.ledger, wanted, None, "held"), Allocation)
    promise = reservation(Intent.PREEMPTION)
    apply(made, promise, reservation(Intent.PREEMPTION, phase=ReservationPhase.RELEASED))
    assert site.ledger.free("cpu") == 4000


# Assumptions -------------------------------------------------------------------------------------

HELD = Allocation(charge={"cpu": 1000, "replicas": 1})
KEY = ("acme", "r")


def test_an_assumed_place_counts_until_it_is_seen_and_then_once() -> None:
    """[F4]"""
    made = fleet(node(), replica(State.PENDING))
    made.assume("r", KEY, "n", HELD, 0)
    assert used(made) == {"cpu": 1000, "replicas": 1}
    assert apply(made, replica(State.PENDING), replica()) == []
    assert used(made) == {"cpu": 1000, "replicas": 1}
    assert made.assumed("r") is None


def test_a_replica_that_was_bound_elsewhere_frees_the_assumed_place() -> None:
    """[F4]"""
    made = fleet(node("n"), node("m"), replica(State.PENDING))
    made.assume("r", KEY, "m", HELD, 0)
    assert apply(made, replica(State.PENDING), replica(where="n")) == ["m"]
    assert used(made, "m") == {}
    assert used(made, "n") == {"cpu": 1000, "replicas": 1}


def test_assumptions_are_taken_back_or_become_too_old_in_the_order_of_time() -> None:
    """[F4]"""
    made = fleet(node())
    for index, uid in enumerate(("a", "b", "c")):
        made.assume(uid, ("acme", uid), "n", HELD, index * 1_000)
    assert made.unassume("b") == "n"
    assert made.unassume("b") is None
    assert used(made)["cpu"] == 2000
    made.renew("a", 5_000)
    made.renew("nobody", 5_000)
    assert made.next_ms == ASSUMED_MS + 2_000
    assert made.overdue(ASSUMED_MS + 1_999) == []
    assert made.overdue(ASSUMED_MS + 2_000) == ["c"]
    assert made.overdue(ASSUMED_MS + 5_000) == ["c", "a"]


def test_a_refused_node_is_avoided_until_it_changes() -> None:
    """[C4]"""
    made = fleet(node())
    made.shun("n", Refusal(Reason.NODE_FULL, "full"), 0)
    site = made.get("n")
    assert site is not None
    assert site.shunned is not None
    apply(made, None, replica())
    assert site.shunned is None
    made.shun("gone", Refusal(Reason.NODE_FULL, "full"), 0)


def test_only_changes_that_matter_to_placement_wake_replicas() -> None:
    made = fleet(node())
    assert apply(made, node(), node(agent_version="2")) == []
    assert apply(made, node(), node(phase=NodePhase.SUSPECT)) == ["n"]
    site = made.get("n")
    assert site is not None
    assert site.empty.gate.phase is NodePhase.SUSPECT


def test_the_victims_of_a_withdrawn_promise_may_be_asked_for_again() -> None:
    """As they are by then; and what does leave is no candidate any more. [G4]"""
    running = replica(State.RUNNING)
    uid = running.metadata.uid
    made = fleet(node(), running)
    row = made.get("n").row  # type: ignore[union-attr]
    made.promise("preemptor", "n", Allocation({"cpu": 1000}), {uid: Allocation({"cpu": 1000})})
    assert list(made.evictables.on(row)) == []
    spec = msgspec.structs.replace(running.spec, priority=7)
    changed = msgspec.structs.replace(running, spec=spec)
    apply(made, running, changed)
    assert list(made.evictables.on(row)) == [], "its plan is still open"
    made.withdraw("preemptor")
    assert [it.priority for it in made.evictables.on(row)] == [7]
    made.promise("preemptor", "n", Allocation({"cpu": 1000}), {uid: Allocation({"cpu": 1000})})
    status = msgspec.structs.replace(changed.status, state=State.STOPPING, cause=Cause.PREEMPTION)
    apply(made, changed, msgspec.structs.replace(changed, status=status))
    made.withdraw("preemptor")
    assert list(made.evictables.on(row)) == []
