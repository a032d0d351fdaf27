"""Nodes that die, and nodes that come back in time, with real processes; and why work waits then.

`test_node_cut` cuts a network, `test_slice` pauses an agent past its fence: what is missing there
is here. HOLDFAST_RUN_LONG=1, as `make run-long` sets it, runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.explain.answer import Explanation, StuckReason
from holdfast.host.client import paths
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import wall_ms
from tests.live.whole_plane import PLACE, WholePlane
from tests.live.witness import beats, processes
from tests.patience import STORY_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_RUN_LONG"), reason="waits for the fence: make run-long runs it"
    ),
]
NODES = tuple(f"n{number}" for number in range(1, 6))
# All in one zone, of which a share may fall silent.
ZONE = ("--zone", "eu-a", "--capacity", "cpu=1")
# A node is given up after three and a half renewals of two seconds.
GIVEN_UP_S = 7.0
# How late a poll may see a fence.
EARLY_S = 2.0


async def phases(plane: WholePlane) -> dict[str, NodePhase]:
    found = (await plane.client.list(Node)).objects
    return {it.name: it.status.phase for it in found}


async def has_phase(plane: WholePlane, node: str, phase: NodePhase) -> bool:
    return (await phases(plane))[node] is phase


async def why(plane: WholePlane, replica: Replica, wanted: StuckReason) -> Explanation:
    """The answer, once it is that."""
    path = paths.one(kind_of_struct(Replica), "default", replica.name, "explanation")

    async def look() -> Explanation | None:
        answer = msgspec.json.decode(await plane.client.read(path), type=Explanation)
        return answer if answer.finding.why is wanted else None

    found: Explanation = await plane.until(look)
    return found


def node_of(replica: Replica) -> str:
    assert replica.status.binding is not None
    return replica.status.binding.node


@contextlib.contextmanager
def asleep(plane: WholePlane, *nodes: str) -> Any:
    """Agents that hang until the end of this."""
    for node in nodes:
        plane.parts[node].signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            plane.parts[node].signal(signal.SIGCONT)


async def zone_limit(plane: WholePlane, replica: Replica) -> None:
    """Three of five are silent: that is too many to be believed, and no node is given up."""
    mine = node_of(replica)
    silent = [mine, *(it for it in NODES if it != mine)][:3]
    seen: set[NodePhase] = set()
    with asleep(plane, *silent):
        answer = await why(plane, replica, StuckReason.BRAKE)
        assert answer.finding.deadline is None
        assert "3 of 5 nodes of zone eu/eu-a are silent" in answer.finding.no_deadline
        until = time.monotonic() + GIVEN_UP_S
        while time.monotonic() < until:
            seen |= set((await phases(plane)).values())
            await asyncio.sleep(0.2)
    assert seen == {NodePhase.READY, NodePhase.SUSPECT}
    await plane.until(lambda: all_ready(plane))


async def all_ready(plane: WholePlane) -> bool:
    return set((await phases(plane)).values()) == {NodePhase.READY}


async def returns_in_time(plane: WholePlane, replica: Replica) -> None:
    """Marked, and heard again before the fence: the mark is cleared, and nothing is replaced."""
    node = node_of(replica)
    with asleep(plane, node):
        answer = await why(plane, replica, StuckReason.FENCE)
        assert (answer.finding.owner, answer.finding.then) == (
            "controller:nodes",
            "controller:repair",
        )
    await plane.until(lambda: has_phase(plane, node, NodePhase.READY))
    (same,) = await plane.ready(1)
    assert same.name == replica.name
    assert (await plane.client.get(Node, node)).status.incarnation == 1


async def dies(plane: WholePlane, replica: Replica) -> Replica:
    """The machine is gone with all that ran there: replaced after the fence, not before."""
    node = node_of(replica)
    plane.parts[node].kill()
    plane.kill(replica, "shim", "work")
    answer = await why(plane, replica, StuckReason.FENCE)
    deadline = answer.finding.deadline
    assert deadline is not None
    await plane.until(lambda: has_phase(plane, node, NodePhase.FENCED))
    late_s = time.time() - wall_ms(deadline) / 1_000
    assert late_s > -EARLY_S
    lost_at = max(it.at_ms for it in beats(plane.witness) if it.node == node)

    async def replaced() -> Replica | None:
        found = [it for it in await plane.replicas() if it.status.state is State.RUNNING]
        return found[0] if found and node_of(found[0]) != node else None

    new: Replica = await plane.until(replaced)
    await plane.until(lambda: has_beaten(plane, node_of(new)))
    first = next(it for it in beats(plane.witness) if it.node == node_of(new))
    print(
        f"the fence came {late_s:+.2f} s from when it was promised, the new copy ran "
        f"{(first.at_ms - lost_at) / 1_000:.1f} s after the last beat of the old one"
    )
    return new


async def has_beaten(plane: WholePlane, node: str) -> bool:
    return any(it.node == node for it in beats(plane.witness))


def test_nodes_that_hang_die_and_come_back_never_run_anything_twice(tmp_path: Path) -> None:
    """The limit at 60 % of a zone, a return before the fence, and a machine that is gone; the
    plane says meanwhile for what work waits, and until when. [SC4, SC6, H4, H5, H6, INV2, M2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, NODES, agent=ZONE) as plane:
            await plane.apply(1)
            (replica,) = await plane.ready(1)
            await zone_limit(plane, replica)
            (replica,) = await plane.ready(1)
            await returns_in_time(plane, replica)
            (replica,) = await plane.ready(1)
            new = await dies(plane, replica)
            assert new.name != replica.name
            ran = [it.node for it in processes(beats(plane.witness), PLACE)]
            assert ran[-1] == node_of(new)
            assert set(ran) == {node_of(replica), node_of(new)}
            plane.check_witness()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
