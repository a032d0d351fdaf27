"""What holds controller:nodes back."""

from __future__ import annotations

import pytest

from holdfast.correct.nodes.disruption_limits import (
    MARKS_PER_ZONE_MAX,
    MARKS_WINDOW_MS,
    DisruptionLimits,
)
from holdfast.model.kinds.node import NodePhase
from tests.unit.correct.views import node


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
    reason = limits.weigh("eu/a", zone)
    assert bool(reason) is is_held
    assert limits.held == ({"eu/a": reason} if is_held else {})
    if is_held:
        assert reason == f"{silent} of {nodes} nodes of zone eu/a are silent"
        assert limits.weigh("eu/a", [(it, False) for it, _ in zone]) == ""
        assert limits.held == {}


@pytest.mark.parametrize("phase", [NodePhase.FENCED, NodePhase.LOST])
def test_nodes_that_are_given_up_do_not_count(phase: NodePhase) -> None:
    """Machines that died long ago say nothing about our ears today. [N3]"""
    dead = [(node(f"d{at}", phase), True) for at in range(10)]
    alive = [(node(f"n{at}"), at < 1) for at in range(4)]
    assert DisruptionLimits().weigh("eu/a", [*dead, *alive]) == ""


def test_nodes_that_no_agent_ever_spoke_for_do_not_count() -> None:
    """An operator may announce a whole rack before its machines arrive. [N3]"""
    empty = [(node(f"e{at}", agent=""), True) for at in range(10)]
    alive = [(node(f"n{at}"), at < 1) for at in range(4)]
    assert DisruptionLimits().weigh("eu/a", [*empty, *alive]) == ""


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
