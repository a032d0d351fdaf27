"""What a tenant may still have, by example."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.errors import InvariantBroken, RecordsDisagree
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.quota.allowance import (
    above_nominal,
    ceiling,
    charge_quota,
    cohort_nominal,
    cohort_used,
    grant_refusal,
    is_inside_nominal,
    lending_refusal,
    never_fits,
    quota_refusal,
    refund_quota,
)
from holdfast.model.quota.ledger import Amounts, GrantLedger, QuotaLedger, TenantLimits, TenantUse
from holdfast.model.refusal import Reason, Refusal

HARD, RECLAIMABLE, SOFT = CapacityClass
NOW = datetime(2026, 3, 1, tzinfo=UTC)
# Two tenants of one cohort: risk may borrow 2 of what fraud does not use.
COHORT = QuotaLedger(
    limits={
        "risk": TenantLimits(hard={"cpu": 4000}, borrowing={"cpu": 2000}),
        "fraud": TenantLimits(hard={"cpu": 4000}, reclaimable={"cpu": 1000}),
    }
)


def reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal is not None else None


def test_the_last_unit_of_quota_is_given_once() -> None:
    """The refusal says who uses how much of what. [C6.6, D1, E3, INV3]"""
    full = charge_quota(COHORT, "fraud", HARD, {"cpu": 4000})
    assert quota_refusal(COHORT, "fraud", HARD, {"cpu": 4000}) is None
    refusal = quota_refusal(full, "fraud", HARD, {"cpu": 1})
    assert refusal is not None
    assert refusal.reason is Reason.QUOTA_EXCEEDED
    assert refusal.message == "tenant fraud uses 4 of 4 cpu, 1m more is requested"
    assert refusal.details == {"resource": "cpu", "needed": "1m", "used": "4", "limit": "4"}


def test_a_tenant_borrows_what_the_cohort_does_not_use_and_no_more() -> None:
    """Up to its own ceiling while others are idle, and never beyond the cohort's sum. [INV3]"""
    assert quota_refusal(COHORT, "risk", HARD, {"cpu": 6000}) is None
    assert reason(quota_refusal(COHORT, "risk", HARD, {"cpu": 6001})) is Reason.QUOTA_EXCEEDED
    busy = charge_quota(COHORT, "fraud", HARD, {"cpu": 3000})
    assert quota_refusal(busy, "risk", HARD, {"cpu": 5000}) is None
    assert reason(quota_refusal(busy, "risk", HARD, {"cpu": 5001})) is Reason.COHORT_EXHAUSTED
    lent = charge_quota(COHORT, "risk", HARD, {"cpu": 6000})
    assert reason(quota_refusal(lent, "fraud", HARD, {"cpu": 2001})) is Reason.COHORT_EXHAUSTED
    assert (cohort_nominal(lent, "cpu"), cohort_used(lent, "cpu")) == (8000, 6000)


def test_what_is_not_named_is_not_limited_and_not_lent() -> None:
    """A tenant without a limit neither fills nor widens the cohort. [INV3]"""
    ledger = charge_quota(COHORT, "guest", HARD, {"cpu": 9_000_000})
    assert quota_refusal(ledger, "guest", HARD, {"cpu": 10**12}) is None
    assert quota_refusal(ledger, "risk", HARD, {"memory": 10**12}) is None
    assert cohort_used(ledger, "cpu") == 0
    assert quota_refusal(ledger, "risk", HARD, {"cpu": 6000}) is None
    other = TenantLimits(hard={"memory": 1}, borrowing={"cpu": 1})
    joined = QuotaLedger(limits={**COHORT.limits, "search": other})
    assert cohort_nominal(joined, "cpu") == 8000


def test_reclaimable_capacity_has_limits_of_its_own_and_is_not_lent() -> None:
    """Neither class opens the other's door. [D3]"""
    assert quota_refusal(COHORT, "fraud", RECLAIMABLE, {"cpu": 1000}) is None
    assert reason(quota_refusal(COHORT, "fraud", RECLAIMABLE, {"cpu": 1001})) is (
        Reason.QUOTA_EXCEEDED
    )
    full = charge_quota(COHORT, "fraud", RECLAIMABLE, {"cpu": 1000})
    assert quota_refusal(full, "fraud", HARD, {"cpu": 4000}) is None
    assert full.used["fraud"] == TenantUse(reclaimable={"cpu": 1000})


