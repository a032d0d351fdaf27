"""What is accepted and has no effect yet is listed, and the list is held against the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from holdfast.model.encoding.schema import field_descriptions, struct_description
from holdfast.model.kind_declaration import NoEffectRow, Unwritten
from holdfast.model.kinds.commitment import Commitment, CommitmentSpec, Promise
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.override import Override, OverrideScope, OverrideSpec, OverrideType
from holdfast.model.kinds.region import Grant, GrantSpec, Region, RegionSpec
from holdfast.model.kinds.schedulerpolicy import (
    PolicyScope,
    PolicyStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import (
    Autoscale,
    Recovery,
    Workload,
    WorkloadSpec,
)
from holdfast.model.meta import ConditionStatus, Object, ObjectMeta, Part, condition
from holdfast.model.no_effect import (
    NO_EFFECT,
    REASON,
    ROWS,
    rows_of,
    warnings,
    with_no_effect,
)
from holdfast.model.registry import KINDS

SOURCE = Path(__file__).parents[3] / "src" / "holdfast"
# What declares, checks, encodes or shows a field does not act on it; the simulator plays users.
PASSIVE = (
    "model/kinds/",
    "model/validation/",
    "model/encoding/",
    "model/defaults.py",
    "model/no_effect.py",
    "model/kind_declaration.py",
    "client/kinds.py",
    "sim/",
)
# How a rule that acted on a row would have to spell it: an attribute, the last two names of a
# longer one, a call, or the import of a kind.
SIGNS: dict[tuple[type[Object], str], tuple[str, ...]] = {
    (Workload, "spec.autoscale"): ("autoscale",),
    (Workload, "spec.recovery.withinSeconds"): ("within_seconds",),
    (Workload, "spec.latencyTargetMs"): ("latency_target_ms",),
    (SchedulerPolicy, "spec.stage"): (
        "PolicyStage.SHADOW",
        "PolicyStage.CANARY",
        "PolicyStage.CELL",
        "PolicyStage.REGION",
    ),
    (SchedulerPolicy, "spec.scope"): ("percent", "import PolicyScope"),
    (SchedulerPolicy, "spec.fallback"): ("fallback",),
    (SchedulerPolicy, "spec.holdSeconds"): ("spec.hold_seconds",),
    (Region, "spec.endpoint"): ("spec.endpoint",),
    (Grant, ""): ("import Grant", "import GrantSpec"),
    (Override, ""): tuple(
        f"OverrideType.{it.name}" for it in OverrideType if it is not OverrideType.REPAIR_APPROVAL
    ),
    (Commitment, ""): ("import Commitment", "import CommitmentSpec"),
}
# Where a sign stands all the same, and why that gives the field no effect.
HARMLESS: dict[tuple[str, str], str] = {
    ("PolicyStage.SHADOW", "commit/lifecycle/bind.py"): "a bind may not name such a policy",
    ("autoscale", "commit/objects/admission.py"): "only compared, to see whether it was changed",
}
# Fields of what people write that no code reads and that are no promise either.
FOR_READERS: dict[str, str] = {
    "TenantSpec.display_name": "for people",
    "Secret.string_data": "turned into `data` by model/defaults.py",
    "ObjectReference.field_path": "for clients of Kubernetes",
    "Event.reporting_component": "for clients of Kubernetes",
    "DecisionSpec.replica_uid": "a record for people",
    "DecisionSpec.seed": "a record for people",
    "DecisionSpec.next_owner": "a record for people",
    "DecisionSpec.queued_at": "a record for people",
}

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
META = ObjectMeta(name="one", generation=3)


def workload(**spec: Any) -> Workload:
    spec.setdefault("template", Template())
    return Workload(META, spec=WorkloadSpec(**spec))


def policy(**spec: Any) -> SchedulerPolicy:
    return SchedulerPolicy(META, spec=SchedulerPolicySpec(**spec))


SET: dict[tuple[type[Object], str], Object] = {
    (Workload, "spec.autoscale"): workload(autoscale=Autoscale(max=4)),
    (Workload, "spec.recovery.withinSeconds"): workload(recovery=Recovery(within_seconds=60)),
    (Workload, "spec.latencyTargetMs"): workload(latency_target_ms=50),
    (SchedulerPolicy, "spec.stage"): policy(stage=PolicyStage.CANARY),
    (SchedulerPolicy, "spec.scope"): policy(scope=PolicyScope(tenants=("acme",))),
    (SchedulerPolicy, "spec.fallback"): policy(fallback="other"),
    (SchedulerPolicy, "spec.holdSeconds"): policy(hold_seconds=60),
    (Region, "spec.endpoint"): Region(META, spec=RegionSpec(endpoint="https://eu")),
    (Grant, ""): Grant(META, spec=GrantSpec(tenant="acme", region="eu", expires=LATER)),
    (Override, ""): Override(
        META, spec=OverrideSpec(OverrideType.PAUSE, OverrideScope(), "why", LATER)
    ),
    (Commitment, ""): Commitment(META, spec=CommitmentSpec(Promise("web", 1))),
}
EVERY_ROW = [(kind, row) for kind, rows in ROWS.items() for row in rows]


def _id(value: Any) -> str:
    return value.path or "whole" if isinstance(value, NoEffectRow) else value.__name__


# The list against the code -----------------------------------------------------------------------


# They share what is found in the source, which takes seconds.
together = pytest.mark.xdist_group("source-signs")


@cache
def signs() -> dict[str, set[str]]:
    """Every sign, with the modules that have it and are not passive."""
    found: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        module = file.relative_to(SOURCE).as_posix()
        if module.startswith(PASSIVE):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            for sign in _signs_of(node):
                found.setdefault(sign, set()).add(module)
    return found


def _signs_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
        before = node.value
        if isinstance(before, ast.Name | ast.Attribute):
            name = before.id if isinstance(before, ast.Name) else before.attr
            yield f"{name}.{node.attr}"
    elif isinstance(node, ast.Call):
        yield f"{ast.unparse(node.func).rpartition('.')[2]}()"
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
        "holdfast.model.kinds"
    ):
        yield from (f"import {alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield f"'{node.value}'"


@together
def test_nothing_acts_on_what_is_said_to_have_no_effect() -> None:
    """A field that has an effect by now must leave the list. [A15]"""
    assert set(SIGNS) == {(kind, row.path) for kind, row in EVERY_ROW}
    acting = {
        (sign, module)
        for wanted in SIGNS.values()
        for sign in wanted
        for module in signs().get(sign, ())
    }
    assert acting == set(HARMLESS)


def fields_of(struct: type[Any], path: str = "") -> Iterator[tuple[str, type[Any], str]]:
    """Path, struct and name of all fields below a struct."""
    for field in msgspec.structs.fields(struct):
        at = f"{path}.{field.encode_name}" if path else field.encode_name
        yield at, struct, field.name
        for part, is_many in _parts_of(field.type):
            if part is not struct:
                yield from fields_of(part, f"{at}[]" if is_many else at)


def _parts_of(annotation: Any, is_many: bool = False) -> Iterator[tuple[type[Any], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation, is_many
    more = getattr(annotation, "__origin__", None) in (tuple, dict)
    for inner in get_args(annotation):
        yield from _parts_of(inner, is_many or more)


@together
def test_every_field_that_no_code_reads_is_listed_or_has_a_reason() -> None:
    """Status is for readers; of all else, what nothing reads promises something that is not.

    [A15]
    """
    covered, unread = set[str](), set[str]()
    for kind in KINDS:
        paths = [row.path.partition("=")[0] for row in ROWS.get(kind.struct, ())]
        for path, struct, name in fields_of(kind.struct):
            if path.startswith(("metadata", "status")):
                continue
            called = f"{struct.__name__}.{name}"
            if any(not listed or f"{path}.".startswith(f"{listed}.") for listed in paths):
                covered.add(called)
            if name not in signs():
                unread.add(called)
    assert unread - covered == set(FOR_READERS)


def test_every_row_is_a_field_whose_description_says_so() -> None:
    """`kubectl explain` says what the warning says. [A15]"""
    for kind, row in EVERY_ROW:
        text = struct_description(kind)
        if row.path:
            wanted = row.path.partition("=")[0]
            struct, name = next(
                (struct, name) for path, struct, name in fields_of(kind) if path == wanted
            )
            text = field_descriptions(struct)[name]
        assert "no effect yet" in text, (kind, row.path, text)


UNWRITTEN: dict[type[Part], Unwritten] = {
    type(field.default): kind.unwritten
    for kind in KINDS
    for field in msgspec.structs.fields(kind.struct)
    if field.name == "status" and kind.unwritten != Unwritten()
}


@together
@pytest.mark.parametrize("struct", UNWRITTEN, ids=_id)
def test_what_nothing_writes_is_described_so(struct: type[Part]) -> None:
    """And nothing writes it. [A15]"""
    unwritten, described_fields = UNWRITTEN[struct], field_descriptions(struct)
    for name in unwritten.fields:
        assert "not written yet" in described_fields[name], name
    if unwritten.conditions:
        text = described_fields["conditions"]
        assert "not written yet" in text
        assert all(it in text for it in unwritten.conditions)
    if struct.__name__ not in WRITTEN_IN_PART:
        assert f"import {struct.__name__}" not in signs()
    names = [f"'{it}'" for it in unwritten.conditions if it not in ALSO_MEANS]
    assert not any(signs().get(name, set()) for name in names)


# Statuses of which other parts are written, so that modules import them.
WRITTEN_IN_PART = {
    "WorkloadStatus",
    "ReplicaStatus",
    "NodeStatus",
    "ReservationStatus",
    "QuotaStatus",
}
# Types of conditions that mean something else as well: a state, a stage, a phase, or a condition
# of another kind, which is written.
ALSO_MEANS = {"Bound", "SchedulingRetrying", "Ready", "Serving", "Accepted", "Active"}


# What is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, row", EVERY_ROW, ids=_id)
def test_a_row_is_said_of_an_object_that_sets_it_and_of_no_other(
    kind: type[Object], row: NoEffectRow
) -> None:
    """In a header, so in a bounded line of plain characters. [A15]"""
    obj = SET[kind, row.path]
    assert rows_of(obj) == (row,)
    (said,) = warnings(obj)
    assert said.startswith(row.path.partition("=")[0] or f"{kind.__name__} objects")
    assert "no effect yet" in said
    assert said.isascii()
    assert len(said) < 250


def test_plain_objects_are_warned_of_nothing() -> None:
    plain = (workload(), policy(), policy(stage=PolicyStage.ACTIVE), Node(META), Region(META))
    assert [warnings(it) for it in plain] == [()] * 5
    assert all(with_no_effect(it, NOW) is it for it in plain)


def test_the_condition_names_all_fields_and_goes_with_them() -> None:
    """One condition, whose time moves only when it comes. [A15]"""
    both = workload(autoscale=Autoscale(max=4), latency_target_ms=50)
    said = with_no_effect(both, NOW)
    found = condition(said.status.conditions, NO_EFFECT)
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.TRUE, REASON)
    assert (found.observed_generation, found.last_transition_time) == (3, NOW)
    assert "spec.autoscale" in found.message
    assert "spec.latencyTargetMs" in found.message
    assert with_no_effect(said, LATER) is said
    spec = msgspec.structs.replace(said.spec, autoscale=None)
    fewer = with_no_effect(msgspec.structs.replace(said, spec=spec), LATER)
    found = condition(fewer.status.conditions, NO_EFFECT)
    assert found is not None
    assert "autoscale" not in found.message
    assert found.last_transition_time == NOW
    spec = msgspec.structs.replace(spec, latency_target_ms=None)
    assert with_no_effect(msgspec.structs.replace(said, spec=spec), LATER).status.conditions == ()
