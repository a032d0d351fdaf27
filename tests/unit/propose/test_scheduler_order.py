"""The machine as a whole: the order of work, and how much is in flight at once."""

from __future__ import annotations

import msgspec

from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import RenewLease
from holdfast.propose.binder import BINDS_MAX, BINDS_MIN, LATE_MS
from holdfast.propose.scheduler import DECISIONS_MAX, NOTICES_MAX, ROUND_MIN
from tests.plane import template
from tests.unit.propose.rig import Lost, Rig, Silence


def test_urgent_and_important_work_goes_first_and_then_the_smaller_share() -> None:
    """[E2, V5, F1]"""
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
    # The first two are acme's, so that b, which has nothing yet, is next.
    assert order == ["fire-0-0", "high-0-0", "late-0-0", "web-0-0", "web-1-0", "web-2-0"]


def test_binds_in_flight_are_bounded() -> None:
    """[E6]"""
    rig = Rig()
    rig.verdicts = [Silence()] * 500
    for index in range(BINDS_MIN + 20):
        rig.replica(f"web-{index}-0", cpu="100m")
        rig.node(f"node-{index}", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    assert len(rig.binds) == BINDS_MIN
    for place in range(ROUND_MIN // 2 - 1):
        rig.answer(rig.commit(rig.binds[place]))
    assert len(rig.binds) == BINDS_MIN, "while many answers are to come, it waits for some"
    rig.answer(rig.commit(rig.binds[ROUND_MIN // 2 - 1]))
    assert len(rig.binds) > BINDS_MIN


def test_urgent_work_does_not_wait_for_a_whole_round() -> None:
    """[E2]"""
    rig = Rig()
    rig.urgent("now")
    for index in range(BINDS_MIN):
        rig.replica(f"web-{index}-0", cpu="100m")
        rig.node(f"node-{index}", cpu="1")
    rig.verdicts = [Silence()] * 500
    rig.start()
    assert len(rig.binds) == BINDS_MIN
    rig.replica("fire-0-0", template=template(cpu="100m", priority_class="now"))
    rig.answer(rig.commit(rig.binds[0]))
    assert rig.binds[-1].target.name == "fire-0-0"


def test_one_step_makes_a_bounded_number_of_decisions_and_the_next_continues() -> None:
    rig = Rig()
    for index in range(4):
        rig.node(f"node-{index}", cpu="1000", replicas="1000")
    for _ in range(BINDS_MAX):
        rig.scheduler.binder.record_latency(0)
    assert rig.scheduler.binder.room == BINDS_MAX
    rig.verdicts = [Silence()] * 5_000
    for index in range(DECISIONS_MAX + 5):
        rig.replica(f"web-{index}-0", cpu="100m")
    rig.start()
    assert len(rig.binds) == DECISIONS_MAX
    rig.pass_time(10)
    assert len(rig.binds) == DECISIONS_MAX + 5


def test_late_answers_lead_to_fewer_binds_at_once() -> None:
    """A bind that waits longer than its timeout would have to be looked up. [E6]"""
    binder = Rig().scheduler.binder
    for _ in range(2_000):
        binder.record_latency(LATE_MS)
    grown = binder.room
    assert BINDS_MIN < grown <= BINDS_MAX
    binder.record_latency(LATE_MS + 1)
    late = binder.room
    assert late < grown
    binder.record_latency(0, failed=True)
    assert binder.room < late
    for _ in range(2_000):
        binder.record_latency(LATE_MS + 1)
    assert binder.room == BINDS_MIN


def test_a_bind_that_pauses_keeps_its_slot() -> None:
    """[E6]"""
    rig = Rig()
    rig.verdicts = [Lost(committed=False)] * (BINDS_MIN + 50)
    for index in range(BINDS_MIN + 50):
        rig.replica(f"web-{index}-0")
        rig.node(f"node-{index}", cpu="2")
    rig.start()
    rig.pass_time(100)
    assert len(rig.binds) == BINDS_MIN


def test_a_bind_whose_answer_is_still_awaited_keeps_its_slot_too() -> None:
    """Watch events have settled them all, and no answer has arrived yet. [E6]"""
    rig = Rig()
    for index in range(40):
        rig.node(f"node-{index}", cpu="1000")
    rig.verdicts = [Silence()] * 10_000
    for _ in range(BINDS_MAX):
        rig.scheduler.binder.record_latency(0)
    for index in range(BINDS_MAX):
        rig.replica(f"web-{index}-0", cpu="100m")
    rig.start()
    rig.pass_time(100)
    assert len(rig.binds) == BINDS_MAX
    for bind in rig.binds:
        rig.commit(bind)
    rig.replica("late-0-0")
    assert len(rig.binds) == BINDS_MAX
    for bind in rig.binds[:ROUND_MIN]:
        rig.answer(rig.commit(bind))
    assert len(rig.binds) == BINDS_MAX + 1


def test_reports_displace_nothing() -> None:
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
