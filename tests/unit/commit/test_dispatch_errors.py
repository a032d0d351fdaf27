"""No request may stop the authority: what a rule raises becomes a refusal."""

from __future__ import annotations

from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType
from tests.plane import ADMIN, Plane, accepted, refused, template


def test_a_json_patch_whose_test_fails_is_a_conflict() -> None:
    """[C2]"""
    plane = Plane()
    plane.tenant()
    operations = [{"op": "test", "path": "/metadata/name", "value": "other"}]
    patch = Patch("tenants", "", "acme", PatchType.JSON, operations)
    refusal = refused(plane.ask(ADMIN, patch), Reason.STALE_OBJECT)
    assert "test /metadata/name" in refusal.message


def test_a_patch_of_an_unknown_resource_is_missing() -> None:
    plane = Plane()
    refused(plane.ask(ADMIN, Patch("unicorns", "", "x", PatchType.MERGE, {})), Reason.MISSING)


def test_a_create_is_decided_once_when_its_records_are_new() -> None:
    """Loading costs one transaction, deciding another; nothing is validated twice."""
    plane = Plane()
    plane.tenant()
    plane.transactions.clear()
    accepted(plane.ask(ADMIN, _workload()))
    assert len(plane.transactions) <= 3


def _workload() -> Create:
    spec = WorkloadSpec(template=template())
    return Create(Workload(ObjectMeta(name="web", namespace="acme"), spec=spec))
