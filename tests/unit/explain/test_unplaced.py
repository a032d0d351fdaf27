"""Why a replica has no place yet: one case for each reason, from snapshots made by hand."""

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
from holdfast.explain.evidence import ranges_to_read
from holdfast.model import keys
from holdfast.model.kinds.decision import Decision, DecisionSpec
from holdfast.model.kinds.replica import Binding, Pending, Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationOwner, ReservationSpec
from holdfast.model.kinds.tenant import (
    CapacityClass,
    PriorityClass,
    PriorityClassSpec,
    Quota,
    QuotaSpec,
    Tenant,
)
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.ledger import QuotaLedger
from holdfast.model.registry import kind_of_plural
from holdfast.propose.scheduler import FOLLOWED
from tests.unit.correct.views import TEMPLATE, at, meta, node, record, replaced, replica, workload
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
SMALL = msgspec.structs.replace(BIG.spec, capacity={"cpu": "2", "memory": "8Gi"})
ACME = Tenant(ObjectMeta(name="acme"))


def test_no_scheduler_has_looked_yet() -> None:
    """[M2, M3]"""
    answer = asked(waiting(None))
    says(answer, StuckReason.NOT_TRIED, ProgressStep.SCHEDULING, "scheduler")
    assert due_in_ms(answer) == SCHEDULER_LOOKS_MS


def running(on: str = "elsewhere", **more: Any) -> Replica:
    """A replica that is charged two cores."""
    amounts = {"cpu": 2_000, "memory": 0, "replicas": 1}
    binding = Binding(node=on, node_uid=f"uid-{on}", charge=amounts, capacity_class="hard", **more)
    return replica(State.RUNNING, 7, binding=binding)


def test_a_quota_that_is_used_up_is_the_operators_to_change() -> None:
    """As it is used now; the scheduler looks again once in its period. [M2, SC4]"""
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "2"}))
    more = [(keys.quota_ledger("tenant:acme"), QuotaLedger(), 33)]
    objects = running(), quota, ACME, BIG
    answer = asked(waiting(OVER), *objects, more=[*more, *ledgers(BIG)])
    says(answer, StuckReason.QUOTA, ProgressStep.SCHEDULING, "operator")
    assert answer.finding.then == "scheduler"
    assert due_in_ms(answer) == -200_000 + 4 * SCHEDULER_LOOKS_MS
    (sign,) = [it for it in answer.signs if it.what == "quota of its tenant"]
    assert sign.revision == 33
    assert answer.finding.smallest_change == "1 more cpu in the quota of tenant acme"
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
    said = replaced(OVER, reasons={"PriorityBudgetExceeded": 1})
    objects = running(priority_class="default"), quota, ACME, BIG
    answer = asked(waiting(said), *objects, more=ledgers(BIG))
    says(answer, StuckReason.QUOTA, ProgressStep.SCHEDULING, "operator")
    (sign,) = [it for it in answer.signs if it.what == "quota of its tenant"]
    assert "priority class default" in sign.says


def test_the_class_of_its_capacity_is_said() -> None:
    """Of what it asks for by its priority class, of what it holds by its charge. [D3]"""
    spec = PriorityClassSpec(capacity_class=CapacityClass.RECLAIMABLE)
    cheap = PriorityClass(ObjectMeta(name="default"), spec=spec)
    for about, words in (
        (asked(waiting(FULL), ACME, BIG, cheap, more=ledgers(BIG)), "asks for reclaimable"),
        (asked(waiting(FULL), ACME, BIG, more=ledgers(BIG)), "asks for hard"),
        (asked(running("node-a"), cheap, node()), "holds hard"),
    ):
        (sign,) = [it for it in about.signs if it.what == "capacity"]
        assert sign.says.startswith(words)
        assert "priority class default: " in sign.says


def test_what_is_in_the_way_besides_the_quota_is_said_too() -> None:
    """So that nobody raises a quota for work that no node can take. [M2, E3]"""
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "2"}))
    answer = asked(waiting(OVER), running("node-a"), quota, ACME, replaced(BIG, spec=SMALL))
    says(answer, StuckReason.QUOTA, ProgressStep.SCHEDULING, "operator")
    change = "1 more cpu in the quota of tenant acme, and 1 cpu more free on node node-a"
    assert answer.finding.smallest_change == change


def test_other_work_that_would_have_to_stop_is_counted() -> None:
    """Without its name, which may be that of another tenant. [M2, G1]"""
    spot = replaced(running("node-a").status.binding, capacity_class="reclaimable")
    victim = replica(State.RUNNING, 7, binding=spot)
    classes = (PriorityClass(meta("default"), spec=PriorityClassSpec(value=9, preempts=True)),)
    urgent = waiting()
    urgent = replaced(urgent, spec=replaced(urgent.spec, priority=9))
    answer = asked(urgent, victim, *classes, ACME, replaced(BIG, spec=SMALL))
    says(answer, StuckReason.NO_PLACE, ProgressStep.SCHEDULING, "scheduler")
    (sign,) = [it for it in answer.signs if it.what == "node node-a"]
    assert sign.says == "would take it once 1 other replicas stopped"


@pytest.mark.parametrize("cpu, fit", [("8", 3), ("2", 2)])
def test_of_a_gang_the_members_that_fit_are_counted(cpu: str, fit: int) -> None:
    """[M2, G5]"""
    members = [waiting(ordinal=number) for number in range(3)]
    members = [replaced(it, spec=replaced(it.spec, gang="web")) for it in members]
    gang = workload(3, gang=Gang(min_available=3))
    there = replaced(BIG, spec=replaced(BIG.spec, capacity={"cpu": cpu, "memory": "8Gi"}))
    answer = asked(*members, gang, ACME, there)
    why = StuckReason.NO_PLACE if fit < 3 else StuckReason.STALE_PICTURE
    says(answer, why, ProgressStep.SCHEDULING, "scheduler")
    (sign,) = [it for it in answer.signs if it.what == "nodes"]
    assert f"would take {fit} members of its gang now" in sign.says
    assert ("it needs 3 at once" in sign.says) is (fit < 3)


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
        ("AntiAffinityViolated", StuckReason.STALE_PICTURE),
        # Only the scheduler has this filter, or knows for what it waits.
        ("OfAPlugin", StuckReason.NO_PLACE),
        ("BindsInFlight", StuckReason.NO_PLACE),
        ("GrantExpired", StuckReason.QUOTA),
    ],
)
def test_of_rules_that_are_not_evaluated_again_the_schedulers_report_counts(
    reason: str, why: StuckReason
) -> None:
    """[M2]"""
    said = replaced(FULL, reasons={reason: 1})
    answer = asked(waiting(said), ACME, BIG, more=ledgers(BIG))
    says(answer, why, ProgressStep.SCHEDULING, "scheduler")


def test_an_explanation_reads_every_kind_that_schedulers_follow() -> None:
    """Otherwise the two would not decide alike. [M2]"""
    ranges = ranges_to_read(waiting(), None)
    for plural in FOLLOWED:
        kind, name = kind_of_plural(plural), {"tenants": "acme", "workloads": "web"}.get(plural)
        key = keys.object_key(kind, "acme" if kind.namespaced else "", name or "any")
        assert any(begin <= key < end for begin, end in ranges), plural


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
