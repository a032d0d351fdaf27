"""The machine as a whole: waking, waiting, leases, restarts, and silence when all is done."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.commit.table import age_refusal
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.lease import LeaseSpec
from holdfast.model.kinds.node import NodeDrain
from holdfast.model.kinds.quota import Quota, QuotaSpec
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.schedulerpolicy import (
    PolicyStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.tenant import Tenant, TenantSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import AcquireLease, RenewLease
from holdfast.model.time import timestamp
from holdfast.propose.binder import COURSES_MAX, COURSES_MIN, LATE_MS
from holdfast.propose.decide import SNAPSHOT_AGE_MAX_MS
from holdfast.propose.scheduler import DECISIONS_MAX, NOTICES_MAX, ROUND_MIN
from holdfast.propose.waking import WOKEN_PER_RELEASE
from tests.plane import template
from tests.unit.propose.rig import Lost, Rig, Silence, refusal


def small(slots: int = 1, **more: object) -> Rig:
    """One node with room for so many replicas."""
    rig = Rig(**more)
    rig.node("node-0", cpu=str(slots))
    rig.start()
    return rig


def test_two_replicas_do_not_both_assume_the_last_slot() -> None:
    """The second waits for the first one's answer instead of being refused. [F4]"""
    rig = small()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert rig.reports == [], "it may be free again in a moment"
    rig.pass_time(5_000)
    assert len(rig.binds) == 1
    assert rig.get("web-1-0").status.pending.reasons == {"NodeFull": 1}
    rig.answer(rig.commit(rig.binds[0]))
    rig.pass_time(100_000)
    assert len(rig.binds) == 1


# Waking ------------------------------------------------------------------------------------------


def test_a_replica_without_a_place_says_why_and_is_woken_by_a_new_node() -> None:
    """[E1, E3, V3]"""
    rig = small()
    rig.replica("web-0-0", cpu="4")
    pending = rig.get("web-0-0").status.pending
    assert pending.reasons == {"NodeFull": 1}
    assert pending.verdict == "NotWithThisFleet"
    assert pending.owner == "operator"
    assert pending.nearest_miss == "node node-0: needs 4 cpu, 1 is free"
    assert pending.since is not None
    rig.node("node-1")
    assert rig.where("web-0-0") == "node-1"


def test_a_replica_without_a_place_is_woken_by_one_that_was_released() -> None:
    """[E1]"""
    rig = small()
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert rig.get("web-1-0").status.pending.verdict == "Waiting"
    rig.status(rig.get("web-0-0"), state=State.STOPPING)
    assert len(rig.binds) == 1, "what is being stopped still holds its place"
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert rig.where("web-1-0") == "node-0"


def test_a_drain_that_ends_wakes_whom_it_kept_away() -> None:
    """[E1, F2]"""
    rig = Rig()
    node = rig.node("node-0", drain=NodeDrain(reason="repair"))
    rig.start()
    rig.replica()
    assert rig.get("web-0-0").status.pending.reasons == {"NodeDraining": 1}
    spec = msgspec.structs.replace(node.spec, drain=None)
    rig.put(msgspec.structs.replace(node, spec=spec))
    assert rig.where("web-0-0") == "node-0"


def test_a_rule_that_changes_is_asked_anew() -> None:
    """What was found under the old one is worth nothing. [E1, B2]"""
    rig = Rig()
    rig.node("node-0", region="eu")
    acme = rig.objects["tenants"]["", "acme"]
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("us",))))
    rig.start()
    rig.replica("web-0-0")
    assert rig.get("web-0-0").status.pending.reasons == {"ResidencyForbidden": 1}
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("eu",))))
    assert rig.where("web-0-0") == "node-0"
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("us",))))
    rig.replica("web-1-0")
    assert rig.where("web-1-0") == ""


def test_events_that_cannot_help_cost_no_decision() -> None:
    """Heartbeats that a node's status shows, and nodes that are too small. [V4]"""
    rig = small()
    rig.replica("web-0-0", cpu="4")
    entry = rig.scheduler.queue.get(("acme", "web-0-0"))
    assert entry is not None
    turns = entry.turns
    node = rig.objects["nodes"]["", "node-0"]
    for version in range(50):
        status = msgspec.structs.replace(node.status, agent_version=str(version))
        rig.put(msgspec.structs.replace(node, status=status))
    rig.node("node-1", cpu="2")
    assert entry.turns == turns


