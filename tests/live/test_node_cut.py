"""A node whose network is cut, and servers that are away: what stops, what goes on, and when.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, runs those that take more than seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from tests.live.plane_process import workload
from tests.live.whole_plane import FENCE, PLACE, WholePlane
from tests.live.wire import Wire
from tests.live.witness import STUBBORN, Beat, beats, processes, template
from tests.patience import STORY_S

pytestmark = pytest.mark.slow
only_long = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_RUN_LONG"), reason="waits for the fence: make run-long runs it"
)
# What FENCE says: until then work runs on, and then it has so long to stop and to be killed.
SELF_STOP_S, GRACE_S, KILL_S = (float(FENCE[at]) for at in (1, 3, 7))
# How late a busy machine may look at its own clock.
LATE_S = 1.0
# Work that has not beaten for so long beats no more.
QUIET_MS = 3_000
SMALL = {"cpu": "200m", "memory": "16Mi"}


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def now_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000)


def of(plane: WholePlane, place: str, node: str) -> list[Beat]:
    return [it for it in beats(plane.witness) if (it.place, it.node) == (place, node)]


async def named(plane: WholePlane, workload_name: str) -> list[Replica]:
    found = (await plane.client.list(Replica, "default")).objects
    return [it for it in found if it.spec.workload == workload_name]


async def running(plane: WholePlane, name: str, node: str) -> Replica:
    """The replica of a workload, once it runs on this node."""

    async def look() -> list[Replica]:
        return [
            it
            for it in await named(plane, name)
            if it.status.state is State.RUNNING
            and it.status.binding is not None
            and it.status.binding.node == node
        ]

    found: list[Replica] = await plane.until(look)
    return found[0]


async def phase(plane: WholePlane, node: str) -> NodePhase:
    return (await plane.client.get(Node, node)).status.phase


def kept(plane: WholePlane) -> Any:
    spec = template(plane.witness) | {"onDisconnect": "keep", "resources": SMALL}
    return workload("kept", replicas=1, template=spec)


@only_long
@pytest.mark.root
def test_a_node_that_is_cut_off_stops_in_time_and_is_replaced_after_the_fence(
    tmp_path: Path,
) -> None:
    """Only its network: its agent, its work and its machine live on. What is to be kept runs on
    until the node is back, and then goes on in its next life.

    [SC6, H4, H5, H6, H7, H8, INV2]
    """

    async def story() -> None:
        with Wire() as wire:
            wrap = {"n1": wire.wrap}
            async with WholePlane(tmp_path, ("n1", "n2"), hosts=(wire.host,), wrap=wrap) as plane:
                # Everything begins on n1.
                await cordon(plane, "n2", True)
                await plane.apply(1, STUBBORN)
                await plane.client.create(kept(plane))
                old = await running(plane, "web", "n1")
                keeper = await running(plane, "kept", "n1")
                await cordon(plane, "n2", False)
                wire.cut()
                cut_ms = now_ms()
                await plane.until(lambda: is_phase(plane, "n1", NodePhase.FENCED))
                fenced_ms = now_ms()
                last_ms = of(plane, PLACE, "n1")[-1].at_ms
                assert not of(plane, PLACE, "n2")
                new = await running(plane, "web", "n2")
                await plane.until(lambda: has_begun(plane, "n2"))
                first_ms = of(plane, PLACE, "n2")[0].at_ms
                print(
                    f"cut off, the old copy ran on for {(last_ms - cut_ms) / 1_000:.1f} s, "
                    f"the fence came after {(fenced_ms - cut_ms) / 1_000:.1f} s, "
                    f"the new one ran after {(first_ms - cut_ms) / 1_000:.1f} s"
                )
                assert last_ms < fenced_ms < first_ms
                assert new.name != old.name
                # What is kept goes on, and no other one was started beside it.
                assert of(plane, "kept-0", "n1")[-1].at_ms > fenced_ms
                assert len(await named(plane, "kept")) == 1
                wire.mend()
                mended_ms = now_ms()
                await plane.until(lambda: is_phase(plane, "n1", NodePhase.READY))
                node = await plane.client.get(Node, "n1")
                assert node.status.incarnation == 2
                # Nothing has replaced it: the next life of its node takes it over as it is.
                await plane.until(lambda: is_adopted(plane, keeper))
                ran = [it for it in beats(plane.witness) if it.place == "kept-0"]
                assert len({it.process for it in ran}) == 1
                await plane.until(lambda: beats_after(plane, "kept-0", mended_ms))
                assert [it.node for it in processes(beats(plane.witness), PLACE)] == ["n1", "n2"]
                plane.check_witness()

    play(story())


async def cordon(plane: WholePlane, node: str, is_so: bool) -> None:
    await plane.client.patch(Node, node, "", {"spec": {"cordoned": is_so}})


async def has_begun(plane: WholePlane, node: str) -> bool:
    return bool(of(plane, PLACE, node))


async def beats_after(plane: WholePlane, place: str, at_ms: int) -> bool:
    return of(plane, place, "n1")[-1].at_ms > at_ms


async def last_beat_ms(plane: WholePlane) -> int:
    """When the work at PLACE on n1 was last seen, once it is seen no more."""
    last_ms = now_ms()
    while of(plane, PLACE, "n1")[-1].at_ms > last_ms - QUIET_MS:
        await asyncio.sleep(0.2)
        last_ms = max(now_ms(), last_ms)
    return of(plane, PLACE, "n1")[-1].at_ms


async def is_adopted(plane: WholePlane, old: Replica) -> bool:
    """Whether the same replica runs on, in the second life of its node."""
    found = [it for it in await named(plane, "kept") if it.status.state is State.RUNNING]
    lives = [it.status.binding.node_incarnation for it in found if it.status.binding is not None]
    return ([it.name for it in found], lives) == ([old.name], [2])


async def restarted(plane: WholePlane) -> Replica | None:
    found = await running(plane, "web", "n1")
    return found if found.status.process.restarts else None


async def is_phase(plane: WholePlane, node: str, wanted: NodePhase) -> bool:
    return await phase(plane, node) is wanted


@only_long
def test_servers_that_are_away_cost_stop_work_its_process_and_keep_work_nothing(
    tmp_path: Path,
) -> None:
    """What is kept goes on; what ends meanwhile is reported when they are back. [H7, H8, H2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), agent=("--capacity", "cpu=4")) as plane:
            go = tmp_path / "go"
            script = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
            job = {
                "command": [sys.executable, "-I", "-S", "-c", script],
                "onDisconnect": "keep",
                "restart": "OnFailure",
                "resources": SMALL,
            }
            await plane.apply(1, STUBBORN)
            await plane.client.create(kept(plane))
            await plane.client.create(workload("once", type="Job", replicas=1, template=job))
            old = await running(plane, "web", "n1")
            keeper = await running(plane, "kept", "n1")
            await running(plane, "once", "n1")
            plane.parts["server-1"].kill()
            away_ms = now_ms()
            await asyncio.sleep(SELF_STOP_S + GRACE_S + KILL_S + LATE_S)
            go.touch()
            await asyncio.sleep(SELF_STOP_S)
            last_ms = await last_beat_ms(plane)
            stopped_s = (last_ms - away_ms) / 1_000
            assert stopped_s > 0
            here_ms = now_ms()
            await plane.until(lambda: beats_after(plane, "kept-0", here_ms))
            plane.parts["server-1"].spawn()
            back = time.monotonic()

            async def told() -> list[Replica]:
                found = await named(plane, "once")
                return [it for it in found if it.status.process.exit_code == 0]

            await plane.until(told)
            again: Replica = await plane.until(lambda: restarted(plane))
            print(
                f"without servers, stop work ended after {stopped_s:.1f} s; the end of a job and a "
                f"restart were told {time.monotonic() - back:.1f} s after they were back"
            )
            assert (again.name, again.status.process.restarts) == (old.name, 1)
            same = await running(plane, "kept", "n1")
            assert same.status.process == keeper.status.process
            assert len(processes(beats(plane.witness), "kept-0")) == 1
            plane.check_witness()

    play(story())
