"""Preconditions: what callers state about an object, and when that is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.host.api import status_objects
from holdfast.model.encoding.resource_versions import complete_version, object_revision
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from tests.furnished import ANN, GARBAGE, Furnished
from tests.plane import ADMIN, accepted, refused

WAYS = ("update", "merge", "json", "apply", "delete")


def wish(it: Furnished, way: str, version: str, **more: Any) -> Any:
    """The same change in some way, by a caller that saw this version."""
    obj = it.web
    if way == "update":
        metadata: ObjectMeta = msgspec.structs.replace(
            obj.metadata, resource_version=version, labels={"seen": "x"}
        )
        return Update(msgspec.structs.replace(obj, metadata=metadata), **more)
    if way == "delete":
        return Remove("workloads", "acme", "web", resource_version=version, **more)
    body: Any = {"metadata": {"resourceVersion": version, "labels": {"seen": "x"}}}
    kind = {"merge": PatchType.MERGE, "json": PatchType.JSON, "apply": PatchType.APPLY}[way]
    if kind is PatchType.JSON:
        body = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/labels", "value": {"seen": "x"}},
        ]
    elif kind is PatchType.APPLY:
        body |= {"apiVersion": "holdfast.dev/v1", "kind": "Workload"}
        body["metadata"] |= {"name": "web", "namespace": "acme"}
    return Patch("workloads", "acme", "web", kind, body, manager="m", **more)


def current(it: Furnished) -> str:
    version: str = it.web.metadata.resource_version
    return version


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dry_run", [True, False])
def test_the_version_of_the_object_is_accepted(way: str, dry_run: bool) -> None:
    """[A2, C2]"""
    it = Furnished()
    accepted(it.ask(ANN, wish(it, way, current(it), dry_run=dry_run)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dry_run", [True, False])
def test_no_other_version_is_accepted_least_of_all_that_of_a_list(way: str, dry_run: bool) -> None:
    """Not even of the list that the object was in, nor that of the store now. [A2, C2]"""
    it = Furnished()
    version = current(it)
    revision = object_revision(version)
    now = it.plane.store.revision
    before = it.get(it.web)
    for other in (complete_version(revision), complete_version(now), str(revision), "2", "1"):
        answer = refused(it.ask(ANN, wish(it, way, other, dry_run=dry_run)), Reason.STALE_OBJECT)
        assert answer.details == {"resourceVersion": version}
    assert it.get(it.web) == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["-1", "-2", "abc", "uncommitted", " ", "9" * 40])
def test_what_is_no_version_at_all_is_refused(way: str, text: str) -> None:
    """A deletion compares texts, as in Kubernetes; the others say what is wrong. [A2]"""
    it = Furnished()
    before = it.get(it.web)
    reason = Reason.STALE_OBJECT if way == "delete" else Reason.INVALID
    answer = refused(it.ask(ANN, wish(it, way, text)), reason)
    assert "resourceVersion" in answer.message
    assert it.get(it.web) == before


@pytest.mark.parametrize("way", WAYS)
def test_zero_states_nothing_except_to_a_deletion(way: str) -> None:
    """As in Kubernetes. [A2]"""
    it = Furnished()
    answer = it.ask(ANN, wish(it, way, "0"))
    if way == "delete":
        refused(answer, Reason.STALE_OBJECT)
    else:
        assert accepted(answer).metadata.labels == {"seen": "x"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("guess", ["-1", "-2", "uncommitted", "None", "not known yet"])
def test_no_caller_guesses_the_version_of_what_is_not_committed_yet(way: str, guess: str) -> None:
    """Another request of the same group has changed it, and its next version does not exist yet.
    [C2]
    """
    it = Furnished()
    it.plane.authority = it.plane.new_authority()
    first, second = it.plane.ask_all(
        (ANN, Patch("workloads", "acme", "web", PatchType.MERGE, {"spec": {"replicas": 3}})),
        (ADMIN, wish(it, way, guess)),
    )
    accepted(first)
    assert second.reason in (Reason.STALE_OBJECT, Reason.INVALID)
    assert it.get(it.web).metadata.labels == {}
    assert it.get(it.web).metadata.deletion_timestamp is None


@pytest.mark.parametrize("uid, version", [("u", ""), ("", "2"), ("", "3"), ("u", "2")])
def test_an_apply_that_means_what_is_gone_makes_nothing_new(uid: str, version: str) -> None:
    """[A2]"""
    it = Furnished()
    metadata = {"name": "new", "namespace": "acme", "uid": uid, "resourceVersion": version}
    body = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": metadata,
        "spec": {"template": {"command": ["sleep"]}},
    }
    apply = Patch("workloads", "acme", "new", PatchType.APPLY, body, manager="m")
    refused(it.ask(ANN, apply), Reason.STALE_OBJECT)
    metadata |= {"uid": "", "resourceVersion": "0"}
    assert it.ask(ANN, apply).created


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_an_apply_states_texts(field: str) -> None:
    """[A2]"""
    it = Furnished()
    apply = wish(it, "apply", "")
    apply.body["metadata"][field] = 7
    assert field in refused(it.ask(ANN, apply), Reason.INVALID).message


@pytest.mark.parametrize("version, is_refused", [("", False), ("0", False), ("7", True)])
def test_what_is_made_has_no_version_yet(version: str, is_refused: bool) -> None:
    """As in Kubernetes: a client that read an object and sends it means that one. [A2]"""
    it = Furnished()
    metadata = ObjectMeta(name="new", namespace="acme", resource_version=version)
    made = Workload(metadata, spec=it.web.spec)
    answer = it.ask(ANN, Create(made))
    if is_refused:
        assert "metadata.resourceVersion" in refused(answer, Reason.INVALID).message
        assert it.get(made) is None
    else:
        accepted(answer)


@pytest.mark.parametrize(
    "request_, field",
    [
        (lambda web: Update(_without_version(web)), "metadata.resourceVersion"),
        (lambda web: Remove("workloads", "acme", "web"), "preconditions.uid"),
        (lambda web: Create(_event(web)), "operation"),
    ],
)
def test_a_component_learns_which_precondition_it_lacks(request_: Any, field: str) -> None:
    """Which field, by which rule, and what to do; the object is not modified."""
    it = Furnished()
    it.plane.grounds = False
    wish = msgspec.structs.replace(request_(it.web), term=it.term(GARBAGE))
    refusal = refused(it.plane.ask(GARBAGE, wish), Reason.INVALID)
    assert refusal.message.startswith(
        f"{field}: required in requests of components such as {GARBAGE.name}: "
    )
    assert refusal.details == {"field": field}
    assert (
        "modified"
        not in json.loads(status_objects.of(refusal, kind_of(it.web), "web")[1])["message"]
    )


def test_a_component_learns_that_it_states_no_term() -> None:
    """[K3]"""
    it = Furnished()
    it.plane.grounds = False
    wish = Remove("workloads", "acme", "web", it.web.metadata.uid)
    refusal = refused(it.plane.ask(GARBAGE, wish), Reason.EPOCH_REQUIRED)
    assert refusal.message.startswith("term: required")


def _event(of: Any) -> Event:
    involved = ObjectReference(kind="Workload", namespace=of.namespace, name=of.name)
    return Event(ObjectMeta(name="e", namespace=of.namespace), involved_object=involved)


def _without_version(obj: Any) -> Any:
    metadata = msgspec.structs.replace(obj.metadata, resource_version="")
    return msgspec.structs.replace(obj, metadata=metadata)
