"""Any part may be killed under load, over and over: nothing runs twice, and all of it comes back.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, runs this; HOLDFAST_RUN_SEED chooses the kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from holdfast.agent.work import is_ready
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.live.witness import beats, overlaps, template

SERVICES, REPLICAS = 6, 5
KILLS = 40
PAUSE_S = 1.5
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_RUN_LONG"), reason="takes minutes: make run-long runs it"
    ),
]


def name(number: int) -> str:
    return f"svc{number}"


async def churn(plane: WholePlane, rng: random.Random) -> None:
    """Ask for other counts all the time."""
    while True:
        await plane.client.scale(
            Workload, name(rng.randrange(SERVICES)), "default", rng.randint(1, REPLICAS)
        )
        await asyncio.sleep(PAUSE_S)


def kill(plane: WholePlane, rng: random.Random) -> str:
    """One part of the plane, or some shim, or some work."""
    victim = rng.choice([*plane.parts, "shim", "shim"])
    if victim != "shim":
        with contextlib.suppress(AssertionError, ProcessLookupError):
            os.kill(plane.parts[victim].pid, signal.SIGKILL)
        return victim
    shims = [pid for node in plane.nodes for pid in plane.shims(node)]
    if shims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(shims), signal.SIGKILL)
    return victim


async def settled(plane: WholePlane) -> bool:
    found = (await plane.client.list(Replica, "default")).objects
    return len(found) == SERVICES * REPLICAS and all(map(is_ready, found))


def test_any_part_may_be_killed_under_load(tmp_path: Path) -> None:
    """[H1, H2, H8, C7.4, INV2]"""
    seed = int(os.environ.get("HOLDFAST_RUN_SEED", "1"))
    rng = random.Random(seed)

    async def story() -> None:
        agent = ("--capacity", "cpu=8", "--capacity", "memory=8Gi", "--gpus", "none")
        async with WholePlane(tmp_path, ("n1", "n2", "n3"), fence=LONG_FENCE, agent=agent) as plane:
            spec = template(plane.witness) | {"resources": {"cpu": "100m", "memory": "16Mi"}}
            for number in range(SERVICES):
                made = workload(name(number), replicas=REPLICAS, template=spec)
                await plane.client.create(made)
            churning = asyncio.create_task(churn(plane, random.Random(seed + 1)))
            killed: dict[str, int] = {}
            for _ in range(KILLS):
                await asyncio.sleep(PAUSE_S)
                victim = kill(plane, rng)
                killed[victim] = killed.get(victim, 0) + 1
            assert not churning.done(), churning
            churning.cancel()
            began = time.monotonic()
            for number in range(SERVICES):
                await plane.client.scale(Workload, name(number), "default", REPLICAS)
            await plane.until(lambda: settled(plane), 240.0)
            seen = beats(plane.witness)
            print(
                f"seed {seed}: killed {killed}; all {SERVICES * REPLICAS} ready "
                f"{time.monotonic() - began:.1f} s later; "
                f"{len({it.process for it in seen})} processes lived"
            )
            assert overlaps(seen) == []

    asyncio.run(story())
