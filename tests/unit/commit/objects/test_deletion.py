"""Deletion: requested at once, done when no finalizer is left, and never a leak."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import OPERATORS, Identity
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import CONTENTS_FINALIZER, REPLICAS_FINALIZER, ObjectMeta
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    AcquireLease,
    Create,
    Move,
    NodeAction,
    ReleaseLease,
    Remove,
    RenewLease,
    Term,
    Update,
)
from tests.furnished import AGENT, ANN, ANONYMOUS, BOB, GARBAGE, Furnished, counted
from tests.plane import ADMIN, NODES, WORKLOADS, accepted, refused, target, template
from tests.unit.commit.finalizers import remove_finalizers, secret, with_finalizers

OPERATOR = Identity(name="olga", groups=(OPERATORS,))


def test_an_object_without_finalizers_is_deleted_at_once() -> None:
    """[A2]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    gone = it.yes(ANN, Remove("secrets", "acme", "s"))
    assert gone.metadata.uid == made.metadata.uid
    assert it.get(made) is None
    refused(it.ask(ANN, Remove("secrets", "acme", "s")), Reason.MISSING)


@pytest.mark.parametrize("identity", [ANONYMOUS, BOB, AGENT])
def test_a_caller_that_may_not_delete_learns_nothing(identity: Identity) -> None:
    """[B3]"""
    it = Furnished()
    it.yes(ANN, Create(secret()))
    for name in ("s", "none"):
        answer = it.ask(identity, Remove("secrets", "acme", name))
        assert answer.reason in (Reason.UNAUTHENTICATED, Reason.NOT_ALLOWED)


def test_preconditions_name_the_very_object_and_version() -> None:
    """[C2]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    for wrong in ({"uid": "another"}, {"resource_version": "1"}):
        refused(it.ask(ANN, Remove("secrets", "acme", "s", **wrong)), Reason.STALE_OBJECT)
    right = {"uid": made.metadata.uid, "resource_version": made.metadata.resource_version}
    it.yes(ANN, Remove("secrets", "acme", "s", **right))


def test_a_finalizer_holds_an_object_until_its_owner_lets_go() -> None:
    """[A2, I5]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret(finalizers=("example.com/backup",))))
    it.yes(ANN, Remove("secrets", "acme", "s"))
    dying = it.get(made)
    assert dying.metadata.deletion_timestamp == it.plane.at()
    accepted(remove_finalizers(it, made, ANN, "example.com/backup"))
    assert it.get(made) is None


def test_asking_again_hurries_and_never_puts_off() -> None:
    """[A2]"""
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web", grace_seconds=60))
    first = it.get(it.web)
    it.plane.elapsed_ms += 5_000
    before = it.plane.store.revision
    for grace in (None, 60, 600):
        it.yes(ANN, Remove("workloads", "acme", "web", grace_seconds=grace))
    assert it.plane.store.revision == before
    it.yes(ANN, Remove("workloads", "acme", "web", grace_seconds=5))
    after = it.get(it.web).metadata
    assert after.deletion_grace_period_seconds == 5
    assert after.deletion_timestamp == first.metadata.deletion_timestamp


def test_deletion_cannot_be_taken_back() -> None:
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    dying = it.get(it.web)
    alive = msgspec.structs.replace(
        dying, metadata=msgspec.structs.replace(dying.metadata, deletion_timestamp=None)
    )
    it.ask(ANN, Update(alive))
    assert it.get(it.web).metadata.deletion_timestamp is not None


# Workloads and tenants ---------------------------------------------------------------------------


def test_a_workload_waits_for_its_replicas_whatever_the_request_states() -> None:
    """[I5]"""
    it = Furnished()
    replica = it.pending()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    for identity in (ANN, ADMIN):
        it.ask(identity, Update(with_finalizers(it.get(it.web))))
        assert REPLICAS_FINALIZER in it.get(it.web).metadata.finalizers
    for identity in (WORKLOADS, GARBAGE):
        refused(remove_finalizers(it, it.web, identity, REPLICAS_FINALIZER), Reason.WRONG_STATE)
    refused(it.ask(WORKLOADS, it.birth(it.web, 90)), Reason.TERMINATING)
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    it.yes(WORKLOADS, Move(target(it.get(replica)), State.RELEASED, term=it.term(WORKLOADS)))
    accepted(remove_finalizers(it, it.web, WORKLOADS, REPLICAS_FINALIZER))
    assert it.get(it.web) is None
    refused(it.ask(WORKLOADS, it.birth(it.web, 91)), Reason.MISSING)


