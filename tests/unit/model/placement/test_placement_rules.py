"""Where work is allowed, rule by rule."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.node import NodePhase, Protection
from holdfast.model.kinds.placement import (
    Placement,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.placement_rules import (
    first_untolerated,
    gate_refusal,
    protection_refusal,
    residency_refusal,
    selector_refusal,
    site_refusal,
    taint_refusal,
    tolerates,
)
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import Expression, SelectorOperator

EQUAL, EXISTS = TolerationOperator
NO_SCHEDULE, PREFER, NO_EXECUTE = TaintEffect
TAINT = Taint("dedicated", "risk", NO_SCHEDULE)


def reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal is not None else None


@pytest.mark.parametrize(
    "toleration, covered",
    [
        (Toleration("dedicated", EQUAL, "risk"), True),
        (Toleration("dedicated", EQUAL, "risk", NO_SCHEDULE), True),
        (Toleration("dedicated", EQUAL, "risk", NO_EXECUTE), False),
        (Toleration("dedicated", EQUAL, "risk", PREFER), False),
        (Toleration("dedicated", EQUAL, "fraud"), False),
        (Toleration("dedicated", EQUAL, ""), False),
        (Toleration("dedicate", EQUAL, "risk"), False),
        (Toleration("dedicated"), False),
        (Toleration("dedicated", EXISTS), True),
        (Toleration("dedicated", EXISTS, effect=NO_SCHEDULE), True),
        (Toleration("dedicated", EXISTS, effect=NO_EXECUTE), False),
        (Toleration("other", EXISTS), False),
        (Toleration("", EXISTS), True),
        (Toleration("", EXISTS, effect=NO_SCHEDULE), True),
        (Toleration("", EXISTS, effect=NO_EXECUTE), False),
        (Toleration(), False),
        (Toleration("dedicated", EXISTS, toleration_seconds=0), True),
    ],
)
def test_a_toleration_covers_what_it_does_in_kubernetes(
    toleration: Toleration, covered: bool
) -> None:
    """The cases of Kubernetes' own ToleratesTaint, for the taint dedicated=risk:NoSchedule. [F2]"""
    assert tolerates(toleration, TAINT) is covered


def test_a_taint_without_a_value_is_covered_by_an_equal_without_one() -> None:
    assert tolerates(Toleration("gpu"), Taint("gpu"))
    assert not tolerates(Toleration("gpu", EQUAL, "x"), Taint("gpu"))


def test_only_hard_taints_keep_work_away() -> None:
    """PreferNoSchedule ranks; each other taint needs a toleration of its own. [F2]"""
    taints = (Taint("a", effect=PREFER), Taint("b"), Taint("c", effect=NO_EXECUTE))
    assert first_untolerated(taints, ()) == taints[1]
    assert first_untolerated(taints, (Toleration("b"),)) == taints[2]
    assert first_untolerated(taints, (Toleration("b"), Toleration("c"))) is None
    assert first_untolerated(taints, (), hard_only=False) == taints[0]
    refusal = taint_refusal(NodeGate(uid="n", taints=taints), Placement())
    assert refusal is not None
    assert (refusal.reason, refusal.details) == (Reason.TAINTED, {"taint": "b=:NoSchedule"})
    assert taint_refusal(NodeGate(uid="n", taints=taints[:1]), Placement()) is None


@pytest.mark.parametrize(
    "gate, expected",
    [
        (NodeGate(uid="n"), None),
        (NodeGate(uid="n", cordoned=True), Reason.NODE_CORDONED),
        (NodeGate(uid="n", draining=True, cordoned=True), Reason.NODE_DRAINING),
        *(
            (NodeGate(uid="n", phase=phase), Reason.NODE_NOT_READY)
            for phase in NodePhase
            if phase is not NodePhase.READY
        ),
    ],
)
def test_only_a_ready_open_node_takes_work(gate: NodeGate, expected: Reason | None) -> None:
    """Suspect already takes none; draining is named before cordoned. [C4, H4]"""
    assert reason(gate_refusal(gate)) is expected


@pytest.mark.parametrize(
    "protection, expected",
    [
        (None, None),
        (Protection(), None),
        (Protection(tenants=("risk",)), None),
        (Protection(tenants=("fraud", "risk")), None),
        (Protection(tenants=("fraud",)), Reason.TENANCY_FORBIDDEN),
        (Protection(priority_classes=("critical",)), None),
        (Protection(priority_classes=("batch",)), Reason.PROTECTED_CAPACITY),
        (Protection(("fraud",), ("critical",)), Reason.TENANCY_FORBIDDEN),
        (Protection(("risk",), ("batch",)), Reason.PROTECTED_CAPACITY),
        (Protection(("risk",), ("critical",)), None),
    ],
)
def test_protected_capacity_takes_those_it_is_kept_for(
    protection: Protection | None, expected: Reason | None
) -> None:
    """Both lists must name the work, not one of them. [C6.8, D5, INV5]"""
    assert reason(protection_refusal(protection, "risk", "critical")) is expected


