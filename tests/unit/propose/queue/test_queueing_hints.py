"""Queueing hints: an event wakes as many as it could help, and no others."""

from __future__ import annotations

from typing import Any

from holdfast.model.lifecycle import State
from tests.unit.propose.rig import Rig


def full(slots: int) -> Rig:
    """A full node, and twenty replicas that wait for it; then five others that never fit."""
    rig = Rig()
    rig.node("node-0", cpu=str(slots))
    rig.start()
    for index in range(slots):
        rig.replica(f"there-{index}-0")
    for index in range(20):
        rig.replica(f"web-{index}-0")
    for index in range(5):
        rig.replica(f"large-{index}-0", cpu="64")
    rig.pass_time(5_000)
    assert len(rig.binds) == slots
    return rig


def turns(rig: Rig, name: str) -> int:
    entry = rig.scheduler.queue.get(("acme", name))
    assert entry is not None
    return entry.turns


def test_one_place_that_becomes_free_wakes_one() -> None:
    """And those that it cannot help are not even evaluated. [E1]"""
    rig = full(2)
    before = [turns(rig, f"web-{index}-0") for index in range(20)]
    large = [turns(rig, f"large-{index}-0") for index in range(5)]
    rig.status(rig.get("there-0-0"), state=State.RELEASED)
    assert len(rig.binds) == 3
    still = [index for index in range(20) if not rig.where(f"web-{index}-0")]
    assert len(still) == 19
    assert [turns(rig, f"web-{index}-0") for index in still] == [before[i] for i in still]
    assert [turns(rig, f"large-{index}-0") for index in range(5)] == large


def test_a_node_that_comes_wakes_as_many_as_it_can_take() -> None:
    """[E1]"""
    rig = full(1)
    rig.node("node-1", cpu="7")
    assert sum(bool(rig.where(f"web-{index}-0")) for index in range(20)) == 7
    assert rig.scheduler.queue.has_ready is False


def test_many_nodes_at_once_wake_as_many_as_all_of_them_can_take() -> None:
    """[E1]"""
    rig = full(1)
    rig.is_deaf = True
    nodes: list[Any] = [rig.node(f"more-{index}", cpu="1") for index in range(18)]
    rig.is_deaf = False
    rig.pass_time(61_000)
    assert sum(bool(rig.where(f"web-{index}-0")) for index in range(20)) == len(nodes)
