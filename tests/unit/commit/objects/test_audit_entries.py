"""Audit entries: what the transaction of an accepted request records, and what it does not."""

from __future__ import annotations

import msgspec

from holdfast.commit.objects.audit_entries import (
    FIELDS_MAX,
    LIST_CHARS_MAX,
    REASON_MAX,
    changed_fields,
    recorded_groups,
)
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.audit.audit_records import Mutation, Stamp
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import (
    AcquireLease,
    Create,
    Move,
    Patch,
    PatchType,
    ReleaseLease,
    Remove,
    RenewLease,
    Target,
    Term,
    Update,
)
from holdfast.model.transaction import Put
from tests.plane import ADMIN, SCHEDULER, Plane, accepted, bind

ANN = Identity(name="ann", groups=("tenant:acme", ADMINS))


def said(plane: Plane) -> list[Mutation]:
    """What the last transaction said of itself."""
    for write in plane.transactions[-1].writes:
        if isinstance(write, Put) and write.key == keys.audit_stamp():
            stamp: Stamp = decode(write.key, write.value)
            assert stamp.at == plane.now.wall_ms
            return list(stamp.mutations)
    return []


def furnished() -> Plane:
    plane = Plane()
    plane.region()
    plane.tenant()
    return plane


def test_each_member_of_a_group_says_who_it_was_and_what_it_did() -> None:
    """[A8]"""
    plane = furnished()
    term, node, workload = plane.term(SCHEDULER), plane.node(), plane.workload(replicas=2)
    replicas = [plane.replica(workload, ordinal) for ordinal in range(2)]
    asked = [(SCHEDULER, bind(replica, node, term)) for replica in replicas]
    plane.ask_all(*asked)
    found = said(plane)
    assert [it.name for it in found] == [it.name for it in replicas]
    for it, replica, (_, request) in zip(found, replicas, asked, strict=True):
        assert (it.who, it.verb, it.kind) == (SCHEDULER.name, "Bind", "replicas")
        assert (it.namespace, it.uid) == ("acme", replica.metadata.uid)
        assert it.operation == request.operation
        assert {"status.state", "status.binding"} <= set(it.fields)
        assert "metadata.operations" not in it.fields


def test_a_change_names_the_fields_that_are_others_now() -> None:
    """[A8]"""
    plane = furnished()
    plane.workload(replicas=1)
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 3}}
    request = Patch("workloads", "acme", "web", PatchType.MERGE, patch, operation="op-1")
    accepted(plane.ask(ANN, request))
    (it,) = said(plane)
    assert (it.who, it.groups) == ("ann", ANN.groups)
    assert (it.verb, it.change, it.operation) == ("Patch", "", "op-1")
    assert it.fields == ("metadata.labels", "spec.replicas")
    patch = {"spec": {"template": {"env": [{"name": "A", "value": "canary"}]}}}
    accepted(plane.ask(ANN, Patch("workloads", "acme", "web", PatchType.MERGE, patch)))
    (it,) = said(plane)
    assert it.fields == ("spec.template.env",)


def test_no_value_of_an_object_gets_into_it() -> None:
    """Of a Secret not even its keys, for a path ends where a map begins."""
    plane = furnished()
    secret = Secret(ObjectMeta(name="db", namespace="acme"), data={"canary-key": "Y2FuYXJ5"})
    made = plane.create(secret, ANN)
    created = plane.transactions[-1]
    later = msgspec.structs.replace(made, data={"canary-key": "Y2FuYXJ5Mg=="})
    accepted(plane.ask(ANN, Update(later)))
    changed = plane.transactions[-1]
    (it,) = said(plane)
    assert (it.kind, it.name, it.fields) == ("secrets", "db", ("data",))
    for transaction in (created, changed):
        (stamp,) = [it for it in transaction.writes if it.key == keys.audit_stamp()]
        assert isinstance(stamp, Put)
        assert b"anary" not in stamp.value
        assert b"Y2Fu" not in stamp.value