def test_a_lost_event_is_found_by_the_resync() -> None:
    """[E1, V2]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.replica()
    rig.pass_time(20_000)
    assert rig.binds == []
    rig.is_deaf = False
    rig.pass_time(60_000)
    assert rig.where("web-0-0") == "node-0"


def test_everybody_parked_gets_another_turn_at_the_resync() -> None:
    """Whatever event was missed. [E1]"""
    rig = small(slots=4)
    rig.verdicts = [refusal(Reason.GRANT_EXPIRED)]
    rig.replica()
    assert len(rig.binds) == 1
    rig.pass_time(61_000)
    assert rig.where("web-0-0") == "node-0"


# Order -------------------------------------------------------------------------------------------


def test_urgent_and_important_work_goes_first_and_tenants_take_turns() -> None:
    """[E2, V5]"""
    rig = Rig()
    rig.node("node-0", cpu="100")
    rig.urgent("now")
    rig.put(msgspec.structs.replace(rig.objects["tenants"]["", "acme"], metadata=ObjectMeta("b")))
    for index in range(3):
        rig.replica(f"web-{index}-0")
    rig.replica("late-0-0", tenant="b")
    rig.replica("high-0-0", priority=7)
    rig.replica("fire-0-0", template=template(priority_class="now"))
    rig.start()
    rig.pass_time(1_000)
    order = [bind.target.name for bind in rig.binds]
    assert order == ["fire-0-0", "high-0-0", "web-0-0", "late-0-0", "web-1-0", "web-2-0"]


def test_nothing_is_decided_before_every_kind_was_listed() -> None:
    """Whichever list is whole last, urgent work goes first. [E2, E4]"""
    rig = Rig()
    rig.node("node-0", cpu="100")
    rig.urgent("now")
    rig.replica("calm-0-0")
    rig.replica("fire-0-0", template=template(priority_class="now"))
    rig.slow_kind = "priorityclasses"
    rig.start()
    rig.pass_time(10_000)
    assert rig.binds == []
    rig.catch_up()
    assert [bind.target.name for bind in rig.binds] == ["fire-0-0", "calm-0-0"]


def test_one_release_wakes_a_few_of_those_who_wait_for_quota() -> None:
    """A thousand that are refused again would be a storm. [D2, E5]"""
    rig = small(slots=100)
    rig.replica("web-0-0")
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED)] * 100
    for index in range(1, 21):
        rig.replica(f"web-{index}-0")
    sent = len(rig.binds)
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert len(rig.binds) == sent + WOKEN_PER_RELEASE


def test_a_reservation_that_ends_gives_place_and_quota_back() -> None:
    """[D2, E1]"""
    rig = small(slots=2)
    spec = ReservationSpec(
        owner=ReservationOwner(kind="Workload", name="web", uid="w"),
        intent=Intent.RECOVERY,
        deadline=timestamp(rig.now.wall_ms + 60_000),
    )
    claims = (Claim(node="node-0", charge={"cpu": 1000, "replicas": 1}),)
    meta = ObjectMeta(name="web-recovery", namespace="acme")
    held = rig.put(Reservation(meta, spec=spec, status=ReservationStatus(claims=claims)))
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED)]
    rig.replica("web-0-0")
    rig.replica("web-1-0", cpu="2")
    assert len(rig.binds) == 1
    rig.remove(held)
    rig.pass_time(1_000)
    assert rig.where("web-0-0") == "node-0"
    assert len(rig.binds) == 2


def test_work_of_a_cohort_wakes_its_other_tenants_only() -> None:
    """[D2]"""
    rig = small(slots=100)
    for tenant, cohort in (("acme", "x"), ("kin", "x"), ("alien", "y"), ("loner", "")):
        rig.put(Tenant(ObjectMeta(name=tenant)))
        spec = QuotaSpec(cohort=cohort)
        rig.put(Quota(ObjectMeta(name="default", namespace=tenant), spec=spec))
    rig.replica("web-0-0")
    rig.verdicts = [refusal(Reason.COHORT_EXHAUSTED)] * 3
    for tenant in ("kin", "alien", "loner"):
        rig.replica("web-0-0", tenant=tenant)
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert [rig.where("web-0-0", tenant) for tenant in ("kin", "alien", "loner")] == [
        "node-0",
        "",
        "",
    ]


def test_binds_on_their_way_are_bounded() -> None:
    """[E5, F4]"""
    rig = Rig()
    rig.verdicts = [Silence()] * 500
    for index in range(COURSES_MIN + 20):
        rig.replica(f"web-{index}-0", cpu="100m")
        rig.node(f"node-{index}", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    assert len(rig.binds) == COURSES_MIN
    for place in range(ROUND_MIN // 2 - 1):
        rig.answer(rig.commit(rig.binds[place]))
    assert len(rig.binds) == COURSES_MIN, "while many answers are to come, it waits for some"
    rig.answer(rig.commit(rig.binds[ROUND_MIN // 2 - 1]))
    assert len(rig.binds) > COURSES_MIN


def test_urgent_work_does_not_wait_for_a_whole_round() -> None:
    """[E2]"""
    rig = Rig()
    rig.urgent("now")
    for index in range(COURSES_MIN):
        rig.replica(f"web-{index}-0", cpu="100m")
        rig.node(f"node-{index}", cpu="1")
    rig.verdicts = [Silence()] * 500
    rig.start()
    assert len(rig.binds) == COURSES_MIN
    rig.replica("fire-0-0", template=template(cpu="100m", priority_class="now"))
    rig.answer(rig.commit(rig.binds[0]))
    assert rig.binds[-1].target.name == "fire-0-0"


def test_one_step_decides_for_so_many_and_the_next_goes_on() -> None:
    """[E6]"""
    rig = Rig()
    for index in range(4):
        rig.node(f"node-{index}", cpu="1000", replicas="1000")
    for _ in range(COURSES_MAX):
        rig.scheduler.binder.took(0)
    assert rig.scheduler.binder.room == COURSES_MAX
    rig.verdicts = [Silence()] * 5_000
    for index in range(DECISIONS_MAX + 5):
        rig.replica(f"web-{index}-0", cpu="100m")
    rig.start()
    assert len(rig.binds) == DECISIONS_MAX
    rig.pass_time(10)
    assert len(rig.binds) == DECISIONS_MAX + 5


def test_late_answers_lead_to_fewer_binds_at_once() -> None:
    """What waits for longer than a question may take would have to be asked about again. [E5]"""
    binder = Rig().scheduler.binder
    for _ in range(2_000):
        binder.took(LATE_MS)
    grown = binder.room
    assert COURSES_MIN < grown <= COURSES_MAX
    binder.took(LATE_MS + 1)
    late = binder.room
    assert late < grown
    binder.took(0, failed=True)
    assert binder.room < late
    for _ in range(2_000):
        binder.took(LATE_MS + 1)
    assert binder.room == COURSES_MIN


def test_a_bind_that_pauses_keeps_its_slot() -> None:
    """[E5, F6]"""
    rig = Rig()
    rig.verdicts = [Lost(committed=False)] * (COURSES_MIN + 50)
    for index in range(COURSES_MIN + 50):
        rig.replica(f"web-{index}-0")
        rig.node(f"node-{index}", cpu="2")
    rig.start()
    rig.pass_time(100)
    assert len(rig.binds) == COURSES_MIN


def test_a_bind_whose_answer_is_still_awaited_keeps_its_slot_too() -> None:
    """News have settled them all, and nobody has answered yet. [E5]"""
    rig = Rig()
    for index in range(40):
        rig.node(f"node-{index}", cpu="1000")
    rig.verdicts = [Silence()] * 10_000
    for _ in range(COURSES_MAX):
        rig.scheduler.binder.took(0)
    for index in range(COURSES_MAX):
        rig.replica(f"web-{index}-0", cpu="100m")
    rig.start()
    rig.pass_time(100)
    assert len(rig.binds) == COURSES_MAX
    for bind in rig.binds:
        rig.commit(bind)
    rig.replica("late-0-0")
    assert len(rig.binds) == COURSES_MAX
    for bind in rig.binds[:ROUND_MIN]:
        rig.answer(rig.commit(bind))
    assert len(rig.binds) == COURSES_MAX + 1


def test_reports_do_not_crowd_out_anything() -> None:
    """[E3]"""
    rig = Rig()
    rig.report_verdicts = [Silence()] * 500
    for index in range(200):
        rig.replica(f"web-{index}-0")
    rig.start()
    rig.pass_time(1_000)
    assert len(rig.reports) == NOTICES_MAX
    rig.pass_time(30_000)
    assert len(rig.sent(RenewLease)) >= 4


# The lease ---------------------------------------------------------------------------------------


def test_nothing_is_bound_before_the_lease_is_held() -> None:
    """Another one of that scope is alive, until it stops moving. [C5]"""
    rig = Rig()
    rig.node("node-0")
    rig.replica()
    rig.lease = LeaseSpec(
        scope="scheduler:one", holder="system:scheduler:two", epoch=4, duration_ms=15_000
    )
    rig.start()
    rig.pass_time(14_000)
    assert rig.binds == []
    rig.pass_time(20_000)
    assert [bind.term.epoch for bind in rig.binds] == [5]


def test_a_scheduler_that_cannot_renew_stops_trying_long_before_anybody_takes_over() -> None:
    """[C5, E4]"""
    rig = small(slots=4)
    rig.is_cut_off = True
    rig.pass_time(16_000)
    rig.is_deaf, rig.is_cut_off = True, False
    assert not rig.scheduler.tenure.is_acknowledged(rig.now)
    rig.is_deaf = False
    rig.replica()
    assert rig.binds == []
    rig.pass_time(10_000)
    assert rig.where("web-0-0") == "node-0"


def test_a_shared_scope_is_the_lease_that_is_taken() -> None:
    """[C5]"""
    rig = Rig(scope="scheduler:shard-1")
    rig.start()
    assert [ask.scope for ask in rig.sent(AcquireLease)] == ["scheduler:shard-1"]


# Old pictures ------------------------------------------------------------------------------------


def test_nothing_is_bound_on_a_picture_that_is_too_old() -> None:
    """It holds back and says so, and goes on when the servers are heard again. [E4, E3]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.pass_time(SNAPSHOT_AGE_MAX_MS + 5_000)
    rig.is_deaf = False
    rig.replica()
    assert rig.binds == []
    assert rig.get("web-0-0").status.pending.reasons == {"ObservationTooOld": 1}
    rig.pass_time(16_000)
    assert rig.where("web-0-0") == "node-0", "before the resync"


