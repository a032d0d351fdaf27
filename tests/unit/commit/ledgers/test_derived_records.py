"""Derived records: what a write of one object changes elsewhere in the same transaction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.model import keys
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.region import Pool
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import ObjectCaps, Quota, QuotaSpec
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Create, Move, Remove, Update
from tests.furnished import ANN, GARBAGE, Furnished, counted
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, Plane, accepted, refused, target, template


def quota_ledger(it: Furnished, cohort: str) -> Any:
    return it.plane.read(keys.quota_ledger(cohort))


def set_quota(it: Furnished, tenant: str = "acme", **spec: Any) -> None:
    """Create or replace the quota of a tenant."""
    quota = Quota(ObjectMeta(name="default", namespace=tenant), spec=QuotaSpec(**spec))
    there = it.get(quota)
    it.yes(ADMIN, Create(quota) if there is None else Update(quota))


def bound_of(it: Furnished, tenant: str, cpu: str) -> Any:
    name = f"w-{tenant}-{cpu}"
    workload = it.plane.workload(name, tenant, template=template(cpu=cpu), replicas=4)
    return it.pending(workload)


# Quota -------------------------------------------------------------------------------------------


def test_a_tenant_takes_its_sums_along_when_it_changes_its_cohort() -> None:
    """One transaction, nothing counted twice and nothing lost. [C6.5, C6.6]"""
    it = Furnished()
    set_quota(it, hard={"cpu": "4"})
    running = it.running()
    before = it.plane.store.revision
    set_quota(it, hard={"cpu": "4"}, cohort="both")
    assert it.plane.store.revision == before + 1
    assert quota_ledger(it, "both").used["acme"].hard["cpu"] == 1000
    assert quota_ledger(it, "tenant:acme").used == {}
    set_quota(it, hard={"cpu": "4"}, cohort="other")
    assert quota_ledger(it, "both").used == {}
    # The binding remembers the old cohort; what it gives back goes where the sums are now.
    it.moved(it.moved(running, State.FAILED), State.RELEASED)
    assert counted(it.plane) == {}
    it.yes(ADMIN, Remove("quotas", "acme", "default"))
    assert quota_ledger(it, "other").limits == {}


def test_deleting_a_quota_lifts_the_limits_and_keeps_the_sums() -> None:
    """[D1]"""
    it = Furnished()
    set_quota(it, hard={"cpu": "1"}, cohort="both")
    it.running()
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    it.yes(ADMIN, Remove("quotas", "acme", "default"))
    assert quota_ledger(it, "tenant:acme").used["acme"].hard["cpu"] == 1000
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_lowering_a_quota_evicts_nothing_and_gives_nothing_more() -> None:
    """[INV3, C6.6]"""
    it = Furnished()
    set_quota(it, hard={"cpu": "4"})
    replicas = [it.running(), it.running()]
    set_quota(it, hard={"cpu": "1"})
    assert [it.get(r).status.state for r in replicas] == [State.RUNNING] * 2
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    it.moved(it.moved(replicas[0], State.FAILED), State.RELEASED)
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    it.moved(it.moved(replicas[1], State.FAILED), State.RELEASED)
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_tenants_of_a_cohort_lend_each_other_what_they_do_not_use() -> None:
    """And never more than all of them have together. [C6.6, INV3]"""
    it = Furnished()
    set_quota(it, hard={"cpu": "2"}, borrowing={"cpu": "1"}, cohort="both")
    set_quota(it, "globex", hard={"cpu": "2"}, cohort="both")
    it.yes(SCHEDULER, it.bind(bound_of(it, "acme", "2")))
    it.yes(SCHEDULER, it.bind(bound_of(it, "acme", "1")))
    refused(it.ask(SCHEDULER, it.bind(bound_of(it, "acme", "500m"))), Reason.QUOTA_EXCEEDED)
    # What was lent is gone for its owner until it comes back.
    refused(it.ask(SCHEDULER, it.bind(bound_of(it, "globex", "2"))), Reason.COHORT_EXHAUSTED)
    it.yes(SCHEDULER, it.bind(bound_of(it, "globex", "1")))


def test_a_change_of_quota_between_decision_and_commit_is_noticed() -> None:
    """[C4, C6.6]"""
    it = Furnished()
    set_quota(it, hard={"cpu": "4"})
    replica = it.pending()
    stale, it.plane.authority = it.plane.authority, it.plane.new_authority()
    set_quota(it, hard={"cpu": "500m"})
    it.plane.authority = stale
    refused(it.ask(SCHEDULER, it.bind(replica)), Reason.QUOTA_EXCEEDED)


# Nodes, regions, workloads -----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["bound", "reserved", "promised"])
def test_a_node_that_holds_something_cannot_be_removed(way: str) -> None:
    """[INV4]"""
    it = Furnished(cpus=1)
    if way == "promised":
        victim = it.running(it.of_class("low"))
        it.yes(SCHEDULER, it.preempt(it.pending(it.of_class("high")), victim))
        it.moved(it.get(victim), State.RELEASED)
        assert it.plane.ledger("node-a").used == {}
    else:
        getattr(it, way)()
    refused(it.ask(ADMIN, Remove("nodes", "", "node-a")), Reason.NOT_ALLOWED)
    assert it.get(it.node) is not None


def test_an_empty_node_goes_with_its_ledger_and_a_new_one_of_its_name_starts_empty() -> None:
    it = Furnished()
    it.released()
    it.yes(ADMIN, Remove("nodes", "", "node-a"))
    assert it.plane.ledger("node-a") is None
    again = it.plane.node()
    assert again.metadata.uid != it.node.metadata.uid
    assert it.plane.ledger("node-a").used == {}
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_CHANGED)


def test_protected_pools_of_all_regions_are_in_one_ledger() -> None:
    """[B6]"""
    it = Furnished()
    region = it.plane.read("objects/regions/eu-west")
    vault = Pool(name="vault", protected_for=Protection(tenants=("acme",)))
    it.updated(region, pools=(vault, Pool(name="general")))
    pools = it.plane.read(keys.pools_ledger())
    assert pools.protected == {"eu-west": {"vault": Protection(tenants=("acme",))}}
    it.updated(region, pools=())
    assert it.plane.read(keys.pools_ledger()).protected == {}


def test_a_budget_follows_the_workload_and_goes_with_it() -> None:
    it = Furnished()
    key = keys.disruption_ledger("acme", "w")
    made = it.plane.workload("w", replicas=4, disruption=Disruption(max_unavailable="50%"))
    assert it.plane.read(key).allowed == 2
    it.updated(made, replicas=10)
    assert it.plane.read(key).allowed == 5
    it.updated(made, disruption=None)
    assert it.plane.read(key).allowed is None
    replica = it.pending(made)
    assert it.plane.read(key).replicas == 1
    it.yes(ADMIN, Remove("workloads", "acme", "w"))
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    it.yes(WORKLOADS, Move(target(it.get(replica)), State.RELEASED, term=it.term(WORKLOADS)))
    remove_finalizers(it, made, WORKLOADS)
    assert it.plane.read(key) is None


def remove_finalizers(it: Furnished, obj: Any, identity: Any) -> None:
    """Take away the finalizers of an object that is being deleted."""
    now = it.get(obj)
    metadata = msgspec.structs.replace(now.metadata, finalizers=())
    it.yes(identity, Update(msgspec.structs.replace(now, metadata=metadata)))


# Counting ----------------------------------------------------------------------------------------


def counts(it: Furnished, tenant: str = "acme") -> dict[str, int]:
    found = it.plane.read(keys.objects_ledger(tenant))
    return {} if found is None else found.counts


def test_every_object_of_a_tenant_is_counted_once_and_uncounted_once() -> None:
    """[B6]"""
    it = Furnished()
    assert counts(it) == {"workloads": 1}
    replica = it.reserved()
    assert counts(it) == {"workloads": 1, "replicas": 1, "reservations": 1}
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    it.yes(WORKLOADS, Move(target(it.get(replica)), State.RELEASED, term=it.term(WORKLOADS)))
    name = replica.status.reservation
    it.yes(GARBAGE, Remove("reservations", "acme", name))
    assert counts(it) == {"workloads": 1}


def test_events_are_not_counted() -> None:
    it = Furnished()
    about = ObjectReference(kind="Workload", namespace="acme", name="web")
    event = Event(ObjectMeta(name="e.1", namespace="acme"), involved_object=about, reason="Scaled")
    it.yes(SCHEDULER, Create(event))
    assert "events" not in counts(it)


@pytest.mark.parametrize("cap", [{"workloads": 2}, {"objects": 2}])
def test_a_tenants_own_caps_hold(cap: dict[str, int]) -> None:
    """[B6]"""
    it = Furnished()
    it.plane.quota("globex", objects=ObjectCaps(**cap))
    # The quota itself is an object of the tenant.
    room = 2 if "workloads" in cap else 1
    for number in range(room):
        it.plane.workload(f"w{number}", "globex")
    with pytest.raises(AssertionError, match="ObjectCapReached"):
        it.plane.workload("more", "globex")
    it.yes(ADMIN, Remove("workloads", "globex", "w0"))
    remove_finalizers(it, it.plane.read("objects/workloads/globex/w0"), WORKLOADS)
    it.plane.workload("more", "globex")


def test_the_planes_own_caps_hold_where_a_tenant_has_none() -> None:
    """[B6]"""
    plane = Plane(settings=PlaneSettings(workloads_per_tenant_max=1, objects_per_tenant_max=3))
    plane.tenant()
    plane.workload("one")
    with pytest.raises(AssertionError, match="cap of 1 workloads"):
        plane.workload("two")
    for number in range(2):
        plane.create(Secret(ObjectMeta(name=f"s{number}", namespace="acme")))
    answer = plane.ask(ADMIN, Create(Secret(ObjectMeta(name="s2", namespace="acme"))))
    refusal = refused(answer, Reason.OBJECT_CAP)
    assert refusal.details == {
        "tenant": "acme",
        "resource": "objects",
        "limit": "3",
        "field": "metadata.namespace",
        "policy": "object-cap",
        "scope": "Tenant acme",
    }


def test_two_at_once_cannot_both_be_the_last_under_a_cap() -> None:
    """[B6]"""
    it = Furnished()
    it.plane.quota("globex", objects=ObjectCaps(workloads=1))
    one, two = (Secret(ObjectMeta(name=name, namespace="globex")) for name in ("one", "two"))
    it.updated(it.plane.read("objects/quotas/globex/default"), objects=ObjectCaps(objects=2))
    first, second = it.plane.ask_all((ADMIN, Create(one)), (ADMIN, Create(two)))
    accepted(first)
    refused(second, Reason.OBJECT_CAP)


def test_servers_that_decide_at_once_do_not_exceed_a_cap_together() -> None:
    """Each counts inside its transaction, so the later one is decided again. [B6]"""
    plane = Plane(settings=PlaneSettings(objects_per_tenant_max=5))
    plane.tenant()
    first, second = plane.authority, plane.new_authority()
    outcomes = []
    for number in range(8):
        # Neither has received what the other did: its view is stale, and it does not know.
        plane.authority = (first, second)[number % 2]
        made = Secret(ObjectMeta(name=f"s{number}", namespace="acme"))
        outcomes.append(plane.ask(ADMIN, Create(made)))
    assert [isinstance(it, Accepted) for it in outcomes] == [True] * 5 + [False] * 3
    assert {it.reason for it in outcomes[5:]} == {Reason.OBJECT_CAP}


def test_a_tenant_that_is_gone_leaves_no_ledgers() -> None:
    it = Furnished()
    it.plane.quota("globex", hard={"cpu": "4"})
    it.yes(ADMIN, Remove("quotas", "globex", "default"))
    assert quota_ledger(it, "tenant:globex") is not None
    tenant = it.plane.read("objects/tenants/globex")
    it.yes(ADMIN, Remove("tenants", "", "globex"))
    remove_finalizers(it, tenant, GARBAGE)
    assert it.get(tenant) is None
    for key in (keys.objects_ledger("globex"), keys.quota_ledger("tenant:globex")):
        assert it.plane.read(key) is None
    assert it.ask(ANN, Create(Secret(ObjectMeta(name="s", namespace="acme")))) is not None