def test_soft_capacity_backs_nothing() -> None:
    """It is refused, and charging it all the same is our own bug. [D3]"""
    assert quota_refusal(COHORT, "risk", SOFT, {}) is not None
    assert never_fits(TenantLimits(), SOFT, {}) is not None
    for move in (charge_quota, refund_quota):
        with pytest.raises(InvariantBroken, match="soft"):
            move(COHORT, "risk", SOFT, {})


def test_a_lowered_quota_evicts_nothing_but_gives_nothing_more() -> None:
    """Nothing is not more: work that needs none of it is still accepted. [INV3]"""
    ledger = QuotaLedger(
        limits={"risk": TenantLimits(hard={"cpu": 1000, "gpu": 1000})},
        used={"risk": TenantUse(hard={"cpu": 3000})},
    )
    assert reason(quota_refusal(ledger, "risk", HARD, {"cpu": 1})) is Reason.QUOTA_EXCEEDED
    assert quota_refusal(ledger, "risk", HARD, {"cpu": 0, "gpu": 1000}) is None
    assert refund_quota(ledger, "risk", HARD, {"cpu": 3000}).used == {}


@pytest.mark.parametrize(
    "of, amounts",
    [
        (HARD, {"cpu": 1001}),
        (HARD, {"gpu": 1}),
        (RECLAIMABLE, {"cpu": 1}),
    ],
)
def test_refunding_what_was_never_charged_is_our_own_bug(
    of: CapacityClass, amounts: Amounts
) -> None:
    """A second refund would let the tenant exceed its quota. [C6.5]"""
    ledger = charge_quota(COHORT, "risk", HARD, {"cpu": 1000})
    with pytest.raises(InvariantBroken):
        refund_quota(ledger, "risk", of, amounts)
    assert refund_quota(ledger, "risk", HARD, {"cpu": 1000}) == COHORT
    with pytest.raises(InvariantBroken):
        charge_quota(ledger, "risk", HARD, {"cpu": 1, "gpu": -1})


def test_a_budget_limits_one_class_of_work_of_one_tenant() -> None:
    """It is checked after the quota itself, and it cannot be lent. [B6, D1]"""
    own = TenantLimits(hard={"cpu": 4000}, classes={"critical": {"cpu": 1000, "gpu": 0}})
    ledger = charge_quota(
        QuotaLedger(limits={"risk": own}), "risk", HARD, {"cpu": 1000}, "critical"
    )
    assert ledger.used["risk"].classes == {"critical": {"cpu": 1000}}
    more = {"cpu": 1}
    budget, quota = Reason.PRIORITY_BUDGET_EXCEEDED, Reason.QUOTA_EXCEEDED
    assert reason(quota_refusal(ledger, "risk", HARD, more, "critical")) is budget
    assert reason(quota_refusal(ledger, "risk", HARD, {"gpu": 1}, "critical")) is budget
    assert reason(quota_refusal(ledger, "risk", HARD, {"cpu": 3001}, "critical")) is quota
    assert quota_refusal(ledger, "risk", HARD, {"cpu": 0, "memory": 1}, "critical") is None
    assert quota_refusal(ledger, "risk", HARD, {"cpu": 3000}, "batch") is None
    assert quota_refusal(ledger, "risk", RECLAIMABLE, more, "critical") is not None
    with pytest.raises(RecordsDisagree):
        refund_quota(ledger, "risk", HARD, {"cpu": 1000}, "batch")
    assert refund_quota(ledger, "risk", HARD, {"cpu": 1000}, "critical").used == {}
    assert reason(never_fits(own, HARD, {"cpu": 1001}, "critical")) is budget
    assert never_fits(own, HARD, {"cpu": 1001}, "batch") is None


def test_what_never_fits_is_distinguished_from_what_waits() -> None:
    """Borrowing counts, others' use does not. [C7.6]"""
    limits = COHORT.limits["risk"]
    assert never_fits(limits, HARD, {"cpu": 6000, "memory": 10**12}) is None
    refusal = never_fits(limits, HARD, {"cpu": 6001})
    assert refusal is not None
    assert refusal.message == "the tenant uses 0 of 6 cpu, 6001m more is requested"
    assert never_fits(COHORT.limits["fraud"], RECLAIMABLE, {"cpu": 1001}) is not None
    assert [ceiling(limits, of, "cpu") for of in (HARD, RECLAIMABLE)] == [6000, None]


