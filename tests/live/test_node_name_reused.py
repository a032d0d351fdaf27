"""A node's name that passes to another directory while work of the first one runs on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.nodes.installations import MAY_STILL_RUN
from tests.live.plane_process import workload
from tests.live.test_serving import status
from tests.live.whole_plane import WholePlane
from tests.live.witness import Beat, beats, overlaps, template
from tests.patience import STORY_S

pytestmark = pytest.mark.slow
SMALL = {"cpu": "200m", "memory": "16Mi"}
SECOND = "n1-second"
# This many beats in a row show that it runs, and their absence over as many that it does not.
BEATS = 5


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def kept(plane: WholePlane, name: str, **more: Any) -> Any:
    spec = template(plane.witness) | {"onDisconnect": "keep", "resources": SMALL} | more
    return workload(name, replicas=1, template=spec)


async def named(plane: WholePlane, workload_name: str) -> list[Replica]:
    found = (await plane.client.list(Replica, "default")).objects
    return [it for it in found if it.spec.workload == workload_name]


async def running(plane: WholePlane, name: str, besides: str = "") -> Replica:
    """The replica of a workload that runs, and is not this one."""

    async def look() -> list[Replica]:
        found = await named(plane, name)
        return [it for it in found if it.status.state is State.RUNNING and it.name != besides]

    found: list[Replica] = await plane.until(look)
    return found[0]


def of(plane: WholePlane, place: str, process: str = "") -> list[Beat]:
    found = [it for it in beats(plane.witness) if it.place == place]
    return [it for it in found if not process or it.process == process]


async def goes_on(plane: WholePlane, place: str, process: str) -> None:
    count = len(of(plane, place, process))

    async def more() -> bool:
        return len(of(plane, place, process)) >= count + BEATS

    await plane.until(more)


def test_another_directory_under_a_nodes_name_proves_nothing_and_the_first_one_stops_its_own(
    tmp_path: Path,
) -> None:
    """Work that is kept is not replaced while its stop is not proven. What was given
    up stops on the first machine as soon as that is heard again, without the name.
    [INV2, C6.4, I3]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), agent=("--capacity", "cpu=2")) as plane:
            await plane.client.create(kept(plane, "kept"))
            await plane.client.create(kept(plane, "soon", replaceAfterSeconds=1))
            keeper, old = await running(plane, "kept"), await running(plane, "soon")
            await plane.until(lambda: begun(plane))
            first, given_up = of(plane, "kept-0")[0].process, of(plane, "soon-0")[0].process
            # Its agent falls silent; its work does not notice.
            plane.parts["n1"].signal(signal.SIGSTOP)
            await plane.until(lambda: is_phase(plane, NodePhase.FENCED))
            add_second(plane)
            await plane.until(lambda: is_phase(plane, NodePhase.READY))
            node = await plane.client.get(Node, "n1")
            assert node.status.incarnation == 2
            assert keeper.status.binding is not None
            assert node.status.installation != keeper.status.binding.installation
            new = await running(plane, "soon", besides=old.name)
            assert new.status.binding is not None
            assert new.status.binding.installation == node.status.installation
            # The second machine knows nothing of it, and that is no proof.
            await goes_on(plane, "kept-0", first)
            (same,) = await named(plane, "kept")
            assert (same.name, same.status.state) == (keeper.name, State.UNKNOWN)
            said = condition(same.status.conditions, MAY_STILL_RUN)
            assert said is not None
            assert said.status is ConditionStatus.TRUE
            assert keeper.status.binding.installation in said.message
            # The plane shows where a copy may be, of both.
            code, told = await asyncio.to_thread(status, plane)
            (line,) = [it for it in told.splitlines() if "may still run on" in it]
            assert code == 1
            for word in (keeper.status.binding.installation, keeper.name, old.name):
                assert word in line
            # The first one is heard again: it has lost the name, and learns what was given up.
            plane.parts["n1"].signal(signal.SIGCONT)
            await plane.until(lambda: is_released(plane, old))
            count = len(of(plane, "soon-0", given_up))
            await goes_on(plane, "kept-0", first)
            assert len(of(plane, "soon-0", given_up)) == count
            assert (await named(plane, "kept"))[0].status.state is State.UNKNOWN
            assert not [it for it in overlaps(beats(plane.witness)) if "kept-0" in str(it)]
            assert len({it.process for it in of(plane, "kept-0")}) == 1

    play(story())


def add_second(plane: WholePlane) -> None:
    """Start an agent for the same node over an empty directory."""
    plane.nodes = (*plane.nodes, SECOND)
    arguments = list(plane.parts["n1"].arguments)
    arguments[arguments.index("--data") + 1] = str(plane.folder / SECOND)
    plane.add(SECOND, *arguments)
    plane.parts[SECOND].spawn()


async def begun(plane: WholePlane) -> bool:
    return bool(of(plane, "kept-0") and of(plane, "soon-0"))


async def is_phase(plane: WholePlane, wanted: NodePhase) -> bool:
    return (await plane.client.get(Node, "n1")).status.phase is wanted


async def is_released(plane: WholePlane, old: Replica) -> bool:
    found = [it for it in await named(plane, "soon") if it.name == old.name]
    return not found or found[0].status.state is State.RELEASED
