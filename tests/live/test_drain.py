"""A node of a plane of real processes is emptied under traffic, and says for whom it waits.

One plane plays all of it, since starting one is what it costs: a drain that a budget holds up, one
that is taken back, one that goes through while a client asks the service again and again, and one
that the operator's deadline ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from holdfast.correct.drain import DRAINED
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import Disruption, Workload
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.placement.disruption import is_available
from tests.live.part import ROOT
from tests.live.test_serving import AGENT, Visitor, service, serving
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.patience import STORY_S


async def command(plane: WholePlane, line: str) -> tuple[int, str]:
    """How a command ends, and what it prints."""
    kubeconfig = plane.folder / plane.servers[0] / "kubeconfig"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast.cli", *line.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    return done.returncode, done.stdout + done.stderr


async def said(plane: WholePlane, name: str) -> Any:
    return condition((await plane.client.get(Node, name)).status.conditions, DRAINED)


async def homes(plane: WholePlane) -> dict[str, str]:
    """Where each replica that works is."""
    return {
        it.name: it.status.binding.node
        for it in await plane.replicas()
        if is_available(it) and it.status.binding is not None
    }


async def budget(plane: WholePlane, stated: Disruption) -> None:
    def compute(it: Workload) -> Workload:
        return msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, disruption=stated))

    await plane.client.change(Workload, "web", "default", compute)


class Counted:
    """Counts how many replicas work, again and again."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane, self.least, self.looks = plane, 1_000, 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Counted:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            self.least = min(self.least, len(await homes(self._plane)))
            self.looks += 1
            await asyncio.sleep(0.02)


async def held_up_and_taken_back(plane: WholePlane, node: str) -> None:
    """With no room in the budget nothing is stopped, and the node says for whom it waits."""
    await budget(plane, Disruption(max_unavailable=0))
    assert await command(plane, f"drain {node} --no-wait") == (
        0,
        f"node.holdfast.dev/{node} is being drained\n",
    )

    async def waits() -> Any:
        found = await said(plane, node)
        return found if found is not None and found.reason == "WaitingForBudgets" else None

    found = await plane.until(waits)
    assert "waits for default/web (0 of 0 allowed are missing)" in found.message
    before = await homes(plane)
    assert await command(plane, f"uncordon {node}") == (
        0,
        f"node.holdfast.dev/{node} uncordoned\n",
    )

    async def is_open() -> bool:
        return await said(plane, node) is None

    await plane.until(is_open)
    assert await homes(plane) == before


async def emptied_under_traffic(plane: WholePlane, node: str) -> None:
    """One at a time, and no client that follows the Endpoints is refused."""
    await budget(plane, Disruption(min_available=2))
    known = await serving(plane, 3)
    async with Visitor(plane, known) as visitor, Counted(plane) as counted:
        code, text = await command(plane, f"drain {node} --reason disks")
        await serving(plane, 3)
    assert code == 0, text
    assert text.endswith("no work and no reservation is left\n")
    assert counted.looks > 10
    assert counted.least == 2
    assert visitor.refused == []
    assert visitor.answers > 20
    assert node not in (await homes(plane)).values()
    code, _ = await command(plane, f"uncordon {node}")
    assert code == 0


async def ended_by_its_deadline(plane: WholePlane, node: str) -> None:
    await budget(plane, Disruption(max_unavailable=0))
    code, text = await command(plane, f"drain {node} --deadline 1s")
    assert code == 0, text
    assert "budgets apply until" in text
    found = await said(plane, node)
    assert found.status is ConditionStatus.TRUE


def test_a_node_is_emptied_under_traffic_and_says_for_whom_it_waits(tmp_path: Path) -> None:
    """[E3, C7.6]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), fence=LONG_FENCE, agent=AGENT) as plane:
            await plane.client.create(service(plane, 3))
            await serving(plane, 3)
            names = list((await homes(plane)).values())
            busiest = max(names, key=names.count)
            await held_up_and_taken_back(plane, busiest)
            await emptied_under_traffic(plane, busiest)
            await ended_by_its_deadline(plane, "n2" if busiest == "n1" else "n1")
            plane.check_witness()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
