"""The examples that a newcomer reads are accepted as they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.model.defaults import apply_defaults
from holdfast.model.encoding import wire
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object
from holdfast.model.registry import kind_named
from holdfast.model.validation import validate

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted(EXAMPLES.rglob("*.yaml"))


def documents(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def accepted(document: dict[str, Any]) -> Object:
    """The object after what a server does with it; a client fills in the namespace it works in."""
    kind = kind_named(document["kind"])
    if kind.namespaced:
        document["metadata"].setdefault("namespace", "default")
    decoded = wire.decode(kind, json.dumps(document).encode(), strict=True)
    assert decoded.warnings == ()
    changed, _ = apply_defaults(decoded.object)
    assert validate(changed) == (), [str(error) for error in validate(changed)]
    return changed


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_an_example_is_accepted_under_strict_validation(file: Path) -> None:
    """Every document has known fields only, and means something [A3]."""
    found = documents(file)
    assert found
    for document in found:
        accepted(document)


def test_an_ordinary_service_takes_less_than_twenty_lines() -> None:
    """Good defaults keep the first document short."""
    assert len((EXAMPLES / "service.yaml").read_text().splitlines()) < 20


def test_the_examples_show_every_type_of_workload() -> None:
    shown = {
        document["spec"].get("type", "Service")
        for file in FILES
        for document in documents(file)
        if document["kind"] == "Workload"
    }
    assert shown == {"Service", "Job", "Cron", "PerNode"}


def test_the_reference_platform_is_complete_and_names_only_what_it_has() -> None:
    """Tenants, classes and regions that a workload names exist in the same folder."""
    objects = [
        accepted(document)
        for file in sorted((EXAMPLES / "platform").glob("*.yaml"))
        for document in documents(file)
    ]
    by_kind: dict[type[Object], dict[str, Object]] = {}
    for each in objects:
        by_kind.setdefault(type(each), {})[f"{each.namespace}/{each.name}"] = each
    tenants = {each.name for each in by_kind[Tenant].values()}
    regions = {each.name for each in by_kind[Region].values()}
    classes = {each.name for each in by_kind[PriorityClass].values()} | {""}
    assert {each.name for each in by_kind[Workload].values()} == {
        "risk-api",
        "billing-api",
        "search-index",
        "fraud-batch",
        "analytics",
    }
    assert regions == {"us-east", "us-west", "eu-central", "eu-west"}
    assert {each.namespace for each in by_kind[Quota].values()} == tenants
    assert {each.namespace for each in objects} - {""} <= tenants
    for workload in by_kind[Workload].values():
        assert isinstance(workload, Workload)
        assert workload.spec.template.priority_class in classes
        assert set(workload.spec.template.placement.regions) <= regions
    for region in by_kind[Region].values():
        assert isinstance(region, Region)
        assert len(region.spec.zones) == 3