def test_a_living_workload_keeps_its_hold() -> None:
    """Otherwise a later deletion would not wait for the replicas that are born until then. [I5]"""
    it = Furnished()
    for identity in (WORKLOADS, GARBAGE):
        refused(remove_finalizers(it, it.web, identity, REPLICAS_FINALIZER), Reason.WRONG_STATE)
    tenant = it.plane.read("objects/tenants/globex")
    refused(remove_finalizers(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)


def test_a_controller_that_lets_go_changes_nothing_else() -> None:
    """[C6.7]"""
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    dying = with_finalizers(it.get(it.web))
    more = msgspec.structs.replace(dying, spec=msgspec.structs.replace(dying.spec, replicas=99))
    refused(it.ask(WORKLOADS, Update(more)), Reason.NOT_OWNER)
    it.yes(WORKLOADS, Update(dying))


def test_a_successor_of_the_same_name_starts_from_scratch() -> None:
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    accepted(remove_finalizers(it, it.web, WORKLOADS, REPLICAS_FINALIZER))
    again = it.plane.workload()
    refused(it.ask(WORKLOADS, it.birth(it.web, 1)), Reason.MISSING)
    it.yes(WORKLOADS, it.birth(again, 1))


def test_a_tenant_waits_for_all_that_is_in_it_and_takes_nothing_new() -> None:
    it = Furnished()
    tenant = it.plane.create(Tenant(ObjectMeta(name="brief")))
    held = it.plane.create(secret(namespace="brief"))
    it.yes(ADMIN, Remove("tenants", "", "brief"))
    refused(remove_finalizers(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)
    refused(remove_finalizers(it, tenant, WORKLOADS, CONTENTS_FINALIZER), Reason.NOT_OWNER)
    refused(it.ask(ADMIN, Create(secret("t", namespace="brief"))), Reason.TERMINATING)
    it.yes(GARBAGE, Remove("secrets", "brief", held.name))
    accepted(remove_finalizers(it, tenant, GARBAGE, CONTENTS_FINALIZER))
    assert it.get(tenant) is None


def test_a_reservation_keeps_its_tenant_from_going() -> None:
    """[I5]"""
    it = Furnished()
    workload = it.plane.workload("w", "globex")
    replica = it.reserved(workload)
    it.yes(ADMIN, Remove("tenants", "", "globex"))
    tenant = it.plane.read("objects/tenants/globex")
    it.yes(WORKLOADS, Remove("replicas", "globex", replica.name))
    it.yes(WORKLOADS, Move(target(it.get(replica)), State.RELEASED, term=it.term(WORKLOADS)))
    it.yes(GARBAGE, Remove("workloads", "globex", "w"))
    accepted(remove_finalizers(it, workload, WORKLOADS, REPLICAS_FINALIZER))
    refused(remove_finalizers(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)
    it.yes(GARBAGE, Remove("reservations", "globex", replica.status.reservation))
    accepted(remove_finalizers(it, tenant, GARBAGE, CONTENTS_FINALIZER))
    assert counted(it.plane) == {}


# Others ------------------------------------------------------------------------------------------


def test_the_lease_of_a_server_that_is_gone_is_deleted_by_an_operator() -> None:
    """Not that of one that lives; and no epoch ever comes again. [K3]"""
    it = Furnished()
    two, scope = who.server("two"), server_scope("two")
    lease = it.yes(two, AcquireLease(scope, 15_000))
    gone = Remove("leases", "", lease.name)
    refused(it.ask(OPERATOR, gone), Reason.LEASE_HELD)
    it.plane.elapsed_ms += 20_000
    assert it.ask(ANN, gone).reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED, Reason.MISSING)
    it.yes(OPERATOR, gone)
    assert it.plane.read(f"objects/leases/{lease.name}") is None
    assert it.plane.read(keys.epoch(scope)) is None
    term = Term(scope, lease.spec.epoch)
    refused(it.ask(two, RenewLease(term, number=1)), Reason.STALE_EPOCH)
    again = it.yes(two, AcquireLease(scope, 15_000))
    assert again.spec.epoch > lease.spec.epoch
    # One that stopped in order is not held any more.
    it.yes(two, ReleaseLease(Term(scope, again.spec.epoch)))
    it.yes(OPERATOR, gone)


def test_no_caller_deletes_a_lease() -> None:
    """Its epoch must never start again. [K3]"""
    it = Furnished()
    it.term(NODES)
    for identity in (ADMIN, NODES, GARBAGE):
        answer = it.ask(identity, Remove("leases", "", "controller-nodes"))
        assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    it.yes(NODES, it.judge(NodeAction.SUSPECT))


def test_a_workload_with_a_status_of_its_own_keeps_it_while_it_waits() -> None:
    it = Furnished()
    made = it.yes(
        ANN,
        Create(
            Workload(ObjectMeta(name="w", namespace="acme"), spec=WorkloadSpec(template=template()))
        ),
    )
    dying = it.yes(ANN, Remove("workloads", "acme", "w"))
    assert dying.metadata.deletion_timestamp is not None
    assert dying.metadata.generation == made.metadata.generation
