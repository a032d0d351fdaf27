"""Garbage: what is deleted with its owner, and what the collector must prove before that."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.access import identity as who
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec, TokenStatus
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.meta import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Create, Propagation, Remove, Update
from tests.furnished import ANN, GARBAGE, Furnished
from tests.plane import SCHEDULER, WORKLOADS, accepted, refused
from tests.unit.commit.finalizers import remove_finalizers, secret, with_finalizers

HASH = "sha256:" + "0" * 64


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
    accepted(remove_finalizers(it, owner, GARBAGE, FOREGROUND_FINALIZER))
    assert it.get(owner) is None


def test_foreground_cannot_be_asked_for_once_the_deletion_has_begun() -> None:
    it = Furnished()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    foreground = Remove("workloads", "acme", "web", propagation=Propagation.FOREGROUND)
    it.yes(ANN, foreground)
    assert FOREGROUND_FINALIZER not in it.get(it.web).metadata.finalizers


def test_replicas_cannot_be_orphaned() -> None:
    """No controller would own their transitions. [A9]"""
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
    accepted(remove_finalizers(it, owner, GARBAGE, ORPHAN_FINALIZER))
    assert it.get(owner) is None
    assert [it.name for it in it.get(child).metadata.owner_references] == ["other"]


def test_tokens_go_when_they_are_over_and_not_before() -> None:
    """A used one is kept for a node whose answer was lost."""
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
    """Every owner gone, or another of its name; an object without owners is no leak. [I3]"""
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
    it = Furnished()
    owners = [it.yes(ANN, Create(secret(f"o{n}"))) for n in range(32)]
    child = it.yes(ANN, Create(secret("child", *owners)))
    for owner in owners:
        it.yes(ANN, Remove("secrets", "acme", owner.name))
    it.plane.authority = it.plane.new_authority()
    it.yes(GARBAGE, Remove("secrets", "acme", "child"))
    assert it.get(child) is None


def test_events_are_deleted_by_age_alone() -> None:
    it = Furnished()
    about = ObjectReference(kind="Workload", namespace="acme", name="web")
    event = Event(ObjectMeta(name="e.1", namespace="acme"), involved_object=about, reason="Up")
    made = it.yes(SCHEDULER, Create(event))
    it.yes(GARBAGE, Remove("events", "acme", "e.1"))
    assert it.get(made) is None