def test_the_commit_agrees_with_the_oldest_picture_that_a_bind_may_rest_on() -> None:
    """[E4]"""
    rig = small()
    rig.replica()
    (bind,) = rig.binds
    assert age_refusal(bind, SNAPSHOT_AGE_MAX_MS) is None
    assert age_refusal(bind, SNAPSHOT_AGE_MAX_MS + 1) is not None


# The fixed point ---------------------------------------------------------------------------------


def test_nothing_is_written_when_nothing_changes() -> None:
    """One that fits nowhere, one without quota, one that is bound: ten minutes of silence. [V4]"""
    rig = small(slots=4)
    rig.replica("bound-0-0")
    rig.replica("large-0-0", cpu="64")
    blocked = refusal(Reason.QUOTA_EXCEEDED, "tenant acme uses 1 of 1 cpu")
    rig.verdicts = [blocked] * 1_000
    rig.replica("poor-0-0")
    rig.pass_time(5_000)
    reports, revision = len(rig.reports), rig.revision
    rig.pass_time(600_000)
    assert len(rig.reports) == reports
    assert rig.revision == revision


def test_other_numbers_under_the_same_reasons_are_written_once_in_a_while() -> None:
    """[V4, E3]"""
    rig = small()
    rig.replica("large-0-0", cpu="64")
    before = len(rig.reports)
    for index in range(1, 20):
        rig.node(f"node-{index}", cpu="1")
    rig.pass_time(200_000)
    assert rig.get("large-0-0").status.pending.reasons == {"NodeFull": 20}
    assert len(rig.reports) - before <= 2


