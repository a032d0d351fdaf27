"""Default and minimum resources of work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.commit.objects.admission import CHANGES_ANNOTATION
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Create, Patch, PatchType, Update
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, SCHEDULER, refused

PLANE = PlaneSettings(
    default_resources=Resources(cpu="100m", memory="128Mi"),
    minimum_resources=Resources(cpu="10m"),
)


def unstated(name: str = "api", replicas: int = 1, **template: Any) -> Workload:
    """Work that states nothing, or this much."""
    stated = Template(command=("sleep", "60"), **template)
    spec = WorkloadSpec(replicas=replicas, template=stated)
    return Workload(ObjectMeta(name=name, namespace="acme"), spec=spec)


def made(it: Furnished, **template: Any) -> Resources:
    found: Resources = it.yes(ANN, Create(unstated(**template))).spec.template.resources
    return found


def test_work_that_states_nothing_does_not_fit_a_node_in_any_number() -> None:
    """Of 60 replicas two cores take what is set aside for, and not all."""
    it = Furnished(settings=PLANE, cpus=2)
    work = it.yes(ANN, Create(unstated(replicas=60)))
    placed = 0
    for _ in range(60):
        if not isinstance(it.plane.ask(SCHEDULER, it.bind(it.pending(work))), Accepted):
            break
        placed += 1
    it.check()
    assert placed == 20


def test_what_was_defaulted_stands_on_the_object() -> None:
    """[B4]"""
    it = Furnished(settings=PLANE)
    work = it.yes(ANN, Create(unstated()))
    said = "spec.template.resources.cpu set to 100m by the plane"
    assert work.spec.template.resources == Resources(cpu="100m", memory="128Mi")
    assert said in work.metadata.annotations[CHANGES_ANNOTATION]


def test_the_rules_of_a_tenant_go_before_those_of_the_plane() -> None:
    """Resource by resource; what is left out is as the plane says."""
    it = Furnished(settings=PLANE)
    tenant = it.plane.read("objects/tenants/acme")
    it.updated(tenant, defaults=Resources(cpu="2", disk="1Gi"), minimum=Resources(memory="256Mi"))
    work = it.yes(ANN, Create(unstated()))
    assert work.spec.template.resources == Resources(cpu="2", memory="256Mi", disk="1Gi")
    assert "disk set to 1Gi by Tenant acme" in work.metadata.annotations[CHANGES_ANNOTATION]


def test_what_is_stated_stays_and_a_limit_is_not_exceeded() -> None:
    """Neither is raised or lowered."""
    it = Furnished(settings=PLANE)
    stated = Resources(cpu="20m", memory="1Gi")
    assert made(it, name="stated", resources=stated) == stated
    limits = Resources(cpu="50m", memory="1Gi")
    limited = made(it, name="limited", limits=limits)
    assert limited == Resources(cpu="50m", memory="128Mi")


@pytest.mark.parametrize("stated", [Resources(cpu="9m"), Resources(cpu="0.001m", memory="1Gi")])
def test_less_than_the_minimum_is_refused_by_field_and_rule(stated: Resources) -> None:
    """[B4]"""
    it = Furnished(settings=PLANE)
    refusal = refused(it.ask(ANN, Create(unstated(resources=stated))), Reason.NOT_ALLOWED)
    assert refusal.details["field"] == "spec.template.resources.cpu"
    assert refusal.details["scope"] == "the plane"
    assert "must be at least 10m" in refusal.message
    low = refused(it.ask(ANN, Create(unstated(limits=Resources(cpu="5m")))), Reason.NOT_ALLOWED)
    assert low.details["value"] == "5m"


def test_older_work_can_be_scaled_without_a_rollout_and_gets_them_with_its_next_template() -> None:
    """Scaling does not ask for other replicas."""
    it = Furnished()
    old = it.yes(ANN, Create(unstated(replicas=2)))
    it.plane.settings = msgspec.structs.replace(PLANE, minimum_resources=Resources())
    it.plane.authority = it.plane.new_authority()
    scaled = it.yes(ANN, Update(with_spec(old, replicas=3)))
    assert scaled.spec.template == old.spec.template
    template = msgspec.structs.replace(old.spec.template, command=("sleep", "61"))
    changed = it.yes(ANN, Update(with_spec(scaled, template=template)))
    assert changed.spec.template.resources == PLANE.default_resources


def test_an_apply_of_the_same_file_changes_nothing_and_can_name_its_own_later() -> None:
    """Server-side apply owns what it states, and leaves what admission filled in."""
    it = Furnished(settings=PLANE)
    body: dict[str, Any] = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "filed", "namespace": "acme"},
        "spec": {"template": {"command": ["sleep", "60"]}},
    }

    def apply() -> Any:
        patch = Patch(
            "workloads", "acme", "filed", PatchType.APPLY, body, manager="ann", strict=True
        )
        return it.yes(ANN, patch)

    first = apply()
    assert first.spec.template.resources == PLANE.default_resources
    again = apply()
    assert again.metadata.generation == first.metadata.generation
    body["spec"]["template"]["resources"] = {"cpu": "1"}
    named = apply().spec.template.resources
    assert (named.cpu, named.memory) == ("1", "128Mi")


def test_a_tenant_s_default_is_never_below_its_minimum() -> None:
    it = Furnished()
    tenant = it.plane.read("objects/tenants/acme")
    rules = {"defaults": Resources(cpu="10m"), "minimum": Resources(cpu="50m")}
    spec = msgspec.structs.replace(tenant.spec, **rules)
    wrong = it.ask(ADMIN, Update(msgspec.structs.replace(tenant, spec=spec)))
    assert isinstance(wrong, Refusal)
    assert "must not be less than spec.minimum.cpu" in wrong.message


def with_spec(work: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(work, spec=msgspec.structs.replace(work.spec, **changes))
