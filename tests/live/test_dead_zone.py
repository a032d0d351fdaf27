"""A zone dies: what users and operators are shown, with the command that they have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.model.kinds.workload import Progress, Workload
from tests.live.whole_plane import WholePlane
from tests.patience import STORY_S

# Doubted after seconds of silence, and fenced long after the test is over.
FENCE = ("--self-stop-after", "9", "--fence-after", "120", "--stop-grace", "1", "--ack-window", "1")
NODES = ("n1", "n2", "n3", "n4")
DEAD = ("n1", "n2", "n3")


async def command(plane: WholePlane, *words: str) -> tuple[int, str]:
    config = str(plane.folder / "server-1" / "kubeconfig")
    arguments = [*words, "--kubeconfig", config]
    ran = await asyncio.to_thread(CliRunner().invoke, root, arguments, standalone_mode=False)
    return int(ran.return_value if ran.exception is None else 1), ran.output


def dead_zone(plane: WholePlane) -> None:
    """The machines of a zone lose their power: agents, shims and work."""
    for node in DEAD:
        shims = plane.shims(node)
        plane.parts[node].kill()
        for pid in shims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_dead_zone_is_seen_in_what_is_ready_and_its_nodes_are_named(tmp_path: Path) -> None:
    """No part claims that work is ready of which nothing is heard; most of the zone is silent, so
    that nothing of it is given up yet. [A11, H3, H4]
    """

    async def story() -> None:
        plane = WholePlane(tmp_path, NODES, fence=FENCE)
        for node in DEAD:
            part = plane.parts[node]
            part.arguments = tuple("eu-a" if it == f"eu-{node}" else it for it in part.arguments)
        async with plane:
            await plane.apply(4)
            await plane.ready(4)
            code, told = await command(plane, "status")
            assert code == 0, told
            dead_zone(plane)
            progress: Progress = await plane.until(lambda: seen(plane))
            assert (progress.desired, progress.ready + progress.unknown) == (4, 4)
            code, told = await command(plane, "status")
            assert code == 1, told
            _, _, wrong = told.partition("wrong:")
            assert all(node in wrong for node in DEAD), told
            assert "n4" not in wrong
            assert f"web {progress.ready} of 4 ready and {progress.unknown} unknown" in told
            code, told = await command(plane, "get", "workloads")
            assert f"{progress.ready}/4" in told

    asyncio.run(asyncio.wait_for(story(), STORY_S))


async def seen(plane: WholePlane) -> Progress | None:
    """The progress once nothing is claimed of what was on the dead nodes."""
    lost = [
        it
        for it in await plane.replicas()
        if it.status.binding is not None and it.status.binding.node in DEAD
    ]
    assert lost
    found = (await plane.client.get(Workload, "web", "default")).status.progress
    return found if found.unknown == len(lost) else None
