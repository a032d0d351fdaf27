"""Keeping replicas apart or together, by example."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.placement import Affinity, Spread, Topology
from holdfast.model.placement.spread import (
    affinity_refusal,
    repulsion_refusal,
    skew_after,
    spread_refusal,
)
from holdfast.model.refusal import Reason
from holdfast.model.selection.selectors import LabelSelector

WEB = LabelSelector(match_labels={"app": "web"})


@pytest.mark.parametrize(
    "counts, eligible, place, skew",
    [
        ({}, ("a", "b"), "a", 1),
        ({"a": 1}, ("a", "b"), "a", 2),
        ({"a": 1}, ("a", "b"), "b", 0),
        ({"a": 5}, ("a",), "a", 0),
        ({"a": 5}, (), "a", 0),
        ({"a": 1, "c": 0}, ("a", "b"), "b", 0),
        ({"a": 2, "b": 2, "c": 0}, ("a", "b"), "a", 1),
        ({"b": 5}, ("a", "b"), "a", 0),
    ],
)
def test_skew_compares_with_the_emptiest_eligible_place(
    counts: dict[str, int], eligible: tuple[str, ...], place: str, skew: int
) -> None:
    """Places that are not eligible do not count, and the place itself does. [F2]"""
    assert skew_after(counts, eligible, place) == skew


def test_only_a_required_spread_refuses() -> None:
    """The refusal names the place and its skew. [F2]"""
    counts, zones = {"a": 1, "b": 0}, ("a", "b")
    required = Spread(over=Topology.ZONE, max_skew=1, required=True)
    refusal = spread_refusal(required, counts, zones, "a")
    assert refusal is not None
    assert refusal.reason is Reason.SPREAD_VIOLATED
    assert refusal.details == {"place": "a", "skew": "2"}
    assert spread_refusal(required, counts, zones, "b") is None
    assert spread_refusal(Spread(max_skew=2, required=True), counts, zones, "a") is None
    assert spread_refusal(Spread(required=False), counts, zones, "a") is None


@pytest.mark.parametrize(
    "here, anti, first, expected",
    [
        ([{"app": "web"}], False, False, None),
        ([{"app": "db"}], False, False, Reason.AFFINITY_UNMET),
        ([], False, False, Reason.AFFINITY_UNMET),
        ([], False, True, None),
        ([{"app": "db"}, {"app": "web"}], True, False, Reason.ANTI_AFFINITY_VIOLATED),
        ([{"app": "db"}], True, False, None),
        ([], True, False, None),
        ([{"app": "web"}], True, True, Reason.ANTI_AFFINITY_VIOLATED),
    ],
)
def test_affinity_looks_at_who_is_there(
    here: list[dict[str, str]], anti: bool, first: bool, expected: Reason | None
) -> None:
    """Anti-affinity also applies to the first replica. [F2]"""
    refusal = affinity_refusal(Affinity(WEB), here, anti=anti, first=first)
    assert (refusal.reason if refusal else None) is expected
    assert affinity_refusal(Affinity(WEB, required=False), here, anti=anti, first=first) is None


def test_no_server_is_the_first_unless_an_operator_said_so() -> None:
    """A caller that did not look at the whole cluster cannot excuse a replica. [F2]"""
    assert affinity_refusal(Affinity(WEB), [], anti=False) is not None


@pytest.mark.parametrize("labels", [{"app": "web"}, {"app": "db"}, {}, {"app": "web", "tier": "1"}])
@pytest.mark.parametrize("within", list(Topology))
def test_work_that_avoids_a_present_one_also_keeps_a_new_one_away(
    labels: dict[str, str], within: Topology
) -> None:
    """Who came first makes no difference to who is near whom. [F2]"""
    rule = Affinity(selector=WEB, within=within)
    coming_second = affinity_refusal(rule, [labels], anti=True)
    coming_first = repulsion_refusal([(LabelSelector(match_labels={"x": "y"}), within)], labels)
    assert coming_first is None
    coming_first = repulsion_refusal([(rule.selector, within)], labels)
    assert (coming_first is None) == (coming_second is None)
    if coming_first is not None:
        assert coming_first.reason is Reason.ANTI_AFFINITY_VIOLATED
        assert within.value in coming_first.message
