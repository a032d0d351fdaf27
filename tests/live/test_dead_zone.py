"""A zone dies: what users and operators are shown, and how its work gets to another zone: after the
wait of the plane, or by a person's approval.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Progress, Workload
from tests.live.part import ROOT
from tests.live.whole_plane import FENCE as SHORT_FENCE
from tests.live.whole_plane import WholePlane
from tests.patience import STORY_S

# Doubted after seconds of silence, and fenced long after the test is over.
FENCE = ("--self-stop-after", "9", "--fence-after", "120", "--stop-grace", "1", "--ack-window", "1")
NODES = ("n1", "n2", "n3", "n4")
DEAD = ("n1", "n2", "n3")
# The other zone has room for all work.
ROOM_CPU = 4
# Longer than silent nodes stay unmarked elsewhere: three and a half renewals of two seconds.
HELD_S = 8.0
SAMPLE = ROOT / "examples" / "repair-approval.yaml"
# What docs/controllers.md says to replace.
EXPIRES = "2030-01-01T00:00:00Z"


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


def zoned(folder: Path, fence: Sequence[str], cpu: int) -> WholePlane:
    """A plane in which the nodes that die are one zone."""
    plane = WholePlane(folder, NODES, fence=fence, agent=("--capacity", f"cpu={cpu}"))
    for node in DEAD:
        part = plane.parts[node]
        part.arguments = tuple("eu-a" if it == f"eu-{node}" else it for it in part.arguments)
    return plane


@pytest.mark.slow
def test_a_dead_zone_is_seen_in_what_is_ready_and_its_nodes_are_named(tmp_path: Path) -> None:
    """No part claims that work is ready of which nothing is heard; most of the zone is silent, so
    that nothing of it is given up yet. [A11, H3, H4]
    """

    async def story() -> None:
        async with zoned(tmp_path, FENCE, 1) as plane:
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


async def lose_zone(plane: WholePlane) -> None:
    """All work is in the zone, and then the zone dies; the other one has room."""
    (spare,) = set(NODES) - set(DEAD)

    async def is_there() -> bool:
        return spare in {it.name for it in (await plane.client.list(Node)).objects}

    # An agent works with its server before its node is registered.
    await plane.until(is_there)
    code, told = await command(plane, "cordon", spare)
    assert code == 0, told
    await plane.apply(3)
    assert {node_of(it) for it in await plane.ready(3)} == set(DEAD)
    code, told = await command(plane, "uncordon", spare)
    assert code == 0, told
    dead_zone(plane)


def node_of(replica: Replica) -> str:
    return replica.status.binding.node if replica.status.binding is not None else ""


async def dead_nodes(plane: WholePlane) -> list[Node]:
    return [it for it in (await plane.client.list(Node)).objects if it.name in DEAD]


async def replaced(plane: WholePlane, reason: str) -> None:
    """Until all work answers in the other zone: after the fence, and marked for this reason."""

    async def moved() -> list[Node]:
        found = [it for it in await plane.replicas() if node_of(it) not in DEAD]
        if len(found) < 3 or not all([await plane.answer(it) for it in found]):
            return []
        return await dead_nodes(plane)

    nodes: list[Node] = await plane.until(moved)
    assert {it.status.phase for it in nodes} == {NodePhase.FENCED}
    for node in nodes:
        assert node.status.mark is not None
        assert reason in node.status.mark.reason
    plane.check_witness()


@pytest.mark.slow
def test_the_work_of_a_dead_zone_runs_in_another_one_without_a_person(tmp_path: Path) -> None:
    """Most of a zone is silent, so it is held back, but only for the wait of the plane. [H10]"""

    async def story() -> None:
        wait = (*SHORT_FENCE, "--zone-silence-max", "2")
        async with zoned(tmp_path, wait, ROOM_CPU) as plane:
            await lose_zone(plane)
            await replaced(plane, "its zone is given up: most of it has been silent for 2 s")

    asyncio.run(asyncio.wait_for(story(), STORY_S))


@pytest.mark.slow
def test_a_zone_that_is_held_back_is_given_up_when_a_person_approves_it(tmp_path: Path) -> None:
    """Nothing moves while the wait lasts; then an operator applies the sample. [H10]"""
    approval = tmp_path / "approval.yaml"
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert EXPIRES in SAMPLE.read_text()
    approval.write_text(SAMPLE.read_text().replace(EXPIRES, soon))

    async def story() -> None:
        wait = (*SHORT_FENCE, "--zone-silence-max", "86400")
        async with zoned(tmp_path, wait, ROOM_CPU) as plane:
            await lose_zone(plane)
            before = {it.name: it.status.binding for it in await plane.replicas()}

            async def suspected() -> bool:
                phases = {it.status.phase for it in await dead_nodes(plane)}
                return phases == {NodePhase.SUSPECT}

            await plane.until(suspected)
            await asyncio.sleep(HELD_S)
            assert await suspected()
            assert {it.name: it.status.binding for it in await plane.replicas()} == before
            code, told = await command(plane, "apply", "-f", str(approval))
            assert code == 0, told
            await replaced(plane, "override zone-eu-a-is-lost approves it")

    asyncio.run(asyncio.wait_for(story(), STORY_S))
