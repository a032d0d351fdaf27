"""Admission: always the same order, a refusal that names field, rule and scope, never a charge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.commit.objects import admission
from holdfast.commit.objects.admission import (
    BASIS_ANNOTATION,
    CHANGES_ANNOTATION,
    HINTS_ANNOTATION,
    HINTS_RECORDED_MAX,
    STEPS,
)
from holdfast.commit.objects.admission_checks import POLICY_VERSION
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import DeviceRequest, RestartPolicy
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.kinds.workload import Rollout, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Update
from tests.furnished import ANN, ANONYMOUS, BOB, Furnished, counted
from tests.plane import ADMIN, SCHEDULER, refused, template


def workload(name: str = "api", namespace: str = "acme", **spec: Any) -> Workload:
    spec = {"template": template(), **spec}
    return Workload(ObjectMeta(name=name, namespace=namespace), spec=WorkloadSpec(**spec))


def test_the_order_is_part_of_the_promise() -> None:
    """[B3]"""
    assert [name for name, _ in STEPS] == [
        "authenticate",
        "authorise",
        "default",
        "validate",
        "tenant",
        "set aside",
        "policy",
        "quota",
        "record",
    ]


# Each is wrong for one step only. Together they fail at the first step that any of them fails.
FAULTS: dict[str, tuple[Reason, Callable[[dict[str, Any]], None]]] = {
    "authenticate": (
        Reason.UNAUTHENTICATED,
        lambda case: case.update(identity=ANONYMOUS),
    ),
    "authorise": (
        Reason.NOT_ALLOWED,
        lambda case: case.update(identity=case.get("identity", BOB)),
    ),
    "validate": (
        Reason.INVALID,
        lambda case: case.update(name="Not-A-Name"),
    ),
    "tenant": (
        Reason.TENANT_SUSPENDED,
        lambda case: case.update(suspended=True),
    ),
    "policy": (
        Reason.NOT_ALLOWED,
        lambda case: case.update(devices=(DeviceRequest(device_class="gpu"),)),
    ),
    "quota": (
        Reason.QUOTA_EXCEEDED,
        lambda case: case.update(cpu="100"),
    ),
}


@pytest.mark.parametrize("first", FAULTS)
def test_the_first_step_that_fails_is_the_one_that_is_reported(first: str) -> None:
    """An unknown caller learns nothing of the schema, an invalid object nothing of quota. [B3]"""
    names = list(FAULTS)
    case: dict[str, Any] = {}
    for name in names[names.index(first) :]:
        FAULTS[name][1](case)
    it = Furnished()
    it.plane.quota(hard={"cpu": "4"})
    if case.get("suspended"):
        it.updated(it.plane.read("objects/tenants/acme"), suspended=True)
    made = template(cpu=case.get("cpu", "1"), devices=case.get("devices", ()))
    request = Create(workload(case.get("name", "api"), template=made))
    identity = case.get("identity", ANN)
    # A missing permission must not be reported before a missing identity.
    if first != "authenticate" and first != "authorise":
        identity = ANN
    refused(it.ask(identity, request), FAULTS[first][0])


def test_nothing_is_charged_at_submit() -> None:
    """[D1]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "4"})
    it.yes(ANN, Create(workload(replicas=100)))
    assert counted(it.plane) == {}
    assert "acme" not in {
        tenant
        for tenant, use in it.plane.read("ledgers/quota/tenant:acme").used.items()
        if use.hard
    }