GRANT = GrantLedger(
    serial=3,
    expires=NOW,
    budgets={"guaranteed": {"cpu": 2000, "npu": 1000}, "recovery": {"gpu": 1000}},
    used={"guaranteed": {"cpu": 1500, "npu": 2000}},
)


@pytest.mark.parametrize(
    "budget, amounts, expected",
    [
        ("guaranteed", {"cpu": 500}, None),
        ("guaranteed", {"cpu": 501}, Reason.GRANT_EXCEEDED),
        ("guaranteed", {"memory": 10**12}, None),
        ("guaranteed", {"npu": 0}, None),
        ("guaranteed", {"npu": 1}, Reason.GRANT_EXCEEDED),
        ("guaranteed", {"gpu": 1}, Reason.GRANT_EXCEEDED),
        ("recovery", {"cpu": 1}, Reason.GRANT_EXCEEDED),
        ("recovery", {"gpu": 1000}, None),
        ("recovery", {"gpu": 1001}, Reason.GRANT_EXCEEDED),
        ("temporary", {"cpu": 1}, Reason.GRANT_EXCEEDED),
        ("temporary", {"cpu": 0, "replicas": 1}, None),
    ],
)
def test_a_region_spends_only_what_this_budget_was_given(
    budget: str, amounts: Amounts, expected: Reason | None
) -> None:
    """What another budget was given is not in this one, and an empty one is none. [INV8]"""
    early = NOW - timedelta(hours=1)
    assert reason(grant_refusal(GRANT, budget, amounts, early, 2_000)) is expected


@pytest.mark.parametrize("left_ms, expired", [(2_001, False), (2_000, True), (0, True), (-1, True)])
def test_a_holder_stops_a_skew_before_the_end(left_ms: int, expired: bool) -> None:
    """The reclaimer acts a skew after it, so that both never act at once. [H7, INV8]"""
    at = NOW - timedelta(milliseconds=left_ms)
    refusal = grant_refusal(GRANT, "guaranteed", {}, at, 2_000)
    assert reason(refusal) is (Reason.GRANT_EXPIRED if expired else None)


def test_a_grant_that_was_never_made_allows_nothing() -> None:
    """A region that has not heard of the tenant yet has no budget for it. [INV8]"""
    latest = datetime.max.replace(tzinfo=UTC)
    refusal = grant_refusal(GrantLedger(), "guaranteed", {}, latest, 2_000)
    assert reason(refusal) is Reason.GRANT_EXPIRED


def test_what_is_borrowed_is_the_hard_use_beyond_the_nominal_amounts() -> None:
    """Neither a tenant at its nominal amount nor an unlimited resource is a loan. [INV3]"""
    lent = charge_quota(COHORT, "risk", HARD, {"cpu": 5500, "memory": 1})
    assert above_nominal(lent, "risk") == {"cpu": 1500}
    at_most = charge_quota(COHORT, "fraud", HARD, {"cpu": 4000})
    assert above_nominal(at_most, "fraud") == {}
    assert above_nominal(charge_quota(COHORT, "fraud", RECLAIMABLE, {"cpu": 9}), "fraud") == {}
    assert above_nominal(lent, "other") == {}


def test_a_tenant_is_a_lender_up_to_its_nominal_amounts() -> None:
    """One unit more would be borrowed; a resource without a limit never is."""
    busy = charge_quota(COHORT, "fraud", HARD, {"cpu": 3000})
    assert is_inside_nominal(busy, "fraud", {"cpu": 1000, "memory": 7})
    assert not is_inside_nominal(busy, "fraud", {"cpu": 1001})


def test_what_a_lender_waits_for_is_not_lent_again() -> None:
    """A claim counts only against borrowing. [INV3]"""
    lent = charge_quota(COHORT, "risk", HARD, {"cpu": 4000})
    claims = {"fraud": {"cpu": 3000}}
    assert lending_refusal(lent, {}, "risk", {"cpu": 2000}) is None
    assert lending_refusal(lent, claims, "risk", {"cpu": 1000}) is None
    refusal = lending_refusal(lent, claims, "risk", {"cpu": 1001})
    assert reason(refusal) is Reason.CLAIMED_BY_LENDERS
    assert refusal is not None
    assert "3 claimed back by lenders" in refusal.message
    # The lender itself is never in its own way.
    assert lending_refusal(lent, {"fraud": {"cpu": 99_000}}, "fraud", {"cpu": 4000}) is None