def test_a_report_that_was_not_written_is_written_later() -> None:
    """[E3, V3]"""
    rig = small()
    rig.report_verdicts = [Unavailable("busy")]
    rig.replica("large-0-0", cpu="64")
    assert rig.get("large-0-0").status.pending is None
    rig.pass_time(5_000)
    assert rig.get("large-0-0").status.pending.reasons == {"NodeFull": 1}


# Beginning anew ----------------------------------------------------------------------------------


def test_a_scheduler_that_starts_anew_finds_all_that_is_pending() -> None:
    """Its own earlier lease is no obstacle, and the lost bind is made once. [E1, F6]"""
    rig = small(slots=4)
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    lost = rig.binds[0]
    rig.is_deaf = True
    rig.replica("web-1-0")
    rig.is_deaf = False
    rig.restart()
    rig.pass_time(1_000)
    assert rig.where("web-0-0") == rig.where("web-1-0") == "node-0"
    assert [bind.term.epoch for bind in rig.binds] == [1, 2, 2]
    again = next(bind for bind in rig.binds[1:] if bind.target == lost.target)
    assert again.operation == lost.operation, "whoever repeats it means the same"
    assert rig.get("web-0-0").status.transition_number == 1


# Who is not placed -------------------------------------------------------------------------------


def test_a_member_of_a_gang_is_not_placed_alone() -> None:
    """[E3]"""
    rig = small(slots=4)
    rig.replica("web-0-0", gang="web")
    rig.pass_time(100_000)
    assert rig.binds == []
    assert rig.get("web-0-0").status.pending.reasons == {"GangIncomplete": 1}


@pytest.mark.parametrize("state", [State.RESERVED, State.BOUND, State.RELEASED])
def test_only_pending_replicas_are_placed(state: State) -> None:
    """[F5]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.status(rig.replica(), state=state)
    rig.is_deaf = False
    rig.pass_time(61_000)
    assert rig.binds == []


def test_the_policy_in_force_is_named_in_the_bind() -> None:
    """[F1]"""
    rig = small(slots=4)
    for name, stage in (("b", PolicyStage.ACTIVE), ("a", PolicyStage.SHADOW)):
        spec = SchedulerPolicySpec(stage=stage)
        rig.put(SchedulerPolicy(ObjectMeta(name=name), spec=spec))
    rig.replica()
    assert [bind.policy for bind in rig.binds] == ["b"]