@pytest.mark.parametrize("of", [CapacityClass.HARD, CapacityClass.RECLAIMABLE])
def test_one_replica_that_could_never_fit_is_refused(of: CapacityClass) -> None:
    """With what may be borrowed it may still fit; field, limit and scope are named. [B4, D1, B1]"""
    it = Furnished()
    hard = of is CapacityClass.HARD
    it.plane.quota(
        hard={"cpu": "2"}, reclaimable={"cpu": "3"}, borrowing={"cpu": "1"}, cohort="both"
    )
    name = "" if hard else "spot"
    fits, more = template(cpu="3", priority_class=name), template(cpu="3001m", priority_class=name)
    it.yes(ANN, Create(workload(template=fits)))
    refusal = refused(it.ask(ANN, Create(workload("b", template=more))), Reason.QUOTA_EXCEEDED)
    assert refusal.details["field"] == "spec.template.resources"
    assert refusal.details["scope"] == "acme"
    assert refusal.details["limit"] == "3"


@pytest.mark.parametrize("stricter", ["quota", "policy"])
def test_what_was_admitted_can_be_scaled_down_when_the_rules_become_stricter(stricter: str) -> None:
    """But nothing more of it can be asked for."""
    it = Furnished()
    made = it.yes(ANN, Create(workload(replicas=4, template=template(priority_class="high"))))
    if stricter == "quota":
        it.plane.quota(hard={"cpu": "500m"})
        reason = Reason.QUOTA_EXCEEDED
    else:
        it.updated(it.plane.read("objects/priorityclasses/high"), allowed_tenants=("globex",))
        reason = Reason.NOT_ALLOWED
    it.updated(made, ANN, replicas=2)
    it.updated(made, ANN, rollout=Rollout(paused=True))
    refused(it.ask(ANN, Update(scaled(it.get(made), 3))), reason)
    larger = msgspec.structs.replace(
        it.get(made).spec, template=template(cpu="2", priority_class="high")
    )
    refused(it.ask(ANN, Update(msgspec.structs.replace(it.get(made), spec=larger))), reason)
    refused(it.ask(ANN, Create(workload("b", template=template(priority_class="high")))), reason)


def scaled(obj: Any, replicas: int) -> Any:
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, replicas=replicas))


def test_what_admission_changed_is_recorded_on_the_object() -> None:
    """[B4]"""
    it = Furnished()
    made = it.yes(ANN, Create(workload(type=WorkloadType.JOB)))
    note = made.metadata.annotations[CHANGES_ANNOTATION]
    assert made.spec.template.restart is RestartPolicy.ON_FAILURE
    assert "spec.template.restart is OnFailure" in note
    plain = it.yes(ANN, Create(workload("plain")))
    assert CHANGES_ANNOTATION not in plain.metadata.annotations


def test_only_admission_writes_its_record() -> None:
    """[B4]"""
    it = Furnished()
    forged = workload()
    metadata = msgspec.structs.replace(
        forged.metadata,
        annotations={CHANGES_ANNOTATION: "nothing", HINTS_ANNOTATION: "to see", "mine": "x"},
    )
    made = it.yes(ANN, Create(msgspec.structs.replace(forged, metadata=metadata)))
    assert set(made.metadata.annotations) == {"mine", BASIS_ANNOTATION}
    changed = msgspec.structs.replace(
        made.metadata, annotations={BASIS_ANNOTATION: "policy 9", "mine": "y"}
    )
    after = it.yes(ANN, Update(msgspec.structs.replace(made, metadata=changed)))
    assert after.metadata.annotations == {**made.metadata.annotations, "mine": "y"}


