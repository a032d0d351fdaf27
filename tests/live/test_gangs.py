"""A gang with real processes: its members meet over real sockets, at the addresses they learn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.model.encoding import wire
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Workload
from holdfast.model.registry import kind_named
from holdfast.model.workload.jobs import finished_condition
from tests.live.whole_plane import LONG_FENCE, WholePlane

EXAMPLE = Path(__file__).parents[2] / "examples" / "rendezvous.yaml"
AGENT = ("--capacity", "cpu=8")
pytestmark = pytest.mark.timeout(600)


def example() -> Workload:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"]["namespace"] = "default"
    body = json.dumps(document).encode()
    made: Workload = wire.decode(kind_named("Workload"), body, strict=True).object
    return made


async def _meet(folder: Path) -> None:
    async with WholePlane(folder, ("n1", "n2"), fence=LONG_FENCE, agent=AGENT) as plane:
        await plane.client.create(example())

        async def over() -> Workload | None:
            found = await plane.client.get(Workload, "rendezvous", "default")
            return found if finished_condition(found) is not None else None

        ended: Workload = await plane.until(over, 300.0)
        said = finished_condition(ended)
        assert said is not None
        assert said.type == "Complete", said
        record = await plane.client.get(Reservation, "rendezvous-gang", "default")
        assert record.spec.min_available == 4
        members = (await plane.client.list(Replica, "default")).objects
        bound = {it.status.binding.at for it in members if it.status.binding is not None}
        assert len(bound) == 1, "all members were bound by one transaction"
        ports = [it.status.binding.ports for it in members if it.status.binding is not None]
        assert len(set(ports)) == 4


def test_the_members_of_the_example_meet(tmp_path: Path) -> None:
    """None starts before all have a place; each finds the others by what it is told. [A3, G5]"""
    play: Any = asyncio.wait_for(_meet(tmp_path), 500.0)

    async def story() -> None:
        await play

    asyncio.run(story())
