"""The bind: one transaction, all the rules, nothing taken twice."""

from __future__ import annotations

from holdfast.model import keys
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.lifecycle import Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, AcquireLease, Bind, BindTogether, Term
from tests.plane import ADMIN, SCHEDULER, Plane, accepted, bind, refused, target, template


def furnished(**spec: object) -> tuple[Plane, Term]:
    plane = Plane()
    plane.region()
    plane.tenant()
    return plane, plane.term(SCHEDULER)


def test_a_bind_takes_node_and_quota_and_says_on_what_it_rested() -> None:
    """[C4, C8, D1, F8, A8]"""
    plane, term = furnished()
    plane.quota(hard={"cpu": "4"})
    node, replica = plane.node(), plane.replica(plane.workload())
    rested_on = {"snapshot_revision": 7, "snapshot_age_ms": 12, "node_revision": 5}
    after = plane.bound(replica, node, term, **rested_on)
    assert after.status.state is State.BOUND
    assert after.status.stage is Stage.BOUND
    assert after.status.binding.node == "node-a"
    assert (after.status.binding.epoch, after.status.binding.snapshot_revision) == (1, 7)
    assert after.status.binding.node_revision == 5
    assert plane.ledger("node-a").used == {"cpu": 1000, "memory": 2**30, "replicas": 1}
    ledger = plane.read(keys.quota_ledger("tenant:acme"))
    assert ledger.used["acme"].hard["cpu"] == 1000
    last = after.status.transitions[-1]
    assert (last.from_state, last.to, last.by) == (State.PENDING, State.BOUND, SCHEDULER.name)
    assert last.revision > 0


def test_a_bind_compares_every_record_it_rests_on() -> None:
    """[C4]"""
    plane, term = furnished()
    node, replica = plane.node(), plane.replica(plane.workload())
    plane.bound(replica, node, term)
    compared = {compare.key for compare in plane.transactions[-1].compares}
    assert compared >= {
        "objects/replicas/acme/web-0-0",
        "objects/tenants/acme",
        "objects/regions/eu-west",
        "objects/quotas/acme/default",
        "objects/priorityclasses/default",
        "ledgers/node/node-a",
        "ledgers/quota/tenant:acme",
        "ledgers/grant/acme",
        "epochs/scheduler:one",
    }


def test_the_last_device_goes_to_one_of_two_in_the_same_group() -> None:
    """[C6.1, INV1]"""
    plane, term = furnished()
    node = plane.node(gpus=1)
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    workload = plane.workload(template=template(devices=gpu), replicas=2)
    one, two = plane.replica(workload, 0), plane.replica(workload, 1)
    first, second = plane.ask_all(
        (SCHEDULER, bind(one, node, term)), (SCHEDULER, bind(two, node, term))
    )
    winner = accepted(first)
    assert winner.status.binding.devices[0].device == "gpu-0"
    refusal = refused(second, Reason.DEVICE_TAKEN)
    assert refusal.details["node"] == "node-a"
    assert plane.ledger("node-a").devices["gpu-0"].owners == {one.metadata.uid: 1000}


def test_a_bind_beyond_quota_is_refused_and_takes_nothing() -> None:
    """[C6.6, D1]"""
    plane, term = furnished()
    plane.quota(hard={"cpu": "1"})
    node, workload = plane.node(), plane.workload(replicas=2)
    plane.bound(plane.replica(workload, 0), node, term)
    answer = plane.ask(SCHEDULER, bind(plane.replica(workload, 1), node, term))
    refused(answer, Reason.QUOTA_EXCEEDED)
    assert plane.ledger("node-a").used["cpu"] == 1000


def test_the_same_operation_twice_binds_once() -> None:
    """[C2, E5, INV3]"""
    plane, term = furnished()
    node, replica = plane.node(), plane.replica(plane.workload())
    request = bind(replica, node, term, operation="one/bind")
    accepted(plane.ask(SCHEDULER, request))
    again = plane.ask(SCHEDULER, request)
    assert again.replayed
    assert plane.ledger("node-a").used["cpu"] == 1000