def test_work_records_under_which_policies_and_on_which_records_it_was_admitted() -> None:
    """And keeps telling so until it asks for something new. [B4]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "100"})
    high = "objects/priorityclasses/high"

    def basis(obj: Any) -> str:
        return str(obj.metadata.annotations[BASIS_ANNOTATION])

    def expected() -> str:
        at = it.plane.store.get
        return (
            f"policy {POLICY_VERSION}: tenant @{at('objects/tenants/acme').modified}, "
            f"priorityclass high @{at(high).modified}, "
            f"quota @{at('objects/quotas/acme/default').modified}"
        )

    made = it.yes(ANN, Create(workload(replicas=4, template=template(priority_class="high"))))
    assert basis(made) == expected()
    it.updated(it.plane.read(high), description="for people")
    fewer = it.updated(made, ANN, replicas=2)
    assert basis(fewer) == basis(made) != expected()
    more = it.updated(fewer, ANN, replicas=3)
    assert basis(more) == expected()
    plain = it.yes(ANN, Create(workload("plain")))
    assert "priorityclass default none" in basis(plain)


def test_what_was_doubtful_is_kept_on_the_object() -> None:
    """A hint fails open, with a record. [B5, B4]"""
    it = Furnished()
    regions = tuple(f"r{number}" for number in range(HINTS_RECORDED_MAX + 3))
    made = it.yes(ANN, Create(workload(template=template(placement=Placement(regions=regions)))))
    *hints, last = made.metadata.annotations[HINTS_ANNOTATION].splitlines()
    assert hints[0] == "spec.template.placement.regions: there is no region 'r0' yet"
    assert (len(hints), last) == (HINTS_RECORDED_MAX, "and 3 more")
    it.plane.region("r0", "eu")
    other = template(placement=Placement(regions=("r0",)))
    spec = msgspec.structs.replace(made.spec, template=other)
    after = it.yes(ANN, Update(msgspec.structs.replace(made, spec=spec)))
    assert HINTS_ANNOTATION not in after.metadata.annotations


def test_admission_twice_changes_nothing_more() -> None:
    it = Furnished()
    made = it.yes(ANN, Create(workload(type=WorkloadType.JOB)))
    before = it.plane.store.revision
    it.yes(ANN, Update(made))
    assert it.plane.store.revision == before


def test_a_namespace_needs_its_tenant() -> None:
    """[B2, B5]"""
    it = Furnished()
    refusal = refused(it.ask(ADMIN, Create(workload(namespace="nowhere"))), Reason.MISSING)
    assert refusal.details == {
        "tenant": "nowhere",
        "field": "metadata.namespace",
        "policy": "tenant",
        "scope": "Tenant nowhere",
    }
    it.plane.create(Secret(ObjectMeta(name="s", namespace="holdfast-system")))


def test_a_suspended_tenant_gets_no_new_work_and_keeps_what_it_has() -> None:
    it = Furnished()
    running, replica = it.running(), it.pending()
    it.updated(it.plane.read("objects/tenants/acme"), suspended=True)
    refused(it.ask(ANN, Create(workload())), Reason.TENANT_SUSPENDED)
    refused(it.ask(SCHEDULER, it.bind(replica)), Reason.TENANT_SUSPENDED)
    it.yes(ANN, Create(Secret(ObjectMeta(name="s", namespace="acme"))))
    assert it.get(running) == running or it.get(running).status == running.status
    it.updated(it.web, ANN, replicas=2)


def test_what_is_wrong_is_said_all_at_once_with_paths() -> None:
    """[B4]"""
    it = Furnished()
    bad = workload(
        "ok",
        template=template(cpu="-1", placement=Placement(regions=("Not A Name",))),
    )
    refusal = refused(it.ask(ANN, Create(bad)), Reason.INVALID)
    paths = {cause.path for cause in refusal.causes}
    assert {"spec.template.resources.cpu", "spec.template.placement.regions[0]"} <= paths
    assert refusal.details == {"kind": "Workload", "name": "ok"}


def test_only_the_first_refusal_is_made() -> None:
    """Nothing is read or written after it. [B3]"""
    seen: list[str] = []
    refusal = Refusal(Reason.NOT_ALLOWED, "no")

    def step(name: str, answer: Refusal | None) -> tuple[str, Any]:
        return name, lambda draft, context, admission: seen.append(name) or answer

    kept = admission.STEPS
    try:
        admission.STEPS = (step("a", None), step("b", refusal), step("c", None))
        outcome = admission.admit(None, None, admission.Admission(workload()))  # type: ignore[arg-type]
    finally:
        admission.STEPS = kept
    assert (outcome, seen) == (refusal, ["a", "b"])
