"""A global plane and the plane of a region beside each other, each of processes of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.host.pki.component_credentials import AGENT
from holdfast.model.kinds.node import Node
from holdfast.model.plane import Plane, PlaneRole
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.patience import STORY_S

EU = Plane("eu", PlaneRole.REGION, "eu-central")
WORLD = Plane("world", PlaneRole.GLOBAL)


@pytest.mark.slow
def test_a_node_works_for_the_plane_of_its_region_and_for_no_other(tmp_path: Path) -> None:
    """The global plane has no nodes and says so to an agent that was given its address."""

    async def story() -> None:
        async with (
            WholePlane(tmp_path / "eu", ("n1",), plane=EU, fence=LONG_FENCE) as eu,
            WholePlane(tmp_path / "world", (), plane=WORLD, fence=LONG_FENCE) as world,
        ):
            await eu.apply(1)
            await eu.ready(1)
            (node,) = (await eu.client.list(Node)).objects
            assert (node.name, node.spec.region) == ("n1", EU.region)
            trust = world.credentials(AGENT, "n2")
            data = ("--data", str(world.folder / "n2"), "--node", "n2", "--region", EU.region)
            place = ("--zone", "a", "--single-tenant")
            astray = world.add("n2", "agent", *world.reach, *data, *trust, *place)
            astray.spawn()

            async def has_said_so() -> bool:
                return "which has no nodes" in astray.log_path.read_text()

            await world.until(has_said_so)
            assert (await world.client.list(Node)).objects == ()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
