"""One replica in trouble that users bring about: twins, full disks, deletions, silent servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from tests.live.part import Part
from tests.live.plane_process import workload
from tests.live.whole_plane import IS_LONG, PLACE, WholePlane
from tests.live.witness import STUBBORN, beats, processes, template
from tests.patience import STORY_S

pytestmark = pytest.mark.slow
only_long = pytest.mark.skipif(
    not IS_LONG, reason="waits for the fence: make end-to-end-long runs it"
)
# Longer than FENCE lets work run on without contact, with its grace.
SILENCE_S = 9.0
TWIN_S = 2.0


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


async def gone(plane: WholePlane) -> None:
    """Until nothing is left of the service."""

    async def look() -> bool:
        found = (await plane.client.list(Workload, "default")).objects
        return not found and not await plane.replicas()

    await plane.until(look)


def test_a_second_agent_under_the_same_name_starts_nothing(tmp_path: Path) -> None:
    """On the same directory it ends with a sentence; with another one it waits. [INV2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",)) as plane:
            await plane.apply(1)
            await plane.ready(1)
            first = plane.parts["n1"]
            same = Part(tmp_path, "same", *first.arguments)
            same.spawn()

            async def has_ended() -> bool:
                return not same.is_alive

            await plane.until(has_ended)
            said = same.log
            assert said.startswith(f"holdfast: another agent (process {first.pid}) uses")
            assert said.count("\n") == 1

            data = str(tmp_path / "n1")
            others = [str(tmp_path / "twin") if it == data else it for it in first.arguments]
            twin = Part(tmp_path, "twin", *others)
            twin.spawn()

            async def has_complained() -> bool:
                return "node n1 is run by another agent" in twin.log

            try:
                await plane.until(has_complained)
                await asyncio.sleep(TWIN_S)
                assert twin.is_alive
                assert len(processes(beats(plane.witness), PLACE)) == 1
                await plane.scale(0)
                await plane.until(lambda: none(plane))
                await plane.scale(1)
                (new,) = await plane.ready(1)
                assert (await plane.answer(new)).endswith(" n1")
                plane.check_witness()
            finally:
                twin.kill()
            node = await plane.client.get(Node, "n1")
            assert (node.status.phase, node.status.incarnation) == (NodePhase.READY, 1)

    play(story())


async def none(plane: WholePlane) -> bool:
    return not await plane.replicas()


@only_long
def test_servers_that_are_away_for_long_cost_work_its_process_and_nothing_else(
    tmp_path: Path,
) -> None:
    """It stops by itself and starts again in place; its node was not given up. [H5, INV2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2")) as plane:
            await plane.apply(1, STUBBORN)
            (before,) = await plane.ready(1)
            server = plane.parts["server-1"]
            server.kill()
            await asyncio.sleep(SILENCE_S)
            count = len(beats(plane.witness))
            assert not await plane.answer(before)
            await asyncio.sleep(0.5)
            assert len(beats(plane.witness)) == count
            server.spawn()
            (after,) = await plane.ready(1)
            assert (after.name, after.status.process.restarts) == (before.name, 1)
            plane.check_witness()

    play(story())


@only_long
def test_what_is_deleted_while_its_node_is_down_goes_with_the_fence(tmp_path: Path) -> None:
    """Not before: its process may run. [H5, C6.4]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",)) as plane:
            await plane.apply(1, STUBBORN)
            (old,) = await plane.ready(1)
            plane.parts["n1"].kill()
            await plane.client.delete(Workload, "web", "default")
            await asyncio.sleep(1.0)
            assert await plane.answer(old)
            assert await plane.client.find(Replica, old.name, "default") is not None
            await gone(plane)
            assert not await plane.answer(old)
            assert not plane.shims("n1")

    play(story())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for very little."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    disk = tmp_path / "n1"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "holdfast-test", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.root
def test_a_full_disk_is_reported_and_work_starts_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    """What runs goes on meanwhile. [E3]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",)) as plane:
            await plane.apply(1)
            (old,) = await plane.ready(1)
            fill(small_disk / "ballast")
            await plane.client.create(second(plane))

            async def told() -> str:
                found = await plane.client.get(Workload, "other", "default")
                return found.status.progress.last_error

            sentence = await plane.until(told)
            assert "no space left on device" in sentence, sentence
            assert await plane.answer(old)
            assert plane.parts["n1"].lives == 1, plane.parts["n1"].log
            # An agent that is started on a full disk adopts what runs.
            plane.kill(old, "agent")
            (same,) = await plane.ready(1)
            assert same.status.process == old.status.process
            (small_disk / "ballast").unlink()

            async def runs() -> bool:
                found = await plane.client.get(Workload, "other", "default")
                return found.status.progress.ready == 1

            await plane.until(runs)

    play(story())


@only_long
@pytest.mark.root
def test_work_that_ends_on_a_full_disk_is_started_again_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    """Its end cannot be written down, and is known all the same; meanwhile its replica says why it
    does not run. [E3, INV2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",)) as plane:
            await plane.apply(1)
            (old,) = await plane.ready(1)
            fill(small_disk / "ballast")
            plane.kill(old, "work")

            async def says_why() -> bool:
                (seen,) = await plane.replicas()
                return "no space left on device" in seen.status.process.reason

            await plane.until(says_why)
            # Neither is it given up, nor does an agent that finds it so lose it.
            plane.kill(old, "agent")
            await asyncio.sleep(SILENCE_S)
            (seen,) = await plane.replicas()
            assert seen.name == old.name
            (small_disk / "ballast").unlink()
            (new,) = await plane.ready(1)
            assert (new.name, new.status.process.id == old.status.process.id) == (old.name, False)
            assert new.status.process.restarts > 0
            plane.check_witness()

    play(story())


def second(plane: WholePlane) -> Workload:
    """Another service."""
    spec = template(plane.witness) | {"resources": {"cpu": "100m", "memory": "16Mi"}}
    return workload("other", replicas=1, template=spec)


def fill(path: Path) -> None:
    """Leave no byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
