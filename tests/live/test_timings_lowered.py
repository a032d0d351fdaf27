"""The plane's times are lowered while a node is cut off: its work still holds the longer ones."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.health_report import report_lines
from holdfast.cli.status import gather_facts
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from tests.live.whole_plane import PLACE, WholePlane
from tests.live.witness import STUBBORN, beats
from tests.patience import STORY_S
from tests.scale import scaled

# With the lowered grace a fence waits for 9 s less (17 s) than with the one that the work holds.
GRACE, LOWERED = scaled("10", "18"), "1"
FENCE = ("--self-stop-after", "6", "--ack-window", "1", "--kill-bound", "1", "--stop-grace", GRACE)


@pytest.mark.slow
def test_a_node_is_fenced_by_the_grace_that_its_work_was_given(tmp_path: Path) -> None:
    """The agent is stopped, so that it hears of nothing; its work ignores SIGTERM, and its shim
    grants it the grace with which it was started. Status says that the lowered time is pending.
    [SC6, H5, H6, INV2]
    """

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), fence=FENCE) as plane:
            await plane.apply(1, STUBBORN)
            (old,) = await plane.ready(1)
            home = node_of(old)
            agent = plane.parts[home]
            agent.signal(signal.SIGSTOP)
            try:
                lower(plane)
                said = await plane.until(lambda: pending(plane))
                assert home in said
                await plane.until(lambda: is_marked(plane, home))
                began_s = time.monotonic()
                await plane.until(lambda: is_fenced(plane, home))
                # No machine is fast enough to wait for less; a slow one waits for longer.
                assert time.monotonic() - began_s > float(GRACE)
                new: Replica = await plane.until(lambda: replaced(plane, old))
                assert node_of(new) != home
                await plane.until(lambda: has_begun(plane, node_of(new)))
                plane.check_witness()
            finally:
                agent.signal(signal.SIGCONT)

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def lower(plane: WholePlane) -> None:
    """Restart the server with the shorter grace."""
    server = plane.parts["server-1"]
    at = server.arguments.index("--stop-grace") + 1
    server.arguments = (*server.arguments[:at], LOWERED, *server.arguments[at + 1 :])
    server.signal(signal.SIGKILL)


def node_of(replica: Replica) -> str:
    assert replica.status.binding is not None
    return replica.status.binding.node


async def pending(plane: WholePlane) -> str:
    """What `holdfast status` says of times that are not in force yet."""
    lines = report_lines(await gather_facts(plane.access))
    return "".join(it.more for it in lines if (it.part, it.state) == ("timing", "pending"))


async def is_marked(plane: WholePlane, node: str) -> bool:
    return (await plane.client.get(Node, node)).status.mark is not None


async def is_fenced(plane: WholePlane, node: str) -> bool:
    return (await plane.client.get(Node, node)).status.phase is NodePhase.FENCED


async def replaced(plane: WholePlane, old: Replica) -> Any:
    found = [it for it in await plane.replicas() if it.status.state is State.RUNNING]
    return next((it for it in found if it.name != old.name), None)


async def has_begun(plane: WholePlane, node: str) -> bool:
    return any((it.place, it.node) == (PLACE, node) for it in beats(plane.witness))