def test_what_is_made_and_what_goes_is_said_to_be() -> None:
    """[A8]"""
    plane = furnished()
    plane.workload(replicas=0)
    (it,) = said(plane)
    assert (it.verb, it.kind, it.name, it.change, it.fields) == (
        *("Create", "workloads", "web", "created"),
        (),
    )
    secret = plane.create(Secret(ObjectMeta(name="db", namespace="acme")))
    accepted(plane.ask(ADMIN, Remove("secrets", "acme", "db", force=True)))
    (it,) = said(plane)
    assert (it.verb, it.change, it.uid) == ("Remove", "deleted", secret.metadata.uid)
    assert it.forced


def test_refusals_dry_runs_repetitions_and_what_changes_nothing_say_nothing() -> None:
    plane = furnished()
    workload = plane.workload(replicas=1)
    before = plane.store.revision
    assert plane.ask(Identity(name="nobody"), Create(workload)) is not None
    plane.ask(ADMIN, Create(workload))
    plane.ask(ADMIN, Remove("workloads", "acme", "web", dry_run=True))
    same = Patch("workloads", "acme", "web", PatchType.MERGE, {"spec": {"replicas": 1}})
    accepted(plane.ask(ADMIN, same))
    assert plane.store.revision == before
    # That it was accepted is remembered for its copies. It changed nothing all the same.
    accepted(plane.ask(ADMIN, msgspec.structs.replace(same, operation="same")))
    stamp = plane.store.get(keys.audit_stamp())
    assert stamp is not None
    assert stamp.modified <= before
    once = Patch(
        "workloads", "acme", "web", PatchType.MERGE, {"spec": {"replicas": 2}}, operation="op"
    )
    accepted(plane.ask(ADMIN, once))
    after = plane.store.revision
    assert plane.ask(ADMIN, once).replayed
    assert plane.store.revision == after


def test_a_renewal_says_nothing_and_the_takeover_how_many_there_were() -> None:
    """[K3]"""
    plane = furnished()
    scope = "scheduler:one"
    lease = accepted(plane.ask(SCHEDULER, AcquireLease(scope, 1_000)))
    (it,) = said(plane)
    assert (it.verb, it.kind, it.change) == ("AcquireLease", "leases", "created")
    term = Term(scope, lease.spec.epoch)
    for _ in range(3):
        accepted(plane.ask(SCHEDULER, RenewLease(term)))
        assert said(plane) == []
    two = who.scheduler("two")
    accepted(plane.ask(two, AcquireLease(scope, 1_000, lease.spec.epoch, 3)))
    (it,) = said(plane)
    assert (it.who, it.renewals) == (two.name, 3)
    assert "spec.holder" in it.fields
    accepted(plane.ask(two, ReleaseLease(Term(scope, lease.spec.epoch + 1))))
    assert said(plane)[0].verb == "ReleaseLease"


def test_reasons_are_kept_and_bounded() -> None:
    """[A8]"""
    plane = furnished()
    workload = plane.workload(replicas=1)
    replica = plane.replica(workload, 0)
    target = Target("acme", replica.name, replica.metadata.uid, 0)
    long = "because " * 100
    workloads = who.controller("workload")
    term = plane.term(workloads)
    move = Move(target, State.RELEASED, long, evidence="scaled down", term=term)
    accepted(plane.ask(workloads, move))
    (it,) = said(plane)
    assert it.reason.startswith("because because")
    assert len(it.reason) == REASON_MAX


def test_the_names_of_fields_are_bounded_and_never_a_users() -> None:
    plane = furnished()
    old: Workload = plane.workload(replicas=1)
    labels = {f"canary-{n}": "x" for n in range(FIELDS_MAX * 2)}
    metadata = msgspec.structs.replace(old.metadata, labels=labels)
    assert changed_fields(old, msgspec.structs.replace(old, metadata=metadata)) == (
        "metadata.labels",
    )
    assert changed_fields(old, None) == ()
    assert changed_fields(old, old) == ()


def test_no_list_of_names_makes_a_record_large() -> None:
    """A user chooses the length of its own groups; those of the system stand first."""
    own = tuple(f"tenant:risk:{number}" + "x" * 230 for number in range(64))
    groups = recorded_groups(Identity(name="ann", groups=(*own, "system:auditors")))
    assert groups[0] == "system:auditors"
    assert sum(map(len, groups)) <= LIST_CHARS_MAX
