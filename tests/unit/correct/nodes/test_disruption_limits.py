"""What holds controller:nodes back."""

from __future__ import annotations

import pytest

from holdfast.correct.nodes.disruption_limits import (
    MARKS_PER_ZONE_MAX,
    MARKS_WINDOW_MS,
    DisruptionLimits,
    zone_wait_ms,
)
from holdfast.model.kinds.node import NodePhase
from tests.unit.correct.views import node

WAIT_MS = 90_000
SILENT = [(node(f"n{number}"), number < 2) for number in range(3)]
HEARD = [(node, False) for node, _ in SILENT]


def weigh(limits: DisruptionLimits, zone: object, now_ms: int = 0, approval: str = "") -> str:
    return limits.weigh("eu/a", zone, now_ms, wait_ms=WAIT_MS, approval=approval)


@pytest.mark.parametrize(
    "nodes, silent, is_held",
    [
        (2, 2, False),
        (3, 1, False),
        (3, 2, True),
        (5, 3, True),
        (10, 6, True),
        (20, 10, False),
        (20, 11, True),
        (100, 54, False),
    ],
)
def test_most_of_a_zone_silent_is_our_own_deafness(nodes: int, silent: int, is_held: bool) -> None:
    """From 55 per cent of three nodes or more; the reason names the numbers. [N3, H4, SC6]"""
    limits = DisruptionLimits()
    zone = [(node(f"n{at}"), at < silent) for at in range(nodes)]
    reason = weigh(limits, zone)
    assert bool(reason) is is_held
    assert limits.held == ({"eu/a": reason} if is_held else {})
    if is_held:
        assert reason == f"{silent} of {nodes} nodes of zone eu/a are silent"
        assert weigh(limits, [(it, False) for it, _ in zone]) == ""
        assert limits.held == {}


@pytest.mark.parametrize("phase", [NodePhase.FENCED, NodePhase.LOST])
def test_nodes_that_are_given_up_do_not_count(phase: NodePhase) -> None:
    """Machines that died long ago say nothing about our ears today. [N3]"""
    dead = [(node(f"d{at}", phase), True) for at in range(10)]
    alive = [(node(f"n{at}"), at < 1) for at in range(4)]
    assert weigh(DisruptionLimits(), [*dead, *alive]) == ""


def test_nodes_that_no_agent_ever_spoke_for_do_not_count() -> None:
    """An operator may announce a whole rack before its machines arrive. [N3]"""
    empty = [(node(f"e{at}", agent=""), True) for at in range(10)]
    alive = [(node(f"n{at}"), at < 1) for at in range(4)]
    assert weigh(DisruptionLimits(), [*empty, *alive]) == ""


def test_steps_per_zone_and_window_are_bounded() -> None:
    """A mistake stays small; each zone has its own limit, and the same step counts once. [I1]"""
    limits = DisruptionLimits()
    steps = [f"n{at}/Mark" for at in range(MARKS_PER_ZONE_MAX + 2)]
    taken = [step for step in steps if limits.admits("eu/a", step, 0)]
    assert taken == steps[:MARKS_PER_ZONE_MAX]
    assert limits.admits("eu/a", steps[0], 1)
    assert limits.admits("eu/b", steps[-1], 1)
    assert not limits.admits("eu/a", steps[-1], MARKS_WINDOW_MS - 1)
    assert limits.admits("eu/a", steps[-1], MARKS_WINDOW_MS)


def test_a_silent_zone_is_given_up_after_its_wait_and_without_a_limit_on_marks() -> None:
    """The hold has an end, and the zone is then given up as a whole. [H10]"""
    limits = DisruptionLimits()
    assert weigh(limits, SILENT, 1_000)
    assert weigh(limits, SILENT, WAIT_MS + 999)
    assert weigh(limits, SILENT, WAIT_MS + 1_000) == ""
    assert limits.held == {}
    assert limits.given_up == {"eu/a": "most of it has been silent for 90 s"}
    steps = [f"n{at}/Mark" for at in range(10 * MARKS_PER_ZONE_MAX)]
    assert all(limits.admits("eu/a", step, WAIT_MS) for step in steps)
    assert sum(limits.admits("eu/b", step, WAIT_MS) for step in steps) == MARKS_PER_ZONE_MAX


def test_the_wait_begins_again_when_the_zone_renewed_or_was_not_observed() -> None:
    """Only silence that was observed without a gap counts. [H10, E4]"""
    limits = DisruptionLimits()
    weigh(limits, SILENT, 0)
    weigh(limits, HEARD, 60_000)
    assert weigh(limits, SILENT, 60_001)
    assert weigh(limits, SILENT, WAIT_MS + 60_000)
    limits.forget_waits()
    assert weigh(limits, SILENT, WAIT_MS + 60_001)
    assert weigh(limits, SILENT, 2 * WAIT_MS + 60_000)
    assert weigh(limits, SILENT, 2 * WAIT_MS + 60_001) == ""
    weigh(limits, HEARD, 2 * WAIT_MS + 60_002)
    assert limits.given_up == {}


def test_a_person_gives_a_zone_up_for_as_long_as_the_override_lasts() -> None:
    """The zone is held back again afterwards, unless the wait is over by then. [H10]"""
    limits = DisruptionLimits()
    assert weigh(limits, SILENT, 0, approval="burnt-down") == ""
    assert limits.approvals == {"eu/a": "burnt-down"}
    assert limits.given_up == {"eu/a": "override burnt-down approves it"}
    assert weigh(limits, SILENT, 10_000)
    assert (limits.approvals, limits.given_up) == ({}, {})
    assert weigh(limits, SILENT, WAIT_MS) == ""
    assert weigh(limits, SILENT, WAIT_MS + 1, approval="burnt-down") == ""
    # What no longer needs an approval does not rest on one.
    assert limits.approvals == {}


@pytest.mark.parametrize("observers, wait_ms", [(0, 90_000), (1, 90_000), (2, 30_000), (5, 30_000)])
def test_servers_that_get_heartbeats_elsewhere_shorten_the_wait(
    observers: int, wait_ms: int
) -> None:
    """One server alone may be the one that is cut off. [H10]"""
    assert zone_wait_ms(WAIT_MS, observers) == wait_ms
