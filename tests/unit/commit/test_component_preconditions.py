"""Preconditions of components, and of third-party operators."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.commitment import Commitment, CommitmentSpec, Promise
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Create, Patch, PatchType, Term, Update
from tests.furnished import Furnished
from tests.plane import ADMIN, refused

REVIEW = who.controller("review")
VERSION_PATH = "/metadata/resourceVersion"


def commitment(it: Furnished) -> Commitment:
    meta = ObjectMeta(name="promise", namespace="acme")
    promise = Promise(workload="web", serving=1)
    found = it.yes(ADMIN, Create(Commitment(meta, spec=CommitmentSpec(promise=promise))))
    assert isinstance(found, Commitment)
    # From here on nothing is added to what a test says.
    it.plane.grounds = False
    return found


def with_evidence(obj: Commitment, text: str) -> Commitment:
    status = msgspec.structs.replace(obj.status, evidence=text)
    return msgspec.structs.replace(obj, status=status)


def by_update(obj: Commitment, **more: Any) -> Update:
    return Update(with_evidence(obj, "seen"), "status", **more)


def by_patch(obj: Commitment, **more: Any) -> Patch:
    version = obj.metadata.resource_version
    body = {"metadata": {"resourceVersion": version}, "status": {"evidence": "seen"}}
    where = ("commitments", obj.namespace, obj.name, PatchType.MERGE)
    return Patch(*where, body, subresource="status", **more)


@pytest.mark.parametrize("way", [by_update, by_patch])
def test_a_status_that_states_its_version_needs_no_lease_and_takes_effect_once(way: Any) -> None:
    """An operator of another framework holds no lease of ours."""
    it = Furnished()
    seen = commitment(it)
    request = way(seen)
    assert isinstance(it.plane.ask(REVIEW, request), Accepted)
    refused(it.plane.ask(REVIEW, request), Reason.STALE_OBJECT)


@pytest.mark.parametrize("way", [by_update, by_patch])
def test_a_status_without_a_version_or_under_a_lost_lease_is_refused(way: Any) -> None:
    """[K3]"""
    it = Furnished()
    seen = commitment(it)
    unversioned = msgspec.structs.replace(seen.metadata, resource_version="")
    blind = way(msgspec.structs.replace(seen, metadata=unversioned))
    refusal = refused(it.plane.ask(REVIEW, blind), Reason.INVALID)
    assert refusal.details["field"] == "metadata.resourceVersion"
    refused(it.plane.ask(REVIEW, way(seen, term=Term("controller:review", 7))), Reason.STALE_EPOCH)


def replaced(obj: Commitment, *operations: dict[str, Any]) -> Patch:
    where = ("commitments", obj.namespace, obj.name, PatchType.JSON)
    addition = {"op": "add", "path": "/status/evidence", "value": "seen"}
    return Patch(*where, [*operations, addition], subresource="status")


def test_any_version_is_none() -> None:
    """ "0" means whatever it is now, which no success would change."""
    it = Furnished()
    seen = commitment(it)
    anyhow = msgspec.structs.replace(seen.metadata, resource_version="0")
    for way in (by_update, by_patch):
        request = way(msgspec.structs.replace(seen, metadata=anyhow))
        refusal = refused(it.plane.ask(REVIEW, request), Reason.INVALID)
        assert refusal.details["field"] == "metadata.resourceVersion"


def test_a_json_patch_of_a_component_comes_to_an_object_with_its_version() -> None:
    """Naming the version is not enough: a patch may name it to take it away."""
    it = Furnished()
    seen = commitment(it)
    version = seen.metadata.resource_version
    tested = {"op": "test", "path": VERSION_PATH, "value": version}
    named = {"name": seen.name, "namespace": seen.namespace}
    blind = (
        ({"op": "remove", "path": VERSION_PATH},),
        ({"op": "replace", "path": VERSION_PATH, "value": "0"},),
        (tested, {"op": "remove", "path": VERSION_PATH}),
        (tested, {"op": "replace", "path": "/metadata", "value": named}),
        (),
    )
    for operations in blind:
        refusal = refused(it.plane.ask(REVIEW, replaced(seen, *operations)), Reason.INVALID)
        assert refusal.details["field"] == "metadata.resourceVersion"
    assert isinstance(it.plane.ask(REVIEW, replaced(seen, tested)), Accepted)
    assert not isinstance(it.plane.ask(REVIEW, replaced(seen, tested)), Accepted)


def test_nothing_but_a_status_is_written_without_a_lease() -> None:
    """[K3]"""
    it = Furnished()
    garbage = who.controller("garbage")
    seen = commitment(it)
    refused(it.plane.ask(garbage, Update(seen, operation="op")), Reason.EPOCH_REQUIRED)
