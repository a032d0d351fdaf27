"""Pools and the devices they choose, on random fleets: what is kept is what the ledgers say, scores
are those of a new pool, and every choice is one that the model's own rule accepts.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.schedulerpolicy import ExpectedDemand, SchedulerPolicySpec
from holdfast.model.kinds.template import DeviceRequest, Resources, Template
from holdfast.model.kinds.tenant import TenantSpec
from holdfast.model.placement.fit import Allocation, claim
from holdfast.model.placement.placement_rules import gate_refusal
from holdfast.observe.cache import ObjectChange
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import BindReplica
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.gpu import GpuPools
from holdfast.propose.scores.fragmentation import FRAGMENTATION
from tests.property.test_placing import (
    DEVICES,
    MOVES,
    NODES,
    NOW,
    RESOURCES,
    World,
    replica,
    viewed,
)
from tests.scale import examples

EXPECTED = SchedulerPolicySpec(
    demands=(
        ExpectedDemand(devices=(DeviceRequest(device_class="gpu", share="300m"),)),
        ExpectedDemand(weight=2, devices=(DeviceRequest(device_class="gpu", models=("B",)),)),
        ExpectedDemand(
            resources=Resources(cpu="1"), devices=(DeviceRequest(device_class="gpu", count=2),)
        ),
    )
)
WANTED = st.builds(Template, resources=RESOURCES, devices=DEVICES)


def moved(nodes: list[Any], moves: list[Any]) -> World:
    """A world in which pools were looked at now and then."""
    world = World(nodes)
    for step, move in enumerate(moves):
        world.happen(*move)
        if step % 3 != 1:
            world.fleet.pools.refresh_all()
    return world


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(NODES, min_size=1, max_size=4), MOVES)
def test_a_pool_says_what_the_ledgers_say(nodes: list[Any], moves: list[Any]) -> None:
    """Of each node that takes work, all that is free; of others, nothing. [F3, D4]"""
    world = moved(nodes, moves)
    seen: dict[tuple[str, str], list[int]] = {}
    for pool in world.fleet.pools.refresh_all():
        for own in pool.there.tolist():
            site = world.fleet.at(int(pool.rows[own]))
            ledger = site.ledger
            slots = [
                slot
                for _, slot in sorted(ledger.devices.items())
                if slot.device_class == pool.device_class
            ]
            free = [min(1000, max(0, slot.free())) for slot in slots]
            sums = [max(0, ledger.free("cpu")), max(0, ledger.free("memory")) >> 20]
            if gate_refusal(ledger.gate) is not None:
                free, sums = [0] * len(free), [0, 0]
            columns = pool.columns
            assert columns.devices[own].tolist()[: len(free)] == free
            assert [int(columns.cpu[own]), int(columns.memory[own])] == sums
            seen[pool.device_class, site.name] = free
    there = {
        (slot.device_class, site.name)
        for site in world.fleet
        for slot in site.empty.devices.values()
    }
    assert set(seen) == there


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(NODES, min_size=1, max_size=4), MOVES, WANTED)
def test_what_a_pool_kept_scores_as_a_new_one(
    nodes: list[Any], moves: list[Any], wanted: Template
) -> None:
    """Whatever came and went before; within 0 to 100. [F3]"""
    world = moved(nodes, moves)
    view = viewed(world.fleet, TenantSpec(), EXPECTED)
    work = view.work(replica("new", wanted))
    kept = _scores(work, view)
    learned = world.fleet.pools.begin_round()
    world.fleet.pools = GpuPools(world.fleet.columns)
    # Of classes that the policy does not speak of, what was seen counts.
    world.fleet.pools.use_mixes(learned)
    assert kept == pytest.approx(_scores(work, view), abs=1e-6)
    assert all(0.0 <= score <= 100.0 for score in kept)


def _scores(work: Any, view: Any) -> list[float]:
    view.fleet.pools.refresh_all()
    found = FRAGMENTATION.score(work, view, view.columns.all, 0)
    return [float(score) for score in found[view.columns.live[view.columns.all]]]


@settings(max_examples=examples(80), deadline=None)
@given(
    st.sampled_from([None, EXPECTED]),
    st.lists(NODES, min_size=1, max_size=4),
    MOVES,
    st.lists(WANTED, min_size=1, max_size=4),
)
def test_devices_that_are_chosen_are_those_asked_for_and_free(
    policy: SchedulerPolicySpec | None, nodes: list[Any], moves: list[Any], wanted: list[Template]
) -> None:
    """The commit's own judgement of the choice, on the same snapshot. [F3, D4, C3]"""
    world = moved(nodes, moves)
    view = viewed(world.fleet, TenantSpec(), policy)
    for index, each in enumerate(wanted):
        one = replica(f"new{index}", each)
        world.fleet.notice(ObjectChange("replicas", None, one))
        found = propose(view, [one], NOW, index, VerdictCache())[0]
        if isinstance(found, BindReplica):
            site = world.fleet.get(found.node)
            assert site is not None
            demand = view.work(one).demand
            assert isinstance(claim(site.ledger, demand, found.held.devices), Allocation)
            world.fleet.assume(one.name, ("acme", one.name), found.node, found.held, 0)
