"""What a tenant may have: no history of charges breaks a quota, a cohort or a grant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.quota.allowance import (
    charge_quota,
    cohort_nominal,
    cohort_used,
    grant_refusal,
    never_fits,
    quota_refusal,
    refund_quota,
)
from holdfast.model.quota.ledger import (
    Amounts,
    GrantLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    add,
    subtract,
    use_of,
)
from tests.scale import examples
from tests.strategies import (
    PRIORITY_CLASSES,
    RESOURCES,
    TENANTS,
    amounts,
    limits,
    quota_ledgers,
)

HARD, RECLAIMABLE, SOFT = CapacityClass.HARD, CapacityClass.RECLAIMABLE, CapacityClass.SOFT
BACKED = (HARD, RECLAIMABLE)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


Charge = tuple[str, CapacityClass, Amounts, str]
charges = st.tuples(
    st.sampled_from(TENANTS),
    st.sampled_from(BACKED),
    amounts(5),
    st.sampled_from(("", *PRIORITY_CLASSES)),
)


def within_quota(ledger: QuotaLedger, tenant: str, resource: str) -> bool:
    """INV3 of one tenant and resource, written down once more and differently."""
    limit, use = ledger.limits.get(tenant), ledger.used.get(tenant, TenantUse())
    if limit is None:
        return True
    if any(
        use.classes.get(name, {}).get(resource, 0) > budget[resource]
        for name, budget in limit.classes.items()
        if resource in budget
    ):
        return False
    if (
        resource in limit.reclaimable
        and use.reclaimable.get(resource, 0) > limit.reclaimable[resource]
    ):
        return False
    if resource not in limit.hard:
        return True
    nominal = sum(other.hard.get(resource, 0) for other in ledger.limits.values())
    used = sum(
        use.hard.get(resource, 0)
        for who, use in ledger.used.items()
        if who in ledger.limits and resource in ledger.limits[who].hard
    )
    most = limit.hard[resource] + limit.borrowing.get(resource, 0)
    return use.hard.get(resource, 0) <= most and used <= nominal


@settings(max_examples=examples(200))
@given(ledger=quota_ledgers, wanted=st.lists(charges, max_size=12), data=st.data())
def test_no_history_of_charges_breaks_a_quota(
    ledger: QuotaLedger, wanted: list[Charge], data: st.DataObject
) -> None:
    """A charge is accepted exactly when tenant, cohort and the budget of its priority class stay
    within their limits, and refunding all of them gives back the ledger there was.
    [B6, C6.5, C6.6, D1, INV3]"""
    new, accepted = ledger, list[Charge]()
    for charge in wanted:
        tenant, _, units, _ = charge
        after = charge_quota(ledger, *charge)
        fits = all(within_quota(after, tenant, r) for r in units)
        assert (quota_refusal(ledger, *charge) is None) is fits
        if fits:
            ledger = after
            accepted.append(charge)
        assert all(within_quota(ledger, t, r) for t in TENANTS for r in RESOURCES)
        if accepted and data.draw(st.booleans(), label="refund one"):
            back = accepted.pop(data.draw(st.integers(0, len(accepted) - 1)))
            ledger = refund_quota(ledger, *back)
    for back in data.draw(st.permutations(accepted)):
        ledger = refund_quota(ledger, *back)
    assert ledger == new


@given(
    ledger=quota_ledgers,
    wanted=st.lists(charges, max_size=6),
    lowered=limits,
    tenant=st.sampled_from(TENANTS),
    more=amounts(),
)
def test_lowering_a_quota_takes_nothing_away_and_gives_nothing_more(
    ledger: QuotaLedger,
    wanted: list[Charge],
    lowered: TenantLimits,
    tenant: str,
    more: Amounts,
) -> None:
    """Use stays and can be refunded; a tenant above its limit gets no more of that. [INV3]"""
    for charge in wanted:
        if quota_refusal(ledger, *charge) is None:
            ledger = charge_quota(ledger, *charge)
    after = msgspec.structs.replace(ledger, limits={**ledger.limits, tenant: lowered})
    use = after.used.get(tenant, TenantUse()).hard
    over = [
        r for r, most in lowered.hard.items() if use.get(r, 0) > most + lowered.borrowing.get(r, 0)
    ]
    refusal = quota_refusal(after, tenant, HARD, more)
    if any(more.get(resource) for resource in over):
        assert refusal is not None
    if not any(more.values()):
        assert refusal is None
    assert refund_quota(after, tenant, HARD, use).used.get(tenant, TenantUse()).hard == {}


@given(
    own=limits,
    of=st.sampled_from(CapacityClass),
    wanted=amounts(14),
    name=st.sampled_from(("", *PRIORITY_CLASSES)),
    others=quota_ledgers,
)
def test_what_never_fits_is_refused_in_every_state(
    own: TenantLimits, of: CapacityClass, wanted: Amounts, name: str, others: QuotaLedger
) -> None:
    """Admission says Never only when no ledger could accept it, and then none does. [C7.6]"""
    ledger = msgspec.structs.replace(others, limits={**others.limits, "ant": own})
    if never_fits(own, of, wanted, name) is not None:
        assert quota_refusal(ledger, "ant", of, wanted, name) is not None
    else:
        lender = TenantLimits(hard=dict.fromkeys(RESOURCES, 100))
        generous = QuotaLedger(limits={"ant": own, "lender": lender})
        assert quota_refusal(generous, "ant", of, wanted, name) is None


@given(ledger=quota_ledgers, wanted=st.lists(charges, max_size=6), asked=charges)
def test_classes_of_capacity_never_mix(
    ledger: QuotaLedger,
    wanted: list[Charge],
    asked: Charge,
) -> None:
    """What is charged to one class changes no answer and no sum of another. A priority class may
    be of both, so that its budget is another question. [D3]"""
    alone = ledger
    tenant, of, units, _ = asked
    for charge in wanted:
        ledger = charge_quota(ledger, *charge)
        if charge[1] is of:
            alone = charge_quota(alone, *charge)
    assert quota_refusal(ledger, tenant, of, units) == quota_refusal(alone, tenant, of, units)
    (other,) = (c for c in BACKED if c is not of)
    before, after = (
        use_of(it.used.get(tenant, TenantUse()), other)
        for it in (ledger, charge_quota(ledger, *asked))
    )
    assert before == after
    assert quota_refusal(ledger, tenant, SOFT, units) is not None


@given(ledger=quota_ledgers, wanted=st.lists(charges, max_size=5), data=st.data())
def test_charges_commute(ledger: QuotaLedger, wanted: list[Charge], data: st.DataObject) -> None:
    """The ledger is the sum of its charges, in whatever order they came. [N6]"""
    ends = []
    for order in (wanted, data.draw(st.permutations(wanted))):
        end = ledger
        for charge in order:
            end = charge_quota(end, *charge)
        ends.append(end)
    assert ends[0] == ends[1]
    for resource in RESOURCES:
        assert cohort_used(ends[0], resource) >= cohort_used(ledger, resource)
        assert cohort_nominal(ends[0], resource) == cohort_nominal(ledger, resource)


@given(left=amounts(), right=amounts())
def test_sums_undo_each_other_and_have_one_form(left: Amounts, right: Amounts) -> None:
    """Equal sums are equal ledgers, so that compares and replays see no difference. [N6]"""
    left = add(left, {})
    assert subtract(add(left, right), right) == left
    assert add(left, right) == add(right, left)
    assert all(add(left, right).values())


@given(
    budgets=st.dictionaries(st.sampled_from(("guaranteed", "recovery", "temporary")), amounts()),
    spends=st.lists(
        st.tuples(
            st.sampled_from(("guaranteed", "recovery", "temporary")),
            amounts(3),
            st.integers(-3_000, 3_000),
        ),
        max_size=10,
    ),
)
def test_a_region_never_spends_more_than_it_was_granted(
    budgets: dict[str, Amounts], spends: list[tuple[str, Amounts, int]]
) -> None:
    """Not beyond any budget, not after the grant, and stopping a skew before its end. [INV8]"""
    ledger = GrantLedger(serial=1, expires=NOW, budgets=budgets)
    for budget, units, at_ms in spends:
        now = NOW + timedelta(milliseconds=at_ms)
        if grant_refusal(ledger, budget, units, now, 2_000) is not None:
            continue
        assert at_ms < -2_000
        spent = add(ledger.used.get(budget, {}), units)
        ledger = msgspec.structs.replace(ledger, used={**ledger.used, budget: spent})
    named = {resource for granted in budgets.values() for resource in granted}
    for budget, spent in ledger.used.items():
        granted = budgets.get(budget, {})
        assert all(spent.get(r, 0) <= granted.get(r, 0) for r in named)
