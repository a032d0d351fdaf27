"""The recount finds nothing on a sound plane, and finds each ledger that was tampered with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.commit.record_encoding import Epoch, encode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.region import Pool, Region, RegionSpec
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.ledger import Amounts, TenantUse
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    DropReservation,
    Evict,
    HoldCapacity,
    JudgeNode,
    Move,
    NodeAction,
    Remove,
    Reserve,
    StopAndReserve,
    Unreserve,
    Update,
)
from holdfast.model.transaction import Compare, Delete, Put, Record, Transaction
from holdfast.store.contract import KEY_END
from tests.plane import (
    ADMIN,
    NODES,
    SCHEDULER,
    WORKLOADS,
    Plane,
    accepted,
    bind,
    refused,
    target,
    template,
)

GPU = (DeviceRequest(device_class="gpu", memory="16Gi"),)


def records(plane: Plane) -> tuple[Record, ...]:
    return plane.store.range("", KEY_END).records


class Furnished:
    """A plane with a bit of everything that counts in a ledger, checked after each step."""

    def __init__(self) -> None:
        self.plane = plane = Plane()
        plane.region()
        pool = Pool(name="vault", protected_for=Protection(tenants=("acme",)))
        plane.create(Region(ObjectMeta(name="eu-north"), spec=RegionSpec(pools=(pool,))))
        plane.create(
            PriorityClass(
                ObjectMeta(name="spot"),
                spec=PriorityClassSpec(value=-10, capacity_class=CapacityClass.RECLAIMABLE),
            )
        )
        plane.create(
            PriorityClass(ObjectMeta(name="high"), spec=PriorityClassSpec(value=10, preempts=True))
        )
        plane.tenant()
        plane.tenant("globex")
        plane.quota(hard={"cpu": "16", "gpu": "4"}, borrowing={"cpu": "4"}, cohort="both")
        plane.quota("globex", hard={"cpu": "8"}, cohort="both")
        self.term = plane.term(SCHEDULER)
        self.node = plane.node(gpus=2)
        plane.node("node-b")
        self.web = plane.workload(
            replicas=8,
            template=template(ports=(Port(name="http", port=8080),)),
            disruption=Disruption(max_unavailable=1),
        )
        self.train = plane.workload("train", replicas=4, template=template(devices=GPU))
        self.spot = plane.workload(
            "spot", "globex", replicas=4, template=template(priority_class="spot")
        )
        # It takes a whole node, so that whatever is there has to go first.
        whole = template(cpu="8", priority_class="high")
        self.high = plane.workload("high", template=whole, replicas=2)
        self.check()

    def check(self) -> None:
        assert recount(records(self.plane)) == []
        assert excesses(records(self.plane)) == []

    def ask(self, identity: Any, request: Any) -> Any:
        found = accepted(self.plane.ask(identity, request))
        self.check()
        return found

    def bound(self, replica: Any, node: Any = None, **more: Any) -> Any:
        request = bind(replica, node or self.node, self.term, **more)
        return self.ask(SCHEDULER, request)

    def preempted(self, victim: Any) -> Any:
        """The victim after it was stopped to make way for a replica of `high`."""
        high = self.plane.replica(self.high)
        place = (self.node.name, self.node.metadata.uid)
        deadline = self.plane.at(60)
        self.ask(
            SCHEDULER,
            StopAndReserve(target(high), *place, (target(victim),), self.term, deadline),
        )
        return self.plane.get(victim)

    def moved(self, replica: Any, *states: State) -> Any:
        for state in states:
            move = Move(target(replica), state, incarnation=1)
            replica = self.ask(who.agent(replica.status.binding.node), move)
        return replica


def test_bind_run_and_release() -> None:
    """[INV3, INV4]"""
    it = Furnished()
    web, train = it.plane.replica(it.web), it.plane.replica(it.train)
    spot = it.plane.replica(it.spot)
    for replica in (web, train, spot):
        it.moved(it.bound(replica), State.RUNNING, State.FAILED, State.RELEASED)
    ledger = it.plane.ledger("node-a")
    assert ledger.used == {}
    assert all(not slot.owners for slot in ledger.devices.values())


def test_reserve_bind_and_give_back() -> None:
    """[C6.5]"""
    it = Furnished()
    one, two = it.plane.replica(it.train, 0), it.plane.replica(it.train, 1)
    deadline = it.plane.at(60)
    for replica, ordinal in ((one, 0), (two, 1)):
        request = Reserve(target(replica), "node-a", it.node.metadata.uid, it.term, deadline)
        reserved = it.ask(SCHEDULER, request)
        assert reserved.status.state is State.RESERVED
        if ordinal == 0:
            it.bound(reserved)
        else:
            it.ask(SCHEDULER, Unreserve(target(reserved), "second thoughts", it.term))


def test_capacity_held_for_an_owner() -> None:
    it = Furnished()
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    claims = (
        Claim(node="node-a", charge={"cpu": 500, "replicas": 1}),
        Claim(
            node="node-a",
            charge={"gpu": 1000},
            devices=(DeviceShare(device="gpu-1", device_class="gpu", milli=1000),),
        ),
        Claim(charge={"cpu": 250}),
    )
    held = it.ask(
        SCHEDULER,
        HoldCapacity("acme", owner, Intent.RECOVERY, claims, it.plane.at(60), it.term),
    )
    it.ask(SCHEDULER, DropReservation("acme", held.name, held.metadata.uid, "not needed", it.term))
    assert it.plane.ledger("node-a").used == {}


def test_a_preemption_from_its_victims_to_the_bind() -> None:
    """[G4]"""
    it = Furnished()
    node = it.plane.node("node-c", capacity={"cpu": "8", "memory": "4Gi"})
    victims = [it.bound(it.plane.replica(it.spot, n), node) for n in range(2)]
    high = it.plane.replica(it.high)
    it.ask(
        SCHEDULER,
        StopAndReserve(
            target(high),
            node.name,
            node.metadata.uid,
            tuple(target(v) for v in victims),
            it.term,
            it.plane.at(60),
        ),
    )
    for victim in victims:
        it.moved(it.plane.get(victim), State.RELEASED)
    it.bound(it.plane.get(high), node, reservation=f"{high.name}-preemption")
    ledger = it.plane.ledger("node-c")
    assert (ledger.promised, ledger.leaving) == ({}, {})


def test_a_victim_whose_release_takes_back_what_its_stop_has_noted() -> None:
    """[G4]"""
    it = Furnished()
    stopped = it.preempted(it.moved(it.bound(it.plane.replica(it.spot)), State.RUNNING))
    assert it.plane.ledger("node-a").leaving["cpu"] == 1000
    it.moved(stopped, State.RELEASED)
    assert it.plane.ledger("node-a").leaving == {}


def test_a_victim_that_was_out_of_contact_goes_on_stopping() -> None:
    """What was noted for the preemption must not stay behind, or promises would be worth less."""
    it = Furnished()
    nodes = it.plane.term(NODES)
    stopped = it.preempted(it.moved(it.bound(it.plane.replica(it.spot)), State.RUNNING))
    place = ("node-a", it.node.metadata.uid)
    it.ask(NODES, JudgeNode(*place, NodeAction.MARK, nodes))
    unknown = it.ask(NODES, Move(target(stopped), State.UNKNOWN, mark=1, term=nodes))
    it.ask(NODES, JudgeNode(*place, NodeAction.CLEAR, nodes, mark=1))
    it.moved(unknown, State.STOPPING, State.RELEASED)
    assert it.plane.ledger("node-a").leaving == {}


@pytest.mark.parametrize(
    "claim",
    [
        Claim(charge={"cpu": -1}),
        Claim(node="node-a", charge={"cpu": 1}, consumed=True),
        Claim(charge={"gpu": 1000}, devices=(DeviceShare("gpu-0", "gpu", 1000),)),
    ],
)
def test_a_claim_that_could_not_be_given_back_is_refused(claim: Claim) -> None:
    """It is an error of the caller; it must not stop the server."""
    it = Furnished()
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    request = HoldCapacity("acme", owner, Intent.RECOVERY, (claim,), it.plane.at(60), it.term)
    refused(it.plane.ask(SCHEDULER, request), Reason.INVALID)
    it.check()


def test_a_preemption_cannot_be_reserved_without_victims() -> None:
    """Its claims are promises, which charge nothing; charged, they would never be given back."""
    it = Furnished()
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    deadline = it.plane.at(60)
    hold = HoldCapacity(
        "acme", owner, Intent.PREEMPTION, (Claim(charge={"cpu": 1}),), deadline, it.term
    )
    refused(it.plane.ask(SCHEDULER, hold), Reason.INVALID)
    place = ("node-a", it.node.metadata.uid)
    one = it.plane.replica(it.web)
    reserve = Reserve(target(one), *place, it.term, deadline, Intent.PREEMPTION)
    refused(it.plane.ask(SCHEDULER, reserve), Reason.INVALID)
    it.check()


def test_an_eviction_and_a_deletion() -> None:
    it = Furnished()
    replica = it.moved(it.bound(it.plane.replica(it.web)), State.RUNNING)
    term = it.plane.term(WORKLOADS)
    stopped = it.ask(WORKLOADS, Evict(target(replica), Cause.SCALE_DOWN, term=term))
    it.ask(ADMIN, Remove("replicas", "acme", stopped.name))
    it.moved(it.plane.get(stopped), State.RELEASED)
    assert it.plane.get(stopped) is None


def test_a_tenant_that_changes_its_cohort_takes_its_sums_along() -> None:
    it = Furnished()
    replica = it.bound(it.plane.replica(it.web))
    quota = it.plane.read("objects/quotas/acme/default")
    spec = msgspec.structs.replace(quota.spec, cohort="", borrowing={})
    it.ask(ADMIN, Update(msgspec.structs.replace(quota, spec=spec)))
    it.moved(replica, State.FAILED, State.RELEASED)
    it.ask(ADMIN, Remove("quotas", "acme", "default"))


def test_a_node_that_changes() -> None:
    it = Furnished()
    it.bound(it.plane.replica(it.train))
    node = it.plane.get(it.node)
    spec = msgspec.structs.replace(node.spec, cordoned=True)
    it.ask(ADMIN, Update(msgspec.structs.replace(node, spec=spec)))
    it.ask(ADMIN, Remove("nodes", "", "node-b"))


# What it finds -----------------------------------------------------------------------------------


def tamper(plane: Plane, key: str, value: Any) -> None:
    """Write past the authority."""
    record = plane.store.get(key)
    modified = record.modified if record is not None else 0
    write = Delete(key) if value is None else Put(key, encode(value))
    plane.store.txn(Transaction((Compare(key, modified),), (write,)))


def changed(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


def _amounts(given: Amounts, **more: int) -> Amounts:
    return {**given, **more}


TAMPERED = {
    "used": ("ledgers/node/node-a", lambda v: changed(v, used=_amounts(v.used, cpu=1)), "used"),
    "allocatable": (
        "ledgers/node/node-a",
        lambda v: changed(v, allocatable=_amounts(v.allocatable, cpu=99_000)),
        "allocatable",
    ),
    "gate": (
        "ledgers/node/node-a",
        lambda v: changed(v, gate=changed(v.gate, cordoned=True)),
        "gate",
    ),
    "owner": (
        "ledgers/node/node-a",
        lambda v: changed(
            v,
            devices={**v.devices, "gpu-0": changed(v.devices["gpu-0"], owners={"somebody": 1000})},
        ),
        "gpu-0",
    ),
    "device": ("ledgers/node/node-a", lambda v: changed(v, devices={}), "devices"),
    "port": ("ledgers/node/node-a", lambda v: changed(v, ports={"TCP/1": "x"}), "ports"),
    "promise": (
        "ledgers/node/node-a",
        lambda v: changed(v, promised={"x": {"cpu": 1}}),
        "promised",
    ),
    "leaving": ("ledgers/node/node-a", lambda v: changed(v, leaving={"cpu": 1}), "leaving"),
    "lost ledger": ("ledgers/node/node-a", lambda v: None, "no ledger"),
    "lost node": ("objects/nodes/node-a", lambda v: None, "no object"),
    "quota sum": (
        "ledgers/quota/both",
        lambda v: changed(v, used={**v.used, "acme": TenantUse(hard={"cpu": 1})}),
        "acme",
    ),
    "quota limit": ("ledgers/quota/both", lambda v: changed(v, limits={}), "limits"),
    "left behind": (
        "ledgers/quota/elsewhere",
        lambda v: {"used": {"acme": {"hard": {"cpu": 1}}}},
        "elsewhere",
    ),
    "count": ("ledgers/objects/acme", lambda v: changed(v, counts={"workloads": 1}), "counts"),
    "replicas": ("ledgers/disruption/acme/web", lambda v: changed(v, replicas=7), "replicas"),
    "healthy": ("ledgers/disruption/acme/web", lambda v: changed(v, healthy=1), "healthy"),
    "pages": ("ledgers/disruption/acme/web", lambda v: changed(v, pages=(3,)), "pages"),
    "type": (
        "ledgers/disruption/acme/web",
        lambda v: changed(v, type=WorkloadType.JOB),
        "type",
    ),
    "budget": ("ledgers/disruption/acme/web", lambda v: changed(v, allowed=7), "allowed"),
    "orphans": ("objects/workloads/acme/train", lambda v: None, "is gone"),
    "pools": ("ledgers/pools/all", lambda v: changed(v, protected={}), "protected"),
    "epoch": ("epochs/scheduler:one", lambda v: Epoch(epoch=9, holder="x"), "epoch"),
    "no epoch": ("epochs/scheduler:one", lambda v: None, "no epoch"),
    "a binding": (
        "objects/replicas/acme/train-0-0",
        lambda v: changed(v, status=changed(v.status, state=State.RELEASED)),
        "used",
    ),
    "a reservation": (
        "objects/reservations/acme/train-1-0-bind",
        lambda v: None,
        "is Reserved, and train-1-0-bind holds nothing",
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_found(what: str) -> None:
    it = Furnished()
    it.bound(it.plane.replica(it.train))
    one = it.plane.replica(it.train, 1)
    place = ("node-a", it.node.metadata.uid)
    it.ask(SCHEDULER, Reserve(target(one), *place, it.term, it.plane.at(60)))
    key, change, word = TAMPERED[what]
    tamper(it.plane, key, change(it.plane.read(key)))
    found = recount(records(it.plane))
    assert any(word in sentence for sentence in found), found


def test_a_device_with_two_owners_is_found_even_if_the_ledger_agrees() -> None:
    """[INV1]"""
    it = Furnished()
    first = it.bound(it.plane.replica(it.train))
    second = it.plane.replica(it.train, 1)
    status = changed(second.status, state=State.BOUND, binding=first.status.binding)
    tamper(it.plane, keys.key_of(second), changed(second, status=status))
    ledger = it.plane.ledger("node-a")
    both = {first.metadata.uid: 1000, second.metadata.uid: 1000}
    slots = {**ledger.devices, "gpu-0": changed(ledger.devices["gpu-0"], owners=both)}
    tamper(it.plane, keys.node_ledger("node-a"), changed(ledger, devices=slots))
    assert any("more than whole" in sentence for sentence in recount(records(it.plane)))


@pytest.mark.parametrize("whose", ["node", "tenant", "cohort"])
def test_what_is_charged_beyond_a_limit_is_an_excess(whose: str) -> None:
    """[INV3, INV4]"""
    it = Furnished()
    if whose == "node":
        ledger = it.plane.ledger("node-a")
        tamper(it.plane, keys.node_ledger("node-a"), changed(ledger, used={"cpu": 8_001}))
    else:
        key = keys.quota_ledger("both")
        used = {"acme": TenantUse(hard={"cpu": 20_001 if whose == "tenant" else 20_000})}
        if whose == "cohort":
            used["globex"] = TenantUse(hard={"cpu": 4_001})
        tamper(it.plane, key, changed(it.plane.read(key), used=used))
    found = excesses(records(it.plane))
    assert len(found) == 1
    assert whose in found[0]