def test_an_operation_id_for_another_request_is_refused() -> None:
    """[A2]"""
    plane, term = furnished()
    one, two = plane.node("node-a"), plane.node("node-b")
    replica = plane.replica(plane.workload())
    accepted(plane.ask(SCHEDULER, bind(replica, one, term, operation="x")))
    answer = plane.ask(SCHEDULER, bind(replica, two, term, operation="x"))
    refused(answer, Reason.OPERATION_REUSED)


def test_a_bind_without_the_current_epoch_is_refused() -> None:
    """[K1, K3, INV7]"""
    plane, term = furnished()
    node, replica = plane.node(), plane.replica(plane.workload())
    stale = Term(term.scope, term.epoch + 1)
    refused(plane.ask(SCHEDULER, bind(replica, node, stale)), Reason.STALE_EPOCH)
    refused(plane.ask(ADMIN, bind(replica, node, term)), Reason.NOT_OWNER)


def test_a_former_leader_learns_that_it_no_longer_leads_whatever_became_of_the_replica() -> None:
    """What it bound before counts when it retries. [K2, K3, SC7]"""
    plane, term = furnished()
    node, workload = plane.node(), plane.workload(replicas=2)
    kept, lost = plane.replica(workload), plane.replica(workload, ordinal=1)
    mine = bind(kept, node, term, operation="mine")
    accepted(plane.ask(SCHEDULER, mine))
    taken = AcquireLease(term.scope, 10_000, term.epoch)
    later = Term(term.scope, accepted(plane.ask(SCHEDULER, taken)).spec.epoch)
    assert later.epoch > term.epoch
    plane.bound(lost, node, later)
    refused(plane.ask(SCHEDULER, bind(lost, node, term, operation="late")), Reason.STALE_EPOCH)
    refused(plane.ask(SCHEDULER, bind(lost, node, later, operation="late")), Reason.STALE_REPLICA)
    answer = plane.ask(SCHEDULER, mine)
    assert isinstance(answer, Accepted)
    assert answer.replayed


def test_an_observation_beyond_its_maximum_age_is_refused() -> None:
    """[C5]"""
    plane, term = furnished()
    node, replica = plane.node(), plane.replica(plane.workload())
    answer = plane.ask(SCHEDULER, bind(replica, node, term, snapshot_age_ms=30_001))
    refused(answer, Reason.TOO_OLD)


def test_data_that_must_stay_in_the_eu_is_bound_nowhere_else() -> None:
    """[C6.2, B2, INV5, J1]"""
    plane, term = furnished()
    plane.region("us-east", "us")
    eu, us = plane.node(), plane.node("node-us", region="us-east", zone="us-east-a")
    nowhere = plane.node("node-x", region="mars", zone="mars-a")
    workload = plane.workload(template=template(placement=Placement(residency="eu")))
    replica = plane.replica(workload)
    refused(plane.ask(SCHEDULER, bind(replica, us, term)), Reason.RESIDENCY_FORBIDDEN)
    refused(plane.ask(SCHEDULER, bind(replica, nowhere, term)), Reason.RESIDENCY_UNKNOWN)
    plane.bound(replica, eu, term)


def test_a_gang_is_bound_whole_or_not_at_all() -> None:
    """[G5]"""
    plane, term = furnished()
    node = plane.node(capacity={"cpu": "2", "memory": "8Gi"})
    workload = plane.workload(replicas=3)
    members = [plane.replica(workload, i) for i in range(3)]
    binds = tuple(bind(member, node, term) for member in members)
    refused(plane.ask(SCHEDULER, BindTogether(binds)), Reason.NODE_FULL)
    assert plane.ledger("node-a").used == {}
    answer = plane.ask(SCHEDULER, BindTogether(binds[:2]))
    accepted(answer)
    assert [obj.status.state for obj in answer.objects] == [State.BOUND, State.BOUND]


def test_a_replica_is_bound_once() -> None:
    """[C6.8]"""
    plane, term = furnished()
    one, two = plane.node("node-a"), plane.node("node-b")
    replica = plane.replica(plane.workload())
    after = plane.bound(replica, one, term)
    refused(plane.ask(SCHEDULER, bind(replica, two, term)), Reason.STALE_REPLICA)
    request = Bind(target(after), two.name, two.metadata.uid, term)
    refused(plane.ask(SCHEDULER, request), Reason.WRONG_STATE)
