"""Replica creation: for a live workload, in its name, within its tenant's caps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.template import TemplateMeta
from holdfast.model.kinds.tenant import ObjectCaps
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import WORKLOAD_LABEL
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Move, Remove, Update
from holdfast.model.validation import validate_update
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, refused, target, template


def changed(request: Create, **spec: Any) -> Create:
    obj: Any = request.object
    return Create(msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, **spec)))


def test_a_replica_is_created_pending_and_owned_by_its_workload() -> None:
    """[A2, A5, A8]"""
    it = Furnished()
    labels = TemplateMeta(labels={"app": "web", WORKLOAD_LABEL: "forged"})
    high = it.plane.workload("high", template=template(priority_class="high", metadata=labels))
    born = it.yes(WORKLOADS, it.birth(high, 3))
    assert (born.name, born.status.state, born.status.stage) == (
        "high-3-0",
        State.PENDING,
        Stage.ADMITTED,
    )
    owner = born.metadata.owner_references[0]
    assert (owner.kind, owner.uid, owner.controller) == ("Workload", high.metadata.uid, True)
    assert born.metadata.labels == {"app": "web", WORKLOAD_LABEL: "high"}
    assert born.metadata.finalizers == ("holdfast.dev/release",)
    assert born.spec.priority == 100
    first = born.status.transitions[0]
    assert (first.from_state, first.to, first.by) == (None, State.PENDING, WORKLOADS.name)
    assert first.evidence


def test_a_member_belongs_to_the_gang_that_its_workload_states() -> None:
    """A controller of an older version knows no gangs, and no member is bound alone. [G5]"""
    it = Furnished()
    ring = it.plane.workload("ring", replicas=2, gang=Gang(min_available=2))
    born = it.yes(WORKLOADS, it.birth(ring))
    assert born.spec.gang == "ring"
    refused(it.ask(SCHEDULER, it.bind(born)), Reason.GANG_INCOMPLETE)
    assert it.yes(WORKLOADS, changed(it.birth(it.web), gang="ring")).spec.gang == ""


def test_a_controller_that_repeats_itself_makes_nothing_twice() -> None:
    """The name follows from what it is. [C2, I1]"""
    it = Furnished()
    it.yes(WORKLOADS, it.birth(it.web, 1))
    refused(it.ask(WORKLOADS, it.birth(it.web, 1)), Reason.EXISTS)
    misnamed = changed(it.birth(it.web, 2), ordinal=3)
    refused(it.ask(WORKLOADS, misnamed), Reason.INVALID)


def test_no_replica_is_created_for_a_workload_that_is_gone_or_another() -> None:
    """[I5]"""
    it = Furnished()
    refused(it.ask(WORKLOADS, changed(it.birth(it.web), workload_uid="another")), Reason.MISSING)
    strange = changed(it.birth(it.web), workload="none")
    renamed = msgspec.structs.replace(
        strange.object,
        metadata=msgspec.structs.replace(strange.object.metadata, name="none-0-0"),
    )
    refused(it.ask(WORKLOADS, Create(renamed)), Reason.MISSING)


def test_a_deletion_between_decision_and_commit_prevents_the_birth() -> None:
    """The workload is read, and so compared. [I5, C3]"""
    it = Furnished()
    stale, it.plane.authority = it.plane.authority, it.plane.new_authority()
    it.yes(ANN, Remove("workloads", "acme", "web"))
    it.plane.authority = stale
    refused(it.ask(WORKLOADS, it.birth(it.web)), Reason.TERMINATING)


def test_its_state_is_not_taken_from_its_creator() -> None:
    """[A9]"""
    it = Furnished()
    request = it.birth(it.web)
    bound = it.bound()
    forged = msgspec.structs.replace(request.object, status=bound.status)
    born = it.yes(WORKLOADS, Create(forged))
    assert (born.status.state, born.status.binding) == (State.PENDING, None)
    priority = it.yes(WORKLOADS, changed(it.birth(it.web, 5), priority=10**9))
    assert priority.spec.priority == 0


def test_its_spec_never_changes() -> None:
    """Not even its maker has a way to write one that is there. [A9]"""
    it = Furnished()
    replica = it.pending()
    spec = msgspec.structs.replace(replica.spec, revision="2")
    changed = msgspec.structs.replace(replica, spec=spec)
    refused(it.ask(WORKLOADS, Update(changed)), Reason.NOT_OWNER)
    refused(it.ask(ADMIN, Update(changed)), Reason.NOT_OWNER)
    assert validate_update(replica, changed)


def test_the_cap_counts_replicas_that_wait_and_no_others() -> None:
    """Otherwise a tenant with small caps could never have many running. [E6]"""
    it = Furnished()
    it.plane.quota(objects=ObjectCaps(pending=2))
    for number in range(6):
        waiting = it.yes(WORKLOADS, it.birth(it.web, number))
        it.yes(SCHEDULER, it.bind(waiting))
    one = it.yes(WORKLOADS, it.birth(it.web, 10))
    it.yes(WORKLOADS, it.birth(it.web, 11))
    refusal = refused(it.ask(WORKLOADS, it.birth(it.web, 12)), Reason.OBJECT_CAP)
    assert refusal.details == {
        "tenant": "acme",
        "resource": "pending",
        "limit": "2",
        "field": "metadata.namespace",
        "policy": "object-cap",
        "scope": "Tenant acme",
    }
    it.yes(SCHEDULER, it.reserve(one))
    it.yes(WORKLOADS, it.birth(it.web, 12))
    refused(it.ask(WORKLOADS, it.birth(it.web, 13)), Reason.OBJECT_CAP)


@pytest.mark.parametrize("name", ["", "spot"])
def test_what_goes_makes_room_under_the_cap(name: str) -> None:
    """[E6]"""
    it = Furnished()
    workload = it.of_class(name) if name else it.web
    it.plane.quota(objects=ObjectCaps(pending=1))
    first = it.yes(WORKLOADS, it.birth(workload, 0))
    refused(it.ask(WORKLOADS, it.birth(workload, 1)), Reason.OBJECT_CAP)
    it.yes(WORKLOADS, Remove("replicas", "acme", first.name))
    it.yes(WORKLOADS, Move(target(it.get(first)), State.RELEASED, term=it.term(WORKLOADS)))
    second = it.yes(WORKLOADS, it.birth(workload, 1))
    it.yes(SCHEDULER, it.bind(second))
    it.yes(WORKLOADS, it.birth(workload, 2))


def test_a_replica_that_could_never_fit_its_quota_is_not_created() -> None:
    """[D1]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "500m"})
    refused(it.ask(WORKLOADS, it.birth(it.web)), Reason.QUOTA_EXCEEDED)