def test_work_without_a_priority_class_is_not_in_a_list_of_them() -> None:
    messages = [
        refusal.message
        for name in ("", "batch")
        if (refusal := protection_refusal(Protection((), ("critical",)), "risk", name))
    ]
    assert [m.rpartition(" ")[2] for m in messages] == ["(none)", "batch"]


@pytest.mark.parametrize(
    "placement, expected",
    [
        (Placement(), None),
        (Placement(regions=("us-east", "eu-west"), zones=("b",), pool="gpu"), None),
        (Placement(regions=("us-east",)), Reason.REGION_MISMATCH),
        (Placement(zones=("a", "c")), Reason.ZONE_MISMATCH),
        (Placement(pool="general"), Reason.POOL_MISMATCH),
    ],
)
def test_work_goes_to_the_sites_it_names(placement: Placement, expected: Reason | None) -> None:
    """A site that is not named is any; the refusal says where the node is. [C6.2, F2]"""
    gate = NodeGate(uid="n", region="eu-west", zone="b", pool="gpu")
    assert reason(site_refusal(gate, placement)) is expected


def test_a_node_without_a_site_is_in_none() -> None:
    refusal = site_refusal(NodeGate(uid="n"), Placement(regions=("eu-west",)))
    assert refusal is not None
    assert "(none)" in refusal.message


def tenant(residency: str = "", *regions: str) -> Tenant:
    return Tenant(
        metadata=ObjectMeta(name="risk"), spec=TenantSpec(residency=residency, regions=regions)
    )


EU_WEST = Region(metadata=ObjectMeta(name="eu-west"), spec=RegionSpec(jurisdictions=("eu",)))


@pytest.mark.parametrize(
    "residency, owner, region, expected",
    [
        ("", tenant(), None, None),
        ("", tenant(), EU_WEST, None),
        ("eu", tenant(), EU_WEST, None),
        ("", tenant("eu"), EU_WEST, None),
        ("us", tenant(), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("", tenant("us"), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("eu", tenant("us"), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("us", tenant("eu"), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("EU", tenant(), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("eu", tenant(), None, Reason.RESIDENCY_UNKNOWN),
        ("", tenant("eu"), None, Reason.RESIDENCY_UNKNOWN),
        ("", tenant("", "eu-west"), None, None),
        ("", tenant("", "us-east"), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("eu", tenant("eu", "us-east"), EU_WEST, Reason.RESIDENCY_FORBIDDEN),
        ("", None, EU_WEST, Reason.RESIDENCY_UNKNOWN),
        ("eu", None, EU_WEST, Reason.RESIDENCY_UNKNOWN),
    ],
)
def test_data_stays_where_tenant_and_work_both_allow(
    residency: str, owner: Tenant | None, region: Region | None, expected: Reason | None
) -> None:
    """The stricter rule wins, and what cannot be checked is refused. [B2, C6.2, INV5, J1]"""
    refusal = residency_refusal(Placement(residency=residency), owner, "eu-west", region)
    assert reason(refusal) is expected
    if refusal is not None and owner is not None:
        assert "region eu-west" in refusal.message


def test_a_node_of_no_region_holds_no_data_that_must_stay_somewhere() -> None:
    """An unnamed region is not one of those that a tenant may use. [INV5]"""
    assert reason(residency_refusal(Placement(), tenant("", "eu-west"), "", None)) is (
        Reason.RESIDENCY_FORBIDDEN
    )
    assert reason(residency_refusal(Placement(residency="eu"), tenant(), "", None)) is (
        Reason.RESIDENCY_UNKNOWN
    )


@pytest.mark.parametrize(
    "placement, fits",
    [
        (Placement(), True),
        (Placement(node_selector={"disk": "ssd"}), True),
        (Placement(node_selector={"disk": "hdd"}), False),
        (Placement(node_selector={"disk": "ssd", "arch": "arm"}), False),
        (Placement(node_expressions=(Expression("disk", SelectorOperator.EXISTS),)), True),
        (Placement(node_expressions=(Expression("disk", SelectorOperator.IN, ("hdd",)),)), False),
        (
            Placement(
                node_selector={"disk": "ssd"},
                node_expressions=(Expression("disk", SelectorOperator.DOES_NOT_EXIST),),
            ),
            False,
        ),
    ],
)
def test_every_label_and_expression_must_hold(placement: Placement, fits: bool) -> None:
    """One that does not is named. [F2]"""
    refusal = selector_refusal({"disk": "ssd"}, placement)
    assert (refusal is None) is fits
    if refusal is not None:
        assert refusal.reason is Reason.SELECTOR_MISMATCH
        assert refusal.details["label"] in ("disk", "arch")
