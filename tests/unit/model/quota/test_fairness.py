"""Shares, entitlements and debts, by example."""

from __future__ import annotations

import pytest

from holdfast.model.quota.fairness import (
    Claimant,
    decay,
    dominant_share,
    largest_gap,
    order_key,
    standings,
)

PLANE = {"cpu": 100, "gpu": 10, "memory": 1_000, "none": 0}


def entitled(**claimants: Claimant) -> dict[str, float]:
    found, _ = standings(claimants, PLANE)
    return {name: round(it.entitlement, 6) for name, it in found.items()}


def wants(weight: int = 1, **amounts: int) -> Claimant:
    return Claimant(waiting=amounts, weight=weight)


def test_a_share_is_the_largest_part_of_any_resource() -> None:
    """A tenant with few cpus and many GPUs has a large share. [G3]"""
    assert dominant_share({"cpu": 10, "gpu": 4, "memory": 1}, PLANE) == 0.4
    assert dominant_share({"none": 5, "unknown": 7}, PLANE) == 0.0
    assert dominant_share({}, PLANE) == 0.0


def test_entitlements_follow_dominant_resources() -> None:
    """The example of the DRF paper: 9 cpus and 18 GB, tasks of <1, 4> and <3, 1>. [G3]"""
    capacity = {"cpu": 9, "memory": 18}
    found, level = standings(
        {"a": wants(cpu=90, memory=360), "b": wants(cpu=270, memory=90)}, capacity
    )
    assert found["a"].entitlement == pytest.approx(2 / 3)
    assert found["b"].entitlement == pytest.approx(2 / 3)
    assert level == pytest.approx(2 / 3)


def test_entitlements_follow_weights() -> None:
    """A weight of 3 gives three times as much while both have work left over. [G1, G3]"""
    assert entitled(a=wants(3, cpu=500), b=wants(cpu=500)) == {"a": 0.75, "b": 0.25}


def test_what_one_does_not_want_the_others_get() -> None:
    """No tenant is entitled to more than its demand, and nothing is left idle. [G3]"""
    assert entitled(a=wants(cpu=10), b=wants(cpu=500), c=wants(cpu=500)) == {
        "a": 0.1,
        "b": 0.45,
        "c": 0.45,
    }


def test_one_resource_that_is_used_up_does_not_stop_work_that_needs_none_of_it() -> None:
    """GPU work stops at the last GPU; cpu work goes on to the last cpu. [G3]"""
    found = entitled(a=wants(gpu=50), b=wants(gpu=50), c=wants(cpu=500))
    assert found == {"a": 0.5, "b": 0.5, "c": 1.0}
    mixed = entitled(a=wants(gpu=50, cpu=50), c=wants(cpu=500))
    # a fills GPUs at ten times the speed of its cpus, until the cpus are used up.
    assert mixed["a"] == pytest.approx(1 / 1.1, abs=1e-5)
    assert mixed["c"] == pytest.approx(1 / 1.1, abs=1e-5)


def test_minimum_shares_come_first() -> None:
    """A tenant with a minimum of 60 of 100 has 60; the others divide the rest. [E6, G1]"""
    claimants = {
        "a": Claimant(waiting={"cpu": 500}, minimum={"cpu": 60}),
        "b": wants(cpu=500),
        "c": wants(cpu=500),
    }
    assert entitled(**claimants) == {"a": 0.6, "b": 0.2, "c": 0.2}
    idle = {**claimants, "a": Claimant(waiting={"cpu": 5}, minimum={"cpu": 60})}
    assert entitled(**idle) == {"a": 0.05, "b": 0.475, "c": 0.475}


def test_a_quota_ends_an_entitlement() -> None:
    """What a quota does not allow is not owed. [C6.6, G1]"""
    claimants = {
        "a": Claimant(held={"cpu": 5}, waiting={"cpu": 500}, ceiling={"cpu": 20}),
        "b": wants(cpu=500),
    }
    assert entitled(**claimants) == {"a": 0.2, "b": 0.8}


def test_a_debt_is_what_is_missing_from_the_entitlement() -> None:
    """It is positive for the tenant that waits and negative for the one that has too much. [G2]"""
    claimants = {
        "rich": Claimant(held={"cpu": 90}, waiting={"cpu": 50}),
        "poor": Claimant(held={"cpu": 10}, waiting={"cpu": 80}),
    }
    found, _ = standings(claimants, PLANE)
    assert found["poor"].debt == pytest.approx(0.4)
    assert found["rich"].debt == pytest.approx(-0.4)
    assert found["poor"].gap == pytest.approx(0.8)
    assert found["rich"].gap == 0.0
    assert (found["poor"].is_lapsed, found["rich"].is_lapsed) == (True, False)
    assert largest_gap(found.values()) == pytest.approx(0.8)


def test_who_waits_for_nothing_is_owed_nothing() -> None:
    """An idle tenant has no debt, whatever the others hold. [G2]"""
    found, level = standings({"a": Claimant(held={"cpu": 95}), "b": Claimant()}, PLANE)
    assert (found["a"].debt, found["b"].debt, level) == (0.0, 0.0, float("inf"))


def test_the_smallest_weighted_share_is_next() -> None:
    """And what a tenant remembers counts, too. [G3]"""
    small, large = {"cpu": 10.0}, {"cpu": 40.0}
    assert order_key(small, {}, 1, {}, PLANE) < order_key(large, {}, 1, {}, PLANE)
    assert order_key(large, {}, 8, {}, PLANE) < order_key(small, {}, 1, {}, PLANE)
    # Of what it had beyond that, half counts.
    assert order_key(small, large, 1, {}, PLANE) == (True, pytest.approx(0.25))
    assert order_key(large, small, 1, {}, PLANE) == (True, pytest.approx(0.4))


def test_a_tenant_below_its_minimum_goes_before_all_others() -> None:
    """Whatever it remembers; at its minimum it is one among all. [E6, G1]"""
    needy = order_key({"cpu": 10}, {"cpu": 99}, 1, {"cpu": 20}, PLANE)
    assert needy < order_key({}, {}, 1, {}, PLANE)
    satisfied = order_key({"cpu": 20}, {}, 1, {"cpu": 20}, PLANE)
    assert satisfied > order_key({"cpu": 19}, {}, 1, {}, PLANE)


def test_half_of_the_past_is_forgotten_after_a_half_life() -> None:
    """And the average goes up to what is held as fast. [G2]"""
    assert decay(80.0, 0.0, 900, 900) == 40.0
    assert decay(0.0, 80.0, 1_800, 900) == 60.0
    assert decay(7.0, 3.0, 0, 900) == 7.0
