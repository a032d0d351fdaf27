"""Deleting: asked for at once, done when nobody holds the object any more, and never a leak."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.leaks import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from holdfast.commit.removal import CONTENTS_FINALIZER, REPLICAS_FINALIZER
from holdfast.model import identity as who
from holdfast.model.identity import Identity
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.token import Token, TokenPurpose, TokenSpec, TokenStatus
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import (
    Create,
    HoldCapacity,
    Move,
    NodeWord,
    Propagation,
    Remove,
    Update,
)
from tests.furnished import AGENT, ANN, ANONYMOUS, BOB, GARBAGE, Furnished, counted
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    accepted,
    refused,
    target,
    template,
)

HASH = "sha256:" + "0" * 64


def secret(name: str = "s", *owners: Any, namespace: str = "acme", **meta: Any) -> Secret:
    references = tuple(
        OwnerReference(API_VERSION, type(o).__name__, o.name, o.metadata.uid) for o in owners
    )
    metadata = ObjectMeta(name=name, namespace=namespace, owner_references=references, **meta)
    return Secret(metadata)


def let_go(it: Furnished, obj: Any, identity: Identity, *names: str) -> Any:
    """Ask for the finalizers to be taken away."""
    now = it.get(obj)
    rest = tuple(name for name in now.metadata.finalizers if name not in names)
    metadata = msgspec.structs.replace(now.metadata, finalizers=rest)
    return it.ask(identity, Update(msgspec.structs.replace(now, metadata=metadata)))


# Asking ------------------------------------------------------------------------------------------


def test_what_nobody_holds_is_gone_at_once() -> None:
    """[A2]"""
    it = Furnished()
    made = it.yes(ANN, Create(secret()))
    gone = it.yes(ANN, Remove("secrets", "acme", "s"))
    assert gone.metadata.uid == made.metadata.uid
    assert it.get(made) is None
    refused(it.ask(ANN, Remove("secrets", "acme", "s")), Reason.MISSING)


@pytest.mark.parametrize("identity", [ANONYMOUS, BOB, AGENT])
def test_who_may_not_delete_learns_nothing(identity: Identity) -> None:
    """[B3, B5]"""
    it = Furnished()
    it.yes(ANN, Create(secret()))
    for name in ("s", "none"):
        answer = it.ask(identity, Remove("secrets", "acme", name))
        assert answer.reason in (Reason.UNAUTHENTICATED, Reason.NOT_ALLOWED)


def test_preconditions_name_the_very_object_and_version() -> None:
    """[C2, C6.8]"""
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
    accepted(let_go(it, made, ANN, "example.com/backup"))
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


def test_a_workload_waits_for_its_replicas_whatever_anybody_says() -> None:
    """[I5]"""
    it = Furnished()
    replica = it.pending()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    for identity in (ANN, ADMIN):
        it.ask(identity, Update(with_finalizers(it.get(it.web))))
        assert REPLICAS_FINALIZER in it.get(it.web).metadata.finalizers
    for identity in (WORKLOADS, GARBAGE):
        refused(let_go(it, it.web, identity, REPLICAS_FINALIZER), Reason.WRONG_STATE)
    refused(it.ask(WORKLOADS, it.birth(it.web, 90)), Reason.TERMINATING)
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    it.yes(WORKLOADS, Move(target(it.get(replica)), State.RELEASED, term=it.term(WORKLOADS)))
    accepted(let_go(it, it.web, WORKLOADS, REPLICAS_FINALIZER))
    assert it.get(it.web) is None
    refused(it.ask(WORKLOADS, it.birth(it.web, 91)), Reason.MISSING)


def with_finalizers(obj: Any, *names: str) -> Any:
    metadata = msgspec.structs.replace(obj.metadata, finalizers=names)
    return msgspec.structs.replace(obj, metadata=metadata)


def test_a_living_workload_keeps_its_hold() -> None:
    """Otherwise a later deletion would not wait for the replicas that are born until then. [I5]"""
    it = Furnished()
    for identity in (WORKLOADS, GARBAGE):
        refused(let_go(it, it.web, identity, REPLICAS_FINALIZER), Reason.WRONG_STATE)
    tenant = it.plane.read("objects/tenants/globex")
    refused(let_go(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)


def test_a_controller_that_lets_go_changes_nothing_else() -> None:
    """[C6.7]"""
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    dying = with_finalizers(it.get(it.web))
    more = msgspec.structs.replace(dying, spec=msgspec.structs.replace(dying.spec, replicas=99))
    refused(it.ask(WORKLOADS, Update(more)), Reason.NOT_OWNER)
    it.yes(WORKLOADS, Update(dying))


def test_a_successor_of_the_same_name_starts_anew() -> None:
    """[C6.8]"""
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    accepted(let_go(it, it.web, WORKLOADS, REPLICAS_FINALIZER))
    again = it.plane.workload()
    refused(it.ask(WORKLOADS, it.birth(it.web, 1)), Reason.MISSING)
    it.yes(WORKLOADS, it.birth(again, 1))


def test_a_tenant_waits_for_all_that_is_in_it_and_takes_nothing_new() -> None:
    """[I5]"""
    it = Furnished()
    tenant = it.plane.create(Tenant(ObjectMeta(name="brief")))
    held = it.plane.create(secret(namespace="brief"))
    it.yes(ADMIN, Remove("tenants", "", "brief"))
    refused(let_go(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)
    refused(let_go(it, tenant, WORKLOADS, CONTENTS_FINALIZER), Reason.NOT_OWNER)
    refused(it.ask(ADMIN, Create(secret("t", namespace="brief"))), Reason.TERMINATING)
    it.yes(GARBAGE, Remove("secrets", "brief", held.name))
    accepted(let_go(it, tenant, GARBAGE, CONTENTS_FINALIZER))
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
    accepted(let_go(it, workload, WORKLOADS, REPLICAS_FINALIZER))
    refused(let_go(it, tenant, GARBAGE, CONTENTS_FINALIZER), Reason.WRONG_STATE)
    it.yes(GARBAGE, Remove("reservations", "globex", replica.status.reservation))
    accepted(let_go(it, tenant, GARBAGE, CONTENTS_FINALIZER))
    assert counted(it.plane) == {}


# Propagation -------------------------------------------------------------------------------------


def test_foreground_waits_for_the_collector() -> None:
    """[A2]"""
    it = Furnished()
    owner = it.yes(ANN, Create(secret("owner")))
    child = it.yes(ANN, Create(secret("child", owner)))
    refused(it.ask(GARBAGE, Remove("secrets", "acme", "child")), Reason.NOT_ALLOWED)
    foreground = Remove("secrets", "acme", "owner", propagation=Propagation.FOREGROUND)
    it.yes(ANN, foreground)
    assert it.get(owner).metadata.finalizers == (FOREGROUND_FINALIZER,)
    # Now the dependents may go first.
    it.yes(GARBAGE, Remove("secrets", "acme", "child"))
    assert it.get(child) is None
    it.ask(ANN, Update(with_finalizers(it.get(owner))))
    assert it.get(owner) is not None
    accepted(let_go(it, owner, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(owner) is None


def test_foreground_cannot_be_asked_for_once_the_deletion_has_begun() -> None:
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    foreground = Remove("workloads", "acme", "web", propagation=Propagation.FOREGROUND)
    it.yes(ANN, foreground)
    assert FOREGROUND_FINALIZER not in it.get(it.web).metadata.finalizers


def test_replicas_cannot_be_orphaned() -> None:
    """Nobody would own their transitions any more. [A9]"""
    it = Furnished()
    orphan = Remove("workloads", "acme", "web", propagation=Propagation.ORPHAN)
    refused(it.ask(ANN, orphan), Reason.NOT_ALLOWED)


def test_dependents_are_cut_loose_where_their_owner_is_deleted_without_them() -> None:
    """The collector may do that, and nothing else, and for no other owner. [A2, C6.7]"""
    it = Furnished()
    owner, other = it.yes(ANN, Create(secret("owner"))), it.yes(ANN, Create(secret("other")))
    child = it.yes(ANN, Create(secret("child", owner, other)))

    def disowned(*left: int, **more: Any) -> Update:
        kept = tuple(child.metadata.owner_references[n] for n in left)
        metadata = msgspec.structs.replace(it.get(child).metadata, owner_references=kept, **more)
        return Update(msgspec.structs.replace(it.get(child), metadata=metadata))

    refused(it.ask(GARBAGE, disowned(1)), Reason.NOT_OWNER)
    it.yes(ANN, Remove("secrets", "acme", "owner", propagation=Propagation.ORPHAN))
    assert it.get(owner).metadata.finalizers == (ORPHAN_FINALIZER,)
    refused(it.ask(GARBAGE, Remove("secrets", "acme", "child")), Reason.NOT_ALLOWED)
    for wrong in (disowned(), disowned(0), disowned(1, labels={"a": "b"})):
        refused(it.ask(GARBAGE, wrong), Reason.NOT_OWNER)
    refused(it.ask(WORKLOADS, disowned(1)), Reason.NOT_OWNER)
    it.yes(GARBAGE, disowned(1))
    accepted(let_go(it, owner, GARBAGE, ORPHAN_FINALIZER))
    assert it.get(owner) is None
    assert [it.name for it in it.get(child).metadata.owner_references] == ["other"]


def test_tokens_go_when_they_are_over_and_not_before() -> None:
    """One that was used is kept for whoever lost the answer. [I5, I3]"""
    it = Furnished()
    names = {"lasting": it.plane.at(100_000), "short": it.plane.at(100)}
    for name, expires in names.items():
        spec = TokenSpec(purpose=TokenPurpose.JOIN, hash=HASH, expires=expires, single_use=True)
        it.plane.create(Token(ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE), spec=spec))
    remove = {name: Remove("tokens", SYSTEM_NAMESPACE, name) for name in names}
    it.plane.elapsed_ms += 101_000
    refused(it.ask(GARBAGE, remove["short"]), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 1_000
    it.yes(GARBAGE, remove["short"])
    used = it.plane.read(f"objects/tokens/{SYSTEM_NAMESPACE}/lasting")
    status = TokenStatus(used_at=it.plane.at(), used_by="node-x", key=HASH)
    it.yes(who.server("s1"), Update(msgspec.structs.replace(used, status=status), "status"))
    refused(it.ask(GARBAGE, remove["lasting"]), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 3_602_000
    it.yes(GARBAGE, remove["lasting"])


def test_the_collector_must_prove_a_leak() -> None:
    """Every owner gone, or another of its name; an object without owners is no leak. [I3, I5]"""
    it = Furnished()
    one, two = it.yes(ANN, Create(secret("one"))), it.yes(ANN, Create(secret("two")))
    child = it.yes(ANN, Create(secret("child", one, two)))
    it.yes(ANN, Create(secret("free")))
    collect = Remove("secrets", "acme", "child")
    refused(it.ask(GARBAGE, Remove("secrets", "acme", "free")), Reason.NOT_ALLOWED)
    refused(it.ask(GARBAGE, collect), Reason.NOT_ALLOWED)
    it.yes(ANN, Remove("secrets", "acme", "one"))
    refused(it.ask(GARBAGE, collect), Reason.NOT_ALLOWED)
    it.yes(ANN, Remove("secrets", "acme", "two"))
    it.yes(ANN, Create(secret("two")))
    it.yes(GARBAGE, collect)
    assert it.get(child) is None


def test_an_owner_that_comes_back_between_look_and_commit_saves_its_own() -> None:
    """That it is gone is read, and so compared. [I3, C3]"""
    it = Furnished()
    owner = it.yes(ANN, Create(secret("owner")))
    child = it.yes(ANN, Create(secret("child", owner)))
    it.yes(ANN, Remove("secrets", "acme", "owner"))
    snapshot = it.plane.store.get("objects/secrets/acme/owner")
    assert snapshot is None
    it.yes(GARBAGE, Remove("secrets", "acme", "child"))
    compared = {compare.key for compare in it.plane.transactions[-1].compares}
    assert "objects/secrets/acme/owner" in compared
    assert it.get(child) is None


def test_an_object_of_many_owners_is_collected_in_one_decision() -> None:
    """[C7.4]"""
    it = Furnished()
    owners = [it.yes(ANN, Create(secret(f"o{n}"))) for n in range(32)]
    child = it.yes(ANN, Create(secret("child", *owners)))
    for owner in owners:
        it.yes(ANN, Remove("secrets", "acme", owner.name))
    it.plane.authority = it.plane.new_authority()
    it.yes(GARBAGE, Remove("secrets", "acme", "child"))
    assert it.get(child) is None


def test_what_tells_what_happened_goes_by_age_alone() -> None:
    it = Furnished()
    about = ObjectReference(kind="Workload", namespace="acme", name="web")
    event = Event(ObjectMeta(name="e.1", namespace="acme"), involved_object=about, reason="Up")
    made = it.yes(SCHEDULER, Create(event))
    it.yes(GARBAGE, Remove("events", "acme", "e.1"))
    assert it.get(made) is None


# Replicas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [ANN, ADMIN, WORKLOADS])
def test_deleting_a_replica_says_what_is_wanted_and_a_person_stops_it_too(identity: Any) -> None:
    """[A8]"""
    it = Furnished()
    running = it.running()
    seen = it.plane.store.get(f"objects/replicas/acme/{running.name}")
    assert seen is not None
    it.yes(identity, Remove("replicas", "acme", running.name, operation="stop-it"))
    after = it.get(running)
    assert after.metadata.deletion_timestamp is not None
    if identity == WORKLOADS:
        assert after.status.state is State.RUNNING
    else:
        assert (after.status.state, after.status.cause) == (State.STOPPING, Cause.USER_DELETE)
        last = after.status.transitions[-1]
        assert (last.by, last.revision) == (identity.name, seen.modified)
    assert it.ask(identity, Remove("replicas", "acme", running.name, operation="stop-it")).replayed


def test_a_replica_out_of_contact_waits_for_proof_or_fence_or_an_operators_word() -> None:
    """[C6.4, I3]"""
    it = Furnished()
    unknown = it.unknown()
    remove = Remove("replicas", "acme", unknown.name)
    it.yes(ANN, remove)
    it.yes(ANN, msgspec.structs.replace(remove, force=True))
    assert it.get(unknown).status.state is State.UNKNOWN
    it.yes(ADMIN, msgspec.structs.replace(remove, force=True))
    after = it.get(unknown)
    last = after.status.transitions[-1]
    assert (after.status.state, last.by, last.reason) == (
        State.FAILED,
        ADMIN.name,
        "OperatorsWord",
    )
    # It is still charged: an operator's word is no proof of stop.
    assert it.plane.ledger("node-a").used["replicas"] == 1
    it.cleared()
    it.moved(after, State.RELEASED)
    assert it.get(unknown) is None


@pytest.mark.parametrize("before", ["Unknown", "Failed"])
def test_work_that_runs_on_is_given_up_for_good_by_an_operators_word_after_the_fence(
    before: str,
) -> None:
    """Its machine is scrap: no agent will ever prove that it has stopped. Not before the fence,
    not by its tenant, not for asking politely. [A8, I3, I5]
    """
    it = Furnished()
    keep = it.plane.workload("keeper", template=template(on_disconnect=OnDisconnect.KEEP))
    unknown = it.unknown(it.running(keep))
    force = Remove("replicas", "acme", unknown.name, force=True)
    if before == "Failed":
        it.yes(ADMIN, force)
        assert it.get(unknown).status.state is State.FAILED
        it.yes(ADMIN, force)
        assert it.get(unknown).status.state is State.FAILED
    it.fenced()
    it.yes(ANN, force)
    it.yes(ADMIN, msgspec.structs.replace(force, force=False))
    assert it.get(unknown).status.state is State(before)
    assert it.plane.ledger("node-a").used["replicas"] == 1
    last = it.yes(ADMIN, force)
    steps = [(it.to, it.by, it.reason) for it in last.status.transitions[-2:]]
    word = (ADMIN.name, "OperatorsWord")
    assert steps == [(State.FAILED, *word), (State.RELEASED, *word)]
    assert it.get(unknown) is None
    assert not it.plane.ledger("node-a").used


def test_work_that_stops_by_itself_is_left_to_the_fence_by_an_operators_word() -> None:
    """Repair releases it with proof; a person need not guess. [I3, C6.4]"""
    it = Furnished()
    unknown = it.unknown()
    it.fenced()
    it.yes(ADMIN, Remove("replicas", "acme", unknown.name, force=True))
    assert it.get(unknown).status.state is State.FAILED
    it.yes(REPAIR, it.repaired(it.get(unknown), State.RELEASED))
    assert it.get(unknown) is None


def test_a_released_replica_goes_at_once_unless_somebody_holds_it() -> None:
    """[I5]"""
    it = Furnished()
    released = it.released()
    foreground = Remove("replicas", "acme", released.name, propagation=Propagation.FOREGROUND)
    it.yes(WORKLOADS, foreground)
    assert it.get(released).metadata.finalizers == (FOREGROUND_FINALIZER,)
    accepted(let_go(it, released, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(released) is None
    other = it.released()
    it.yes(WORKLOADS, Remove("replicas", "acme", other.name))
    assert it.get(other) is None


def test_a_replica_never_loses_its_hold_by_an_update() -> None:
    """[I5]"""
    it = Furnished()
    running = it.running()
    it.yes(WORKLOADS, Remove("replicas", "acme", running.name))
    for identity in (WORKLOADS, GARBAGE, ADMIN):
        it.ask(identity, Update(with_finalizers(it.get(running))))
    assert it.get(running).metadata.finalizers == ("holdfast.dev/release",)
    assert it.plane.ledger("node-a").used["replicas"] == 1


# Reservations ------------------------------------------------------------------------------------


def held(it: Furnished) -> Any:
    owner = ReservationOwner("Workload", it.web.name, it.web.metadata.uid)
    claims = (Claim(node="node-a", charge={"cpu": 500}),)
    return it.yes(
        SCHEDULER,
        HoldCapacity("acme", owner, Intent.RECOVERY, claims, it.plane.at(60), it.term(SCHEDULER)),
    )


def test_a_deleted_reservation_gives_back_what_it_holds() -> None:
    """Otherwise nobody ever could. [C6.5, INV12]"""
    it = Furnished()
    lane = held(it)
    for identity in (ADMIN, ANN, SCHEDULER):
        answer = it.ask(identity, Remove("reservations", "acme", lane.name))
        assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    for identity in (REPAIR, GARBAGE):
        refused(it.ask(identity, Remove("reservations", "acme", lane.name)), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    it.yes(REPAIR, Remove("reservations", "acme", lane.name))
    assert it.get(lane) is None
    assert counted(it.plane) == {}


def test_a_deleted_reservation_sends_its_replica_back_to_the_queue() -> None:
    """[C7.2]"""
    it = Furnished()
    reserved = it.reserved(after_s=60)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    it.yes(REPAIR, Remove("reservations", "acme", reserved.status.reservation))
    assert it.get(reserved).status.state is State.PENDING
    assert counted(it.plane) == {}


def test_a_reservation_that_must_wait_for_a_finalizer_holds_nothing_meanwhile() -> None:
    """[C6.5]"""
    it = Furnished()
    lane = held(it)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    foreground = Remove("reservations", "acme", lane.name, propagation=Propagation.FOREGROUND)
    it.yes(REPAIR, foreground)
    waiting = it.get(lane)
    assert (waiting.status.phase, waiting.status.claims) == (ReservationPhase.RELEASED, ())
    assert counted(it.plane) == {}
    accepted(let_go(it, lane, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(lane) is None


def test_a_reservation_that_has_ended_holds_nothing_and_may_go() -> None:
    it = Furnished()
    reserved = it.reserved()
    it.yes(SCHEDULER, it.bind(reserved))
    it.yes(REPAIR, Remove("reservations", "acme", reserved.status.reservation))
    assert counted(it.plane)["node node-a"]["replicas"] == 1


# Others ------------------------------------------------------------------------------------------


def test_a_lease_is_not_deleted_by_anybody() -> None:
    """Its epoch must never start again. [K3]"""
    it = Furnished()
    it.term(NODES)
    for identity in (ADMIN, NODES, GARBAGE):
        answer = it.ask(identity, Remove("leases", "", "controller-nodes"))
        assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED)
    it.yes(NODES, it.judge(NodeWord.SUSPECT))


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
