"""Plans as data, drawn from a seed."""

from __future__ import annotations

import itertools

import msgspec

from holdfast.sim.plan import (
    CALENDAR_STEPS_MS,
    HOUR_MS,
    Act,
    Aim,
    Fault,
    Hazard,
    Plan,
    calendar_steps,
    draw,
)
from holdfast.sim.world import World

AIMS = {
    "crash": Aim(("a-1", "a-2", "b-1"), paired=False),
    "cut": Aim(("a", "b", "c"), paired=True),
}
CRASH = Hazard("crash", 60, for_ms=(10, 5_000_000), amount=(1, 3), share=1)
CUT = Hazard("cut", 60, for_ms=(10, 20), share=1)


def _draw(seed: int, *hazards: Hazard) -> Plan:
    return draw(seed, hazards, AIMS, faults_ms=HOUR_MS, settle_ms=1)


def test_the_same_seed_draws_the_same_plan_and_another_another() -> None:
    """A seed determines the whole run. [N6]"""
    assert _draw(1, CRASH, CUT) == _draw(1, CRASH, CUT)
    assert _draw(1, CRASH) != _draw(2, CRASH)


def test_a_further_hazard_does_not_shift_the_others() -> None:
    """A seed keeps its faults while the simulator grows. [N6]"""
    both = _draw(1, CUT, CRASH)
    assert tuple(f for f in both.faults if f.kind == "crash") == _draw(1, CRASH).faults


def test_faults_keep_to_the_bounds_of_their_hazard() -> None:
    """Rate, time, duration and amount; a fault ends with its phase. [N6]"""
    faults = _draw(1, CRASH).faults
    assert 30 < len(faults) < 100
    for fault in faults:
        assert 0 <= fault.at_ms < HOUR_MS
        assert 1 <= fault.amount <= 3
        assert fault.at_ms + fault.for_ms <= HOUR_MS
        assert fault.peer == ""
    assert list(faults) == sorted(faults)


def test_targets_can_be_restricted() -> None:
    """A hazard may strike some machines only. [N6]"""
    hazard = msgspec.structs.replace(CRASH, only="a-")
    assert {fault.target for fault in _draw(1, hazard).faults} == {"a-1", "a-2"}


def test_paired_kinds_strike_pairs_and_one_host_against_all_others() -> None:
    """Partial partitions are part of the plan. [N6]"""
    faults = _draw(1, CUT).faults
    assert {fault.peer for fault in faults} == {"*", "a", "b", "c"}
    assert all(fault.peer != fault.target for fault in faults)


def test_a_whole_region_can_be_struck() -> None:
    """A region cut from the others is one fault. [N6]"""
    world = World(0)
    for name, region in (("a", "eu"), ("b", "eu"), ("c", "us")):
        world.add_host(name, region=region)
    aims = world.faults.aims()
    assert aims["partition"].names == ("a", "b", "c", "eu", "us")
    assert aims["reboot"].names == ("a", "b", "c")
    world.faults.schedule(Fault(0, "partition", "eu", "us", for_ms=1_000))
    world.run_until(0)
    hosts = world.hosts
    assert world.network.path(hosts["b"], hosts["c"]).cut
    assert not world.network.path(hosts["a"], hosts["b"]).cut


def test_a_hazard_spares_its_share_of_seeds() -> None:
    """Seeds with few kinds of faults reach states that busy ones do not. [N6]"""
    hazard = msgspec.structs.replace(CRASH, share=0.25)
    struck = sum(bool(_draw(seed, hazard).faults) for seed in range(400))
    assert 60 < struck < 140


def test_a_plan_survives_json() -> None:
    """What is saved is what is replayed. [N6]"""
    plan = Plan(
        10,
        20,
        (Fault(1, "cut", "a", "b", 5), Fault(2, "crash", "a-1", nth=3)),
        (Act(3, "user", {"add": 1}),),
    )
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_one_calendar_at_a_time_is_set_by_one_of_the_stated_steps() -> None:
    """[N6]"""
    hazards = (calendar_steps(2_000, share=1), calendar_steps(2_000, "b", share=1))
    aims = {"clock_step": Aim(("a", "b", "c"), paired=False)}
    faults = draw(1, hazards, aims, faults_ms=HOUR_MS, settle_ms=0).faults
    assert {fault.amount for fault in faults} == set(CALENDAR_STEPS_MS)
    assert {fault.target for fault in faults} == {"a", "b", "c"}
    pairs = itertools.pairwise(faults)
    assert all(one.at_ms + one.for_ms <= other.at_ms for one, other in pairs)
