"""What tenants hold and remember, as the queue sees it, and how that survives a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.schedulerpolicy import (
    FairnessRules,
    PolicyStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
    Suspension,
)
from holdfast.model.kinds.tenant import FairShare, QueueLimits, Quota, QuotaSpec, Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Bind
from holdfast.model.time import timestamp
from holdfast.propose.feasibility.outcome import BINDS_CAP, PENDING_CAP
from holdfast.propose.queue.fair_shares import REFRESH_MS
from tests.plane import START_WALL_MS
from tests.unit.propose.rig import Rig, Silence

HOUR_MS = 3_600_000


def plane(cpu: int, *tenants: str, **more: Any) -> Rig:
    """One node, and tenants besides acme."""
    rig = Rig(**more)
    rig.node("node-0", cpu=str(cpu), replicas="10000")
    for name in tenants:
        rig.put(Tenant(ObjectMeta(name=name)))
    return rig


def quota(rig: Rig, tenant: str, **spec: Any) -> None:
    rig.put(Quota(ObjectMeta(name="default", namespace=tenant), spec=QuotaSpec(**spec)))


def policy(rig: Rig, **rules: Any) -> None:
    spec = SchedulerPolicySpec(stage=PolicyStage.ACTIVE, fairness=FairnessRules(**rules))
    rig.put(SchedulerPolicy(ObjectMeta(name="p"), spec=spec))


def placed(rig: Rig) -> list[str]:
    """The tenants of the binds, in their order."""
    return [bind.target.namespace for bind in rig.sent(Bind)]


def test_the_tenant_with_the_smaller_share_goes_first() -> None:
    """Large replicas count for what they take, whichever came first. [G1, G3]"""
    rig = plane(100, "b")
    for index in range(4):
        rig.replica(f"large-{index}-0", cpu="8")
    for index in range(8):
        rig.replica(f"small-{index}-0", tenant="b", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    order = placed(rig)
    assert len(order) == 12
    # While acme has placed one of 8 cpus, b places its 8 of 1; a turn of the rotation is between.
    assert order[:10].count("b") == 8


def test_weights_divide_what_is_short() -> None:
    """A weight of 3 gets three quarters of the places. [G1, G3]"""
    rig = plane(16, "b")
    quota(rig, "acme", fairness=FairShare(weight=3))
    for index in range(30):
        rig.replica(f"x-{index}-0", cpu="1")
        rig.replica(f"y-{index}-0", tenant="b", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    assert placed(rig).count("acme") in (11, 12)
    assert len(placed(rig)) == 16


def test_a_minimum_share_is_filled_first() -> None:
    """However small its weight is. [E6, G1]"""
    rig = plane(16, "b")
    quota(rig, "acme", fairness=FairShare(weight=1_000))
    quota(rig, "b", hard={"cpu": "16"}, fairness=FairShare(minimum={"cpu": "6"}))
    for index in range(30):
        rig.replica(f"x-{index}-0", cpu="1")
        rig.replica(f"y-{index}-0", tenant="b", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    # One of the first eight turns is a turn of the rotation.
    assert placed(rig)[:7].count("b") >= 6
    assert placed(rig).count("b") <= 9


def test_a_suspension_lets_tenants_take_turns() -> None:
    """In its time only; then the smaller share is next again. [G2]"""
    rig = plane(1_000, "b")
    began = timestamp(START_WALL_MS)
    until = timestamp(START_WALL_MS + HOUR_MS)
    policy(rig, suspension=Suspension(began, until, "eu-central is lost"))
    for index in range(4):
        rig.replica(f"large-{index}-0", cpu="8")
        rig.replica(f"small-{index}-0", tenant="b", cpu="1")
    rig.start()
    rig.pass_time(1_000)
    assert placed(rig) == ["acme", "b"] * 4
    rig.pass_time(HOUR_MS)
    for index in range(4, 8):
        rig.replica(f"large-{index}-0", cpu="8")
        rig.replica(f"small-{index}-0", tenant="b", cpu="1")
    assert not rig.scheduler.shares.is_suspended


def test_what_was_used_counts_until_it_is_forgotten() -> None:
    """A tenant that held everything for an hour is behind one that held nothing. [G2]"""
    rig = plane(16, "b")
    policy(rig, half_life_seconds=900, window_seconds=3_600)
    for index in range(16):
        rig.replica(f"x-{index}-0", cpu="1")
    rig.start()
    rig.pass_time(HOUR_MS)
    shares = rig.scheduler.shares
    assert shares.remembered_share("acme") == pytest.approx(15 / 16, abs=0.01)
    for index in range(16):
        rig.status(rig.get(f"x-{index}-0"), state=State.RELEASED)
    rig.pass_time(900_000)
    assert shares.remembered_share("acme") == pytest.approx(15 / 32, abs=0.01)
    assert shares.key("acme") > shares.key("b")
    rig.pass_time(20 * 900_000)
    assert shares.remembered_share("acme") < 0.001


def test_a_scheduler_that_starts_reconstructs_what_running_work_has_used() -> None:
    """From the times of the bindings, so that a restart forgives nothing that still runs. [G2]"""
    rig = plane(16, "b")
    for index in range(8):
        rig.replica(f"x-{index}-0", cpu="1")
    rig.start()
    for index in range(8):
        found = rig.get(f"x-{index}-0")
        binding = msgspec.structs.replace(found.status.binding, at=timestamp(rig.now.wall_ms))
        rig.status(found, binding=binding)
    rig.pass_time(1_800_000)
    before = rig.scheduler.shares.remembered_share("acme")
    assert before == pytest.approx(0.375, abs=0.01)
    rig.restart()
    rig.pass_time(REFRESH_MS + 1)
    assert rig.scheduler.shares.remembered_share("acme") == pytest.approx(before, abs=0.01)


def test_work_that_no_fleet_could_place_is_not_owed() -> None:
    """Otherwise one impossible replica would be a debt for ever. [G2]"""
    rig = plane(16, "b")
    rig.replica("huge-0-0", tenant="b", cpu="64")
    rig.start()
    rig.pass_time(5_000)
    said = rig.get("huge-0-0", "b").status.pending
    assert isinstance(said, Pending)
    found, _ = rig.scheduler.shares.standings()
    assert found.get("b") is None or found["b"].entitlement == 0.0


def test_binds_in_flight_of_a_tenant_are_limited_and_it_says_so() -> None:
    """The others go on; each settled bind lets the next one go. [E6]"""
    rig = plane(100, "b")
    quota(rig, "acme", queue=QueueLimits(binds=2))
    rig.verdicts = [Silence()] * 50
    for index in range(6):
        rig.replica(f"x-{index}-0", cpu="1")
        rig.replica(f"y-{index}-0", tenant="b", cpu="1")
    rig.start()
    assert (placed(rig).count("acme"), placed(rig).count("b")) == (2, 6)
    rig.pass_time(4_000)
    assert rig.get("x-5-0").status.pending is None, "most binds are settled before this is said"
    rig.pass_time(4_000)
    said = rig.get("x-5-0").status.pending
    assert said.reasons == {BINDS_CAP: 1}
    assert said.message == "tenant acme has 2 binds in flight, the limit in spec.queue.binds"
    mine = [bind for bind in rig.binds if bind.target.namespace == "acme"]
    rig.verdicts = [Silence()] * 50
    place = next(n for n, ask in enumerate(rig.waiting) if ask.body is mine[0])
    rig.waiting.insert(0, rig.waiting.pop(place))
    rig.answer(rig.commit(mine[0]))
    assert placed(rig).count("acme") == 3


def test_binds_in_flight_of_a_workload_are_limited() -> None:
    """[E6]"""
    rig = plane(100)
    quota(rig, "acme", queue=QueueLimits(binds_per_workload=1))
    rig.verdicts = [Silence()] * 50
    for index in range(3):
        rig.replica(f"x-{index}-0", cpu="1")
    rig.start()
    assert len(rig.binds) == 1
    rig.pass_time(6_000)
    said = [rig.get(f"x-{index}-0").status.pending for index in range(3)]
    assert "workload web has 1 binds in flight" in next(it for it in said if it).message


def test_pending_replicas_of_a_workload_are_limited_and_more_follow() -> None:
    """The others say why they wait, and are queued when half of the first are placed. [E6]"""
    rig = plane(100)
    quota(rig, "acme", queue=QueueLimits(pending_per_workload=4))
    rig.verdicts = [Silence()] * 4
    for index in range(12):
        rig.replica(f"x-{index}-0", cpu="1")
    rig.start()
    assert len(rig.binds) == 4
    assert rig.get("x-11-0").status.pending.reasons == {PENDING_CAP: 1}
    assert "workload web already has 4 pending" in rig.get("x-11-0").status.pending.message
    for _ in range(4):
        rig.answer(rig.commit(rig.waiting[0].body))
    rig.pass_time(1_000)
    assert len(rig.binds) == 12, "without the resync"


def test_the_pulse_says_what_a_tenant_is_owed_since_when_and_until_when() -> None:
    """A lapse is settled one window after it began. [G2]"""
    rig = plane(16, "b")
    policy(rig, half_life_seconds=900, window_seconds=3_600)
    for index in range(16):
        rig.replica(f"x-{index}-0", cpu="1")
    rig.start()
    began_ms = rig.now.wall_ms
    for index in range(16):
        rig.replica(f"y-{index}-0", tenant="b", cpu="1")
    rig.pass_time(60_000)
    first, second = rig.scheduler.backlog(rig.now).fairness
    assert (first.tenant, first.share, first.entitlement) == ("b", 0.0, pytest.approx(0.5))
    assert 55_000 <= first.lapsed_ms <= 61_000
    assert abs(first.settle_by_ms - began_ms - HOUR_MS) <= 6_000
    assert (second.tenant, second.share, second.lapsed_ms) == ("acme", 1.0, 0)
    for index in range(8):
        rig.status(rig.get(f"x-{index}-0"), state=State.RELEASED)
    rig.pass_time(10_000)
    assert all(it.lapsed_ms == 0 for it in rig.scheduler.backlog(rig.now).fairness)
