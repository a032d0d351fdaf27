"""Patch requests: computed on the current object, under the rules of every write."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Create, Patch, PatchType, Remove
from tests.furnished import ANN, BOB, Furnished, every
from tests.plane import ADMIN, SCHEDULER, accepted, refused

MERGE, JSON, APPLY = PatchType.MERGE, PatchType.JSON, PatchType.APPLY
STATUS = who.controller("status")


def merge(body: Any, name: str = "web", **more: Any) -> Patch:
    return Patch("workloads", "acme", name, MERGE, body, **more)


def applied(spec: dict[str, Any], manager: str = "ci", name: str = "web", **more: Any) -> Patch:
    body = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": spec,
    }
    return Patch("workloads", "acme", name, APPLY, body, manager=manager, **more)


TEMPLATE = {"command": ["sleep", "60"], "resources": {"cpu": "1", "memory": "1Gi"}}


def test_a_patch_is_computed_on_what_is_current() -> None:
    """A stale view costs a second try and loses no change. [C2, C3]"""
    it = Furnished()
    it.ask(ANN, merge({}))
    stale, it.plane.authority = it.plane.authority, it.plane.new_authority()
    it.yes(ANN, merge({"metadata": {"labels": {"a": "1"}}}))
    it.plane.authority = stale
    after = it.yes(ANN, merge({"metadata": {"labels": {"b": "2"}}}))
    assert after.metadata.labels == {"a": "1", "b": "2"}


def test_two_patches_of_one_group_both_count() -> None:
    """[C2]"""
    it = Furnished()
    it.plane.authority = it.plane.new_authority()
    answers = it.plane.ask_all(
        (ANN, merge({"metadata": {"labels": {"a": "1"}}})),
        (ANN, merge({"metadata": {"labels": {"b": "2"}}})),
    )
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert it.get(it.web).metadata.labels == {"a": "1", "b": "2"}


def test_a_json_patch_appends_once_for_one_operation() -> None:
    """[C2, INV3]"""
    it = Furnished()
    add = Patch(
        "workloads",
        "acme",
        "web",
        JSON,
        [{"op": "add", "path": "/spec/template/command/-", "value": "x"}],
        operation="append",
    )
    it.yes(ANN, add)
    assert it.ask(ANN, add).replayed
    assert it.get(it.web).spec.template.command == ("sleep", "60", "x")


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"name": "other"}},
        {"metadata": {"namespace": "globex"}},
    ],
)
def test_a_patch_renames_and_moves_nothing(body: dict[str, Any]) -> None:
    it = Furnished()
    refused(it.ask(ADMIN, merge(body)), Reason.INVALID)


def test_a_patch_cannot_touch_what_belongs_to_the_server() -> None:
    """[A2, A9]"""
    it = Furnished()
    before = it.get(it.web)
    it.yes(
        ANN, merge({"metadata": {"generation": 99, "finalizers": list(before.metadata.finalizers)}})
    )
    assert it.get(it.web).metadata.generation == before.metadata.generation
    refused(it.ask(ANN, merge({"metadata": {"uid": "mine"}})), Reason.STALE_OBJECT)
    refused(it.ask(ANN, merge({"metadata": {"resourceVersion": "1"}})), Reason.STALE_OBJECT)
    status = it.yes(ANN, merge({"status": {"observedGeneration": 7}}))
    assert status.status.observed_generation == 0


def test_an_apply_that_creates_says_so_and_remembers_it() -> None:
    """[E5]"""
    it = Furnished()

    def heard(operation: str, replicas: int) -> tuple[bool, bool]:
        spec = {"replicas": replicas, "template": TEMPLATE}
        answer = it.ask(ANN, applied(spec, name="new", operation=operation))
        return answer.created, answer.replayed

    assert heard("op-1", 2) == (True, False)
    assert heard("op-1", 2) == (True, True)
    assert heard("op-2", 2) == (False, False)
    assert heard("op-3", 3) == (False, False)
    assert heard("op-3", 3) == (False, True)


def test_an_explicit_removal_of_the_systems_finalizer_is_refused() -> None:
    it = Furnished()
    refused(it.ask(ANN, merge({"metadata": {"finalizers": []}})), Reason.NOT_OWNER)
    drop = [{"op": "remove", "path": "/metadata/finalizers"}]
    refused(it.ask(ADMIN, Patch("workloads", "acme", "web", JSON, drop)), Reason.NOT_OWNER)


@pytest.mark.parametrize("kind", [MERGE, JSON, APPLY])
@pytest.mark.parametrize("identity", [BOB, SCHEDULER, who.agent("node-a")])
def test_no_kind_of_patch_gets_around_who_may_write(kind: PatchType, identity: Identity) -> None:
    """Force neither. [A9, C6.7]"""
    it = Furnished()
    bodies: dict[PatchType, Any] = {
        MERGE: {"spec": {"replicas": 50}},
        JSON: [{"op": "replace", "path": "/spec/replicas", "value": 50}],
        APPLY: applied({"replicas": 50, "template": TEMPLATE}).body,
    }
    patch = Patch("workloads", "acme", "web", kind, bodies[kind], manager="m", force=True)
    answer = it.ask(identity, patch)
    assert answer.reason in (Reason.NOT_ALLOWED, Reason.NOT_OWNER)
    assert it.get(it.web).spec.replicas == 8


def test_a_status_is_patched_by_its_writer_through_the_subresource() -> None:
    """[A9]"""
    it = Furnished()
    body = {"status": {"observedGeneration": 1}, "spec": {"replicas": 99}}
    after = it.yes(STATUS, merge(body, subresource="status"))
    assert (after.status.observed_generation, after.spec.replicas) == (1, 8)
    refused(
        it.ask(ANN, merge({"status": {"observedGeneration": 2}}, subresource="status")),
        Reason.NOT_ALLOWED,
    )


def test_what_is_not_there_cannot_be_patched() -> None:
    it = Furnished()
    refused(it.ask(ANN, merge({}, "none")), Reason.MISSING)


def test_unknown_fields_are_refused_or_left_out_with_a_warning() -> None:
    """[B4]"""
    it = Furnished()
    refused(it.ask(ANN, merge({"spec": {"replicsa": 3}})), Reason.INVALID)
    answer = it.ask(ANN, merge({"spec": {"replicsa": 3, "replicas": 2}}, strict=False))
    assert accepted(answer).spec.replicas == 2
    assert any("replicsa" in line for line in answer.warnings)


# Server-side apply -------------------------------------------------------------------------------


def test_an_apply_creates_what_is_missing_and_its_manager_owns_what_it_states() -> None:
    it = Furnished()
    made = it.yes(ANN, applied({"replicas": 2, "template": TEMPLATE}, name="new"))
    assert (made.spec.replicas, made.metadata.generation) == (2, 1)
    owner = made.metadata.managed_fields[0]
    assert (owner.manager, owner.operation) == ("ci", "Apply")
    before = it.plane.store.revision
    again = it.yes(ANN, applied({"replicas": 2, "template": TEMPLATE}, name="new"))
    assert it.plane.store.revision == before
    assert again.metadata.resource_version == made.metadata.resource_version


def test_a_conflict_names_the_owner_and_force_takes_over() -> None:
    """[A9]"""
    it = Furnished()
    it.yes(ANN, applied({"replicas": 2, "template": TEMPLATE}, name="new"))
    other = {"replicas": 5, "template": TEMPLATE}
    refusal = refused(
        it.ask(ANN, applied(other, manager="autoscaler", name="new")), Reason.STALE_OBJECT
    )
    assert "ci" in refusal.message
    assert refusal.details["fieldManagerConflict"] == "true"
    assert any("replicas" in cause.path for cause in refusal.causes)
    forced = applied(other, manager="autoscaler", name="new", force=True)
    assert it.yes(ANN, forced).spec.replicas == 5


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "web", "namespace": "acme"},
        {"name": "fresh", "namespace": "globex"},
        {"generateName": "fresh-", "namespace": "acme"},
    ],
)
def test_an_apply_creates_what_it_is_about_and_nothing_else(metadata: dict[str, Any]) -> None:
    """It must not write over an object that it did not look at. [C2]"""
    it = Furnished()
    uid = it.get(it.web).metadata.uid
    body = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"template": TEMPLATE},
    }
    count = it.plane.store.revision
    patch = Patch("workloads", "acme", "fresh", APPLY, body, manager="ci")
    refused(it.ask(ADMIN, patch), Reason.INVALID)
    assert it.plane.store.revision == count
    assert it.get(it.web).metadata.uid == uid


def test_an_apply_to_the_status_of_nothing_creates_nothing() -> None:
    it = Furnished()
    body = {"apiVersion": "holdfast.dev/v1", "kind": "Tenant", "metadata": {"name": "new"}}
    patch = Patch("tenants", "", "new", APPLY, body, "status", "ci")
    refused(it.ask(ADMIN, patch), Reason.MISSING)
    assert "new" not in {tenant.name for tenant in every(it.plane, Tenant)}


def test_a_dry_run_of_an_apply_writes_nothing() -> None:
    it = Furnished()
    before = it.plane.store.revision
    dry = applied({"template": TEMPLATE}, name="new", dry_run=True)
    assert it.yes(ANN, dry).name == "new"
    assert it.plane.store.revision == before


def test_an_apply_runs_admission_like_every_other_write() -> None:
    """[B3]"""
    it = Furnished()
    wanted = {**TEMPLATE, "devices": [{"deviceClass": "gpu"}]}
    refused(it.ask(ANN, applied({"template": wanted}, name="new")), Reason.NOT_ALLOWED)
    refused(
        it.ask(ANN, applied({"template": {**TEMPLATE, "priorityClass": "none"}}, name="new")),
        Reason.MISSING,
    )


def test_an_apply_after_a_delete_makes_another_object() -> None:
    it = Furnished()
    body = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "acme"},
    }
    patch = Patch("secrets", "acme", "s", APPLY, body, manager="ci")
    first = it.yes(ANN, patch)
    it.yes(ANN, Remove("secrets", "acme", "s"))
    second = it.yes(ANN, patch)
    assert first.metadata.uid != second.metadata.uid
    refused(it.ask(ANN, Create(Secret(ObjectMeta(name="s", namespace="acme")))), Reason.EXISTS)
