"""Why a replica has no place yet: one case for each reason, from pictures made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.explain.answer import (
    CONTROLLER_LOOKS_MS,
    SCHEDULER_LOOKS_MS,
    ProgressStep,
    StuckReason,
)
from holdfast.explain.feasible_nodes import ASKED
from holdfast.model import keys
from holdfast.model.kinds.decision import Decision, DecisionSpec
from holdfast.model.kinds.replica import Pending, Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationOwner, ReservationSpec
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.ledger import QuotaLedger, TenantLimits, TenantUse
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.propose.filters import FILTERS
from tests.unit.correct.views import TEMPLATE, at, meta, node, record, replaced, replica
from tests.unit.explain.questions import FULL, OVER, asked, due_in_ms, ledgers, says


def waiting(pending: Pending | None = FULL, **more: Any) -> Replica:
    born = (record(State.PENDING, "system:controller:workload"),)
    return replica(State.PENDING, pending=pending, transitions=born, **more)


def decided(chosen: str = "", result: str = "Pending", seen: int = 9) -> Decision:
    spec = DecisionSpec(
        "web-0-0", chosen=chosen, result=result, decided_at=at(), seen={"nodes": seen}
    )
    return Decision(meta("d-1"), spec=spec)


BIG = msgspec.structs.replace(
    node(), spec=msgspec.structs.replace(node().spec, capacity={"cpu": "8", "memory": "8Gi"})
)
ACME = Tenant(ObjectMeta(name="acme"))


def test_no_scheduler_has_looked_yet() -> None:
    """[M2, M3]"""
    answer = asked(waiting(None))
    says(answer, StuckReason.NOT_TRIED, ProgressStep.SCHEDULING, "scheduler")
    assert due_in_ms(answer) == SCHEDULER_LOOKS_MS


def test_a_quota_that_is_used_up_is_the_operators_to_change() -> None:
    """By its ledger as it is now; the scheduler looks again once in its period. [M2, SC4]"""
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "2"}))
    ledger = QuotaLedger(
        limits={"acme": TenantLimits(hard={"cpu": 2_000})},
        used={"acme": TenantUse(hard={"cpu": 2_000})},
    )
    more = [(keys.quota_ledger("tenant:acme"), ledger, 33)]
    answer = asked(waiting(OVER), quota, ACME, BIG, more=[*more, *ledgers(BIG)])
    says(answer, StuckReason.QUOTA, ProgressStep.SCHEDULING, "operator")
    assert answer.finding.then == "scheduler"
    assert due_in_ms(answer) == -200_000 + 4 * SCHEDULER_LOOKS_MS
    (sign,) = [it for it in answer.signs if it.what == "quota of its tenant"]
    assert sign.revision == 33
    # Once there is room again, what was said is not so any more.
    says(
        asked(waiting(OVER), quota, ACME, BIG, more=ledgers(BIG)),
        StuckReason.STALE_PICTURE,
        ProgressStep.SCHEDULING,
        "scheduler",
    )


def test_a_budget_of_a_priority_class_that_is_used_up_is_the_operators_to_change_too() -> None:
    """[B6, M2]"""
    spec = QuotaSpec(priority_classes={"default": {"cpu": "2"}})
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=spec)
    ledger = QuotaLedger(
        limits={"acme": TenantLimits(classes={"default": {"cpu": 2_000}})},
        used={"acme": TenantUse(hard={"cpu": 2_000}, classes={"default": {"cpu": 2_000}})},
    )
    more = [(keys.quota_ledger("tenant:acme"), ledger, 33), *ledgers(BIG)]
    said = replaced(OVER, reasons={"PriorityBudgetExceeded": 1})
    answer = asked(waiting(said), quota, ACME, BIG, more=more)
    says(answer, StuckReason.QUOTA, ProgressStep.SCHEDULING, "operator")
    (sign,) = [it for it in answer.signs if it.what == "quota of its tenant"]
    assert "priority class default" in sign.says


def test_an_existing_place_was_not_known_to_the_deciding_scheduler() -> None:
    """[M2, SC4]"""
    answer = asked(waiting(), ACME, BIG, more=ledgers(BIG), decision=decided())
    says(answer, StuckReason.STALE_PICTURE, ProgressStep.SCHEDULING, "scheduler")
    assert "node node-a would take it since revision 30" in answer.finding.message
    assert "had not seen that yet: its snapshot was at revision 0" in answer.finding.message
    assert due_in_ms(answer) == 30_000


@pytest.mark.parametrize(
    "shut",
    [
        {"cordoned": True},
        {"capacity": {"cpu": "500m", "memory": "8Gi"}},
        {"pool": "gpu"},
    ],
)
def test_no_place_is_what_the_scheduler_says_where_the_ledgers_agree(shut: dict[str, Any]) -> None:
    """By the very rules of the commit. [M2]"""
    spec = msgspec.structs.replace(BIG.spec, **shut)
    there = msgspec.structs.replace(BIG, spec=spec)
    asks = replaced(TEMPLATE, placement=replaced(TEMPLATE.placement, pool="general"))
    answer = asked(waiting(template=asks), ACME, there, more=ledgers(there))
    says(answer, StuckReason.NO_PLACE, ProgressStep.SCHEDULING, "scheduler")
    assert answer.finding.message == FULL.message


@pytest.mark.parametrize(
    "reason, why",
    [
        ("NodeFull", StuckReason.STALE_PICTURE),
        # Where its companions are is not asked here, nor what filters of users say.
        ("AntiAffinityViolated", StuckReason.NO_PLACE),
        ("OfAPlugin", StuckReason.NO_PLACE),
        ("GrantExpired", StuckReason.QUOTA),
    ],
)
def test_of_rules_that_are_not_asked_again_the_schedulers_word_counts(
    reason: str, why: StuckReason
) -> None:
    """[M2]"""
    said = replaced(FULL, reasons={reason: 1})
    answer = asked(waiting(said), ACME, BIG, more=ledgers(BIG))
    says(answer, why, ProgressStep.SCHEDULING, "scheduler")


def test_every_filter_that_ships_is_asked_again() -> None:
    """Otherwise a known reason would be reported as unknown. [M2]"""
    reasons = {str(reason) for each in FILTERS for reason in each.reasons if reason}
    assert reasons <= ASKED


@pytest.mark.parametrize(
    "pending, decision",
    [
        (Pending({"SchedulingRetrying": 1}, "lost", next_wake=at(9_000)), None),
        (None, decided("node-a", "Unknown")),
    ],
)
def test_a_bind_whose_answer_is_lost_is_the_schedulers_to_settle(
    pending: Pending | None, decision: Decision | None
) -> None:
    """[M2, M3, F6]"""
    answer = asked(waiting(pending), decision=decision)
    says(answer, StuckReason.BIND_OPEN, ProgressStep.BINDING, "scheduler")
    assert due_in_ms(answer) <= SCHEDULER_LOOKS_MS


def test_one_that_is_deleted_before_it_had_a_place() -> None:
    """[M2]"""
    says(
        asked(waiting(dying=True)),
        StuckReason.STOPPING,
        ProgressStep.RELEASE,
        "controller:workload",
    )


@pytest.mark.parametrize(
    "ms, owner, due_ms",
    [
        (5_000, "scheduler", 20_000),
        (25_000, "controller:repair", 20_000 + CONTROLLER_LOOKS_MS),
    ],
)
def test_a_place_that_is_held_ends_with_its_deadline(ms: int, owner: str, due_ms: int) -> None:
    """[M2]"""
    held = Reservation(
        meta("held", "acme"),
        spec=ReservationSpec(
            ReservationOwner("Replica", "web-0-0", "u"), Intent.BIND, deadline=at(20_000)
        ),
    )
    about = replica(State.RESERVED, reservation="held")
    answer = asked(about, held, ms=ms)
    says(answer, StuckReason.RESERVED, ProgressStep.BINDING, owner)
    assert due_in_ms(answer) == due_ms
    says(asked(about), StuckReason.RESERVED, ProgressStep.BINDING, "controller:repair")
