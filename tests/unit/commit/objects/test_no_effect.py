"""Every write of a field that nothing acts on says so, to its writer and on the object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.objects.admission import HINTS_ANNOTATION
from holdfast.model.access import identity as who
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.workload import Autoscale, Workload, WorkloadSpec
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta, condition
from holdfast.model.no_effect import NO_EFFECT
from holdfast.model.requests import Accepted, Create, Patch, PatchType, Update
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, accepted, template

AUTOSCALE = {"autoscale": {"max": 4}}
STATUS = who.controller("status")


def workload(**spec: Any) -> Workload:
    metadata = ObjectMeta(name="api", namespace="acme")
    return Workload(metadata, spec=WorkloadSpec(template=template(), **spec))


def patch(kind: PatchType, body: Any, **more: Any) -> Patch:
    return Patch("workloads", "acme", "api", kind, body, manager="ci", **more)


def applied(spec: dict[str, Any]) -> Patch:
    whole = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "api", "namespace": "acme"},
        "spec": {"template": {"command": ["sleep", "60"]}, **spec},
    }
    return patch(PatchType.APPLY, whole)


def said(answer: Any) -> list[str]:
    """What an accepted write warns of besides other hints."""
    assert isinstance(answer, Accepted), answer
    return [it for it in answer.warnings if "no effect yet" in it]


def stated(obj: Any) -> Any:
    return condition(obj.status.conditions, NO_EFFECT)


WAYS: dict[str, Any] = {
    "create": lambda it: Create(workload(autoscale=Autoscale(max=4))),
    "apply that creates": lambda it: applied(AUTOSCALE),
    "update": lambda it: Update(
        msgspec.structs.replace(
            it.yes(ANN, Create(workload())), spec=workload(autoscale=Autoscale(max=4)).spec
        )
    ),
    "merge patch": lambda it: (
        it.yes(ANN, Create(workload())) and patch(PatchType.MERGE, {"spec": AUTOSCALE})
    ),
    "JSON patch": lambda it: (
        it.yes(ANN, Create(workload()))
        and patch(PatchType.JSON, [{"op": "add", "path": "/spec/autoscale", "value": {"max": 4}}])
    ),
    "apply": lambda it: it.yes(ANN, applied({})) and applied(AUTOSCALE),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_set_a_field_warns_and_states_the_condition(way: str) -> None:
    """In one transaction with the field. [A15]"""
    it = Furnished()
    request = WAYS[way](it)
    answer = it.ask(ANN, request)
    (text,) = said(answer)
    assert text.startswith("spec.autoscale has no effect yet")
    found = it.get(accepted(answer))
    assert stated(found).status is ConditionStatus.TRUE
    assert stated(found).observed_generation == found.metadata.generation
    assert text in stated(found).message


def test_the_warning_comes_with_every_write_and_the_condition_is_written_once() -> None:
    """What changes nothing is still not written. [A15]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload(autoscale=Autoscale(max=4))))
    before = it.plane.store.revision
    assert said(it.ask(ANN, Update(it.get(made))))
    assert it.plane.store.revision == before
    labelled = it.yes(ANN, patch(PatchType.MERGE, {"metadata": {"labels": {"a": "1"}}}))
    assert stated(labelled) == stated(it.get(made))


def test_the_condition_goes_with_the_field() -> None:
    it = Furnished()
    it.yes(ANN, Create(workload(autoscale=Autoscale(max=4))))
    answer = it.ask(ANN, patch(PatchType.MERGE, {"spec": {"autoscale": None}}))
    assert said(answer) == []
    assert stated(it.get(accepted(answer))) is None


def test_scaling_says_nothing_again() -> None:
    """An autoscaler of another make would read it for ever."""
    it = Furnished()
    it.yes(ANN, Create(workload(latency_target_ms=50)))
    answer = it.ask(ANN, patch(PatchType.MERGE, {"spec": {"replicas": 3}}, subresource="scale"))
    assert said(answer) == []
    assert stated(it.get(accepted(answer))) is not None


def test_no_caller_claims_or_writes_the_condition() -> None:
    """It belongs to the server, whichever client set the field. [A9]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload(latency_target_ms=50), "kubectl"))
    assert "NoEffect" not in str(made.metadata.managed_fields)
    forged = msgspec.structs.replace(stated(made), status=ConditionStatus.FALSE)
    for conditions in ((), (forged,)):
        status = msgspec.structs.replace(made.status, conditions=conditions, observed_generation=1)
        update = Update(msgspec.structs.replace(it.get(made), status=status), subresource="status")
        after = it.yes(STATUS, update)
        assert (after.status.observed_generation, stated(after)) == (1, stated(made))
    more = Condition("Available", ConditionStatus.TRUE)
    body = {"status": {"conditions": [msgspec.to_builtins(more)]}}
    after = it.yes(STATUS, patch(PatchType.MERGE, body, subresource="status"))
    assert {it.type for it in after.status.conditions} == {"Available", NO_EFFECT}
    assert stated(after) == stated(made)


def test_what_the_condition_says_is_no_hint_of_admission() -> None:
    """Hints that are kept on an object are those that nothing else says."""
    it = Furnished()
    made = it.yes(ANN, Create(workload(latency_target_ms=50)))
    assert "no effect" not in made.metadata.annotations.get(HINTS_ANNOTATION, "")


def test_kinds_of_operators_warn_too() -> None:
    """[A15]"""
    it = Furnished()
    region = Region(ObjectMeta(name="far"), spec=RegionSpec(endpoint="https://far"))
    answer = it.ask(ADMIN, Create(region))
    assert said(answer) != []
    assert stated(it.get(accepted(answer))) is not None
