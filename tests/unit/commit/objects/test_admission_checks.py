"""Built-in admission policies, and the fields that admission sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commit.objects.admission import CHANGES_ANNOTATION
from holdfast.commit.objects.admission_checks import POLICIES, Fails
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.override import Override, OverrideScope, OverrideSpec, OverrideType
from holdfast.model.kinds.placement import (
    Affinity,
    Placement,
    Preference,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.kinds.region import Pool
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec
from holdfast.model.kinds.workload import Recovery, Workload, WorkloadSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.placement_rules import NODE_LABEL
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, BindTogether, Create, HoldCapacity, Update
from holdfast.model.selection.selectors import Expression, LabelSelector, SelectorOperator
from tests.furnished import ANN, BOB, Furnished
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, accepted, refused, template


def workload(name: str = "api", namespace: str = "acme", **spec: Any) -> Workload:
    spec = {"template": template(), **spec}
    return Workload(ObjectMeta(name=name, namespace=namespace), spec=WorkloadSpec(**spec))


def test_recovery_work_is_marked_critical_and_that_is_recorded() -> None:
    """[B1, B4]"""
    it = Furnished()
    critical = PriorityClass(ObjectMeta(name="critical"), spec=PriorityClassSpec(value=1000))
    it.plane.create(critical)
    made = it.yes(ANN, Create(workload(recovery=Recovery(regions=("eu-west",)))))
    assert made.spec.template.priority_class == "critical"
    assert (
        "because spec.recovery asks for recovery" in (made.metadata.annotations[CHANGES_ANNOTATION])
    )
    named = it.yes(
        ANN,
        Create(
            workload(
                "named", template=template(priority_class="high"), recovery=Recovery(regions=())
            )
        ),
    )
    assert named.spec.template.priority_class == "high"
    never = it.yes(ANN, Create(workload("never", recovery=Recovery(eligible=False))))
    assert never.spec.template.priority_class == ""
    assert accepted(it.ask(WORKLOADS, it.birth(made))).spec.priority == 1000


def test_recovery_without_a_class_for_it_is_let_in_with_a_warning() -> None:
    """A hint fails open, and says so. [B5]"""
    it = Furnished()
    answer = it.ask(ANN, Create(workload(recovery=Recovery(regions=("eu-west",)))))
    assert accepted(answer).spec.template.priority_class == ""
    assert any("there is no priority class 'critical'" in line for line in answer.warnings)


def test_a_priority_class_is_for_those_whom_it_names() -> None:
    """Also when admission itself would choose it. [B6]"""
    it = Furnished()
    spec = PriorityClassSpec(value=1000, allowed_tenants=("globex",))
    it.plane.create(PriorityClass(ObjectMeta(name="critical"), spec=spec))
    wanted = template(priority_class="critical")
    refusal = refused(it.ask(ANN, Create(workload(template=wanted))), Reason.NOT_ALLOWED)
    assert refusal.details == {
        "field": "spec.template.priorityClass",
        "value": "critical",
        "scope": "PriorityClass critical",
        "policy": "priority-class/2",
    }
    assert refusal.message.endswith("(policy priority-class of PriorityClass critical)")
    refused(it.ask(ANN, Create(workload(recovery=Recovery(regions=())))), Reason.NOT_ALLOWED)
    it.yes(BOB, Create(workload(namespace="globex", template=wanted)))
    refused(it.ask(ANN, Create(workload(template=template(priority_class="none")))), Reason.MISSING)


def test_a_protected_pool_cannot_be_selected_by_others() -> None:
    """In any region that the work names, and in all of them when it names none. [B6, C6.8, B1]"""
    it = Furnished()
    region = it.plane.read("objects/regions/eu-west")
    guarded = Protection(tenants=("globex",))
    it.updated(region, pools=(Pool(name="vault", protected_for=guarded),))
    it.plane.region("us-east", "us")

    def asks_for(*regions: str, namespace: str = "acme") -> Workload:
        placement = Placement(pool="vault", regions=regions)
        return workload(namespace=namespace, template=template(placement=placement))

    for regions in ((), ("eu-west",), ("us-east", "eu-west")):
        refusal = refused(it.ask(ANN, Create(asks_for(*regions))), Reason.PROTECTED_CAPACITY)
        assert refusal.details["scope"] == "Region eu-west"
        assert refusal.details["field"] == "spec.template.placement.pool"
    it.yes(ANN, Create(asks_for("us-east")))
    it.yes(BOB, Create(asks_for("eu-west", namespace="globex")))


def test_every_policy_says_whether_it_fails_closed_or_open() -> None:
    """Security and protected capacity closed, hints open; the page for operators says so. [B5]"""
    closed = {it.name for it in POLICIES if it.fails is Fails.CLOSED}
    assert closed == {
        "priority-class",
        "protected-pool",
        "protected-node",
        "device-shape",
        "minimum-resources",
        "tenant-regions",
    }
    assert {it.name for it in POLICIES} - closed == {"known-regions", "stop-grace"}
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    for it in POLICIES:
        assert f"| {it.name} | {it.fails} | {it.about} |" in page


def vault(it: Furnished) -> Any:
    """A node in a pool that is kept for globex, with labels and a taint of its own."""
    region = it.plane.read("objects/regions/eu-west")
    it.updated(region, pools=(Pool(name="vault", protected_for=Protection(tenants=("globex",))),))
    node = it.plane.node("node-v", pool="vault")
    taint = Taint(key="vault", effect=TaintEffect.NO_SCHEDULE)
    return it.updated(node, taints=(taint,))


BY_NAME = (
    Placement(node_selector={NODE_LABEL: "node-v"}),
    Placement(node_expressions=(Expression(NODE_LABEL, SelectorOperator.IN, ("node-v",)),)),
)


@pytest.mark.parametrize("placement", BY_NAME)
def test_a_protected_node_cannot_be_named_by_others(placement: Placement) -> None:
    """Unless it is not there yet, or one of those named may be had; the bind judges then. [B6]"""
    it = Furnished()
    early = it.yes(ANN, Create(workload("early", template=template(placement=placement))))
    vault(it)
    made = template(placement=placement)
    refusal = refused(it.ask(ANN, Create(workload(template=made))), Reason.PROTECTED_CAPACITY)
    assert refusal.details["field"].startswith("spec.template.placement.node")
    assert refusal.details["policy"] == "protected-node/2"
    it.yes(BOB, Create(workload(namespace="globex", template=made)))
    either = Expression(NODE_LABEL, SelectorOperator.IN, ("node-v", "node-a"))
    both = template(placement=Placement(node_expressions=(either,)))
    it.yes(ANN, Create(workload("both", template=both)))
    it.updated(early, ANN, replicas=0)


@pytest.mark.parametrize(
    "placement",
    [
        Placement(),
        Placement(tolerations=(Toleration(operator=TolerationOperator.EXISTS),)),
        Placement(
            node_expressions=(Expression("holdfast.dev/node", SelectorOperator.EXISTS, ()),),
            tolerations=(Toleration(operator=TolerationOperator.EXISTS),),
        ),
        Placement(
            affinity=(Affinity(selector=LabelSelector(match_labels={"app": "theirs"})),),
            tolerations=(Toleration(key="vault", operator=TolerationOperator.EXISTS),),
        ),
        Placement(
            prefer=(Preference(expressions=(Expression("pool", SelectorOperator.EXISTS, ()),)),),
            tolerations=(Toleration(operator=TolerationOperator.EXISTS),),
        ),
    ],
)
def test_no_placement_leads_into_protected_capacity(placement: Placement) -> None:
    """For every bind, reservation or preemption that names the node itself. [B6, C6.8]"""
    it = Furnished()
    node = vault(it)
    mine = it.plane.workload("sly", template=template(placement=placement))
    replica = it.pending(mine)
    owner = ReservationOwner("Workload", mine.name, mine.metadata.uid)
    claims = (Claim(node=node.name, charge={"cpu": 500}),)
    term, until = it.term(SCHEDULER), it.plane.at(60)
    for request in (
        HoldCapacity(mine.namespace, owner, Intent.RECOVERY, claims, until, term),
        it.bind(replica, node),
        BindTogether((it.bind(replica, node),)),
        it.reserve(replica, node),
    ):
        answer = it.ask(SCHEDULER, request)
        assert isinstance(answer, Refusal), request
        assert answer.reason in (Reason.TENANCY_FORBIDDEN, Reason.TAINTED), answer
    theirs = it.plane.workload("ours", "globex", template=template(placement=placement))
    answer = it.ask(SCHEDULER, it.bind(it.pending(theirs), node))
    tolerates = bool(placement.tolerations)
    assert isinstance(answer, Accepted) is tolerates, answer


def test_a_protected_pool_takes_no_other_work_even_unasked() -> None:
    """Work that names no pool must not land there either. [C6.8]"""
    it = Furnished()
    region = it.plane.read("objects/regions/eu-west")
    node = it.plane.node("node-v", pool="vault")
    replica = it.pending()
    it.updated(region, pools=(Pool(name="vault", protected_for=Protection(tenants=("globex",))),))
    refused(it.ask(SCHEDULER, it.bind(replica, node)), Reason.TENANCY_FORBIDDEN)
    theirs = it.pending(it.plane.workload("w", "globex"))
    it.yes(SCHEDULER, it.bind(theirs, node))


@pytest.mark.parametrize(
    "request_, allowed",
    [
        (DeviceRequest(device_class="gpu"), False),
        (DeviceRequest(device_class="gpu", memory="0"), False),
        (DeviceRequest(device_class="gpu", memory="16Gi"), True),
        (DeviceRequest(device_class="gpu", models=("A100",)), True),
        (DeviceRequest(device_class="fpga"), True),
    ],
)
def test_gpu_work_says_what_it_needs(request_: DeviceRequest, allowed: bool) -> None:
    """[B6]"""
    it = Furnished()
    answer = it.ask(ANN, Create(workload(template=template(devices=(request_,)))))
    if allowed:
        accepted(answer)
    else:
        refusal = refused(answer, Reason.NOT_ALLOWED)
        assert refusal.details["field"] == "spec.template.devices[0]"


def test_work_for_regions_that_its_tenant_may_not_use_is_refused() -> None:
    """[C6.2]"""
    it = Furnished()
    it.updated(it.plane.read("objects/tenants/acme"), regions=("eu-west",))
    it.plane.region("us-east", "us")
    away = template(placement=Placement(regions=("us-east",)))
    refused(it.ask(ANN, Create(workload(template=away))), Reason.RESIDENCY_FORBIDDEN)
    either = template(placement=Placement(regions=("us-east", "eu-west")))
    it.yes(ANN, Create(workload(template=either)))


def test_many_regions_that_are_not_there_yet_are_warnings_and_no_harm() -> None:
    """They are looked up together: a long list must not stop the server. [B5]"""
    it = Furnished()
    regions = tuple(f"r{number}" for number in range(40))
    made = template(placement=Placement(regions=regions))
    answer = it.ask(ANN, Create(workload(template=made)))
    accepted(answer)
    assert len([line for line in answer.warnings if "there is no region" in line]) == 40


def test_a_grace_that_a_cut_off_node_will_not_give_is_a_warning() -> None:
    """[B5]"""
    it = Furnished()
    answer = it.ask(ANN, Create(workload(template=template(grace_seconds=60))))
    assert any("spec.template.graceSeconds" in line for line in answer.warnings)
    short = it.ask(ANN, Create(workload("short", template=template(grace_seconds=10))))
    assert short.warnings == ()


def test_the_requester_of_an_override_is_the_authenticated_caller() -> None:
    it = Furnished()
    spec = OverrideSpec(
        type=OverrideType.PAUSE,
        scope=OverrideScope(workloads=("web",)),
        reason="maintenance",
        expires=it.plane.at(600),
        requester="somebody else",
    )
    made = it.yes(ANN, Create(Override(ObjectMeta(name="o", namespace="acme"), spec=spec)))
    assert made.spec.requester == "ann"
    later = msgspec.structs.replace(made.spec, expires=it.plane.at(900), requester="admin")
    after = it.yes(ADMIN, Update(msgspec.structs.replace(made, spec=later)))
    assert after.spec.requester == "ann"


def test_policy_is_asked_again_when_work_changes() -> None:
    it = Furnished()
    made = it.yes(ANN, Create(workload()))
    devices = (DeviceRequest(device_class="gpu"),)
    spec = msgspec.structs.replace(made.spec, template=template(devices=devices))
    refused(it.ask(ANN, Update(msgspec.structs.replace(made, spec=spec))), Reason.NOT_ALLOWED)


@pytest.mark.parametrize("identity", [SCHEDULER, who.controller("rollout"), who.server("a")])
def test_components_do_not_write_what_people_want(identity: Identity) -> None:
    """[A9, C6.7]"""
    it = Furnished()
    refused(it.ask(identity, Create(workload())), Reason.NOT_OWNER)
