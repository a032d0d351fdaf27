"""Which nodes count for the rollout of one per node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.rollout.survey import led_on_nodes
from holdfast.correct.workload.each_node import pin_to_node
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Rollout, RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.observe.snapshot import Snapshot
from tests.unit.correct.views import TEMPLATE, meta, node, replica, view, workload


def seen(*nodes: Node) -> Snapshot:
    return view(Tenant(meta("acme")), *nodes)


def each(**rollout: Any) -> Workload:
    return workload(1, type=WorkloadType.PER_NODE, rollout=Rollout(max_surge=0, **rollout))


def on(name: str, state: State = State.RUNNING, place: int = 0, **status: Any) -> Replica:
    return replica(state, place, node=name, template=pin_to_node(TEMPLATE, name), **status)


def closed(name: str) -> Node:
    it = node(name)
    return msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, cordoned=True))


def test_what_stands_on_a_closed_node_is_left_alone() -> None:
    """A replacement could not follow there."""
    mine = [on("node-a", place=1), on("node-b", place=2)]
    led, count = led_on_nodes(seen(closed("node-a"), node("node-b")), each(), mine)
    assert (led, count) == (mine[1:], 1)


@pytest.mark.parametrize("state", [State.STOPPING, State.UNKNOWN, State.FAILED, State.RELEASED])
def test_a_place_that_the_rollout_emptied_counts_whatever_becomes_of_its_node(
    state: State,
) -> None:
    """Otherwise the next one would go while this one is missing. [I6]"""
    silent = node("node-a", NodePhase.UNKNOWN, mark=1)
    gone = on("node-a", state, 1, cause=Cause.ROLLOUT)
    mine = [gone, on("node-b", place=2)]
    led, count = led_on_nodes(seen(silent, node("node-b")), each(), mine)
    assert (led, count) == (mine, 2)


@pytest.mark.parametrize("state", [State.PENDING, State.BOUND, State.STOPPING, State.UNKNOWN])
def test_what_does_not_work_counts_as_missing_on_a_closed_node(state: State) -> None:
    """It may be the successor of one that the rollout stopped. [I6]"""
    mine = [on("node-a", state, 1), on("node-b", place=2)]
    led, count = led_on_nodes(seen(closed("node-a"), node("node-b")), each(), mine)
    assert (led, count) == (mine, 2)


def test_a_place_that_others_emptied_on_a_closed_node_is_not_waited_for() -> None:
    """A drained node may stay away for days."""
    mine = [on("node-a", State.RELEASED, 1, cause=Cause.DRAIN), on("node-b", place=2)]
    led, count = led_on_nodes(seen(closed("node-a"), node("node-b")), each(), mine)
    assert (led, count) == (mine[1:], 1)


def test_recreate_empties_closed_nodes_too() -> None:
    """No two revisions run at once, wherever they are."""
    mine = [on("node-a", place=1), on("node-c", State.RELEASED, 3), on("node-b", place=2)]
    picture = seen(closed("node-a"), node("node-b"), closed("node-c"))
    led, count = led_on_nodes(picture, each(strategy=RolloutStrategy.RECREATE), mine)
    assert (led, count) == ([mine[0], mine[2]], 1)
