"""Rollouts with real processes: under traffic, and of a revision that does not come."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.agent.work import is_ready
from holdfast.model.errors import Conflict, Missing
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.template import EnvVar, Template
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.live.witness import template

AGENT = ("--capacity", "cpu=4")
PROBE = {"http": {"port": "http"}, "periodSeconds": 1}
ROLLOUT = {
    "maxUnavailable": 0,
    "maxSurge": 1,
    "minReadySeconds": 1,
    "progressDeadlineSeconds": 6,
    "autoRevert": True,
}


def service(plane: WholePlane) -> Workload:
    spec = {**template(plane.witness), "probes": {"readiness": PROBE}, "graceSeconds": 4}
    spec["resources"] = {"cpu": "100m", "memory": "16Mi"}
    return workload("web", replicas=3, template=spec, rollout=ROLLOUT)


async def found(plane: WholePlane) -> Workload:
    return await plane.client.get(Workload, "web", "default")


async def want(plane: WholePlane, **changes: Any) -> None:
    """Change the template, as a user who edits it does."""
    while True:
        seen = await found(plane)
        template = msgspec.structs.replace(seen.spec.template, **changes)
        spec = msgspec.structs.replace(seen.spec, template=template)
        with contextlib.suppress(Conflict):
            await plane.client.update(msgspec.structs.replace(seen, spec=spec))
            return


async def rests(plane: WholePlane, phase: str) -> Workload:
    """The workload, once its last template was taken up and it is so."""

    async def look() -> Workload | None:
        seen = await found(plane)
        rollout = seen.status.rollout
        is_told = rollout.observed_generation == seen.metadata.generation
        return seen if is_told and rollout.phase == phase else None

    seen: Workload = await plane.until(look)
    return seen


async def all_of(plane: WholePlane, revision: str) -> bool:
    """Whether three are ready, all of this revision, and nothing else is there."""
    seen = await plane.replicas()
    return len(seen) == 3 and all(is_ready(it) and it.spec.revision == revision for it in seen)


class Traffic:
    """A client that asks every published address again and again."""

    def __init__(self) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self.fewest = 3


@asynccontextmanager
async def traffic(plane: WholePlane) -> AsyncIterator[Traffic]:
    seen = Traffic()

    async def ask(session: aiohttp.ClientSession, address: str) -> None:
        try:
            async with session.get(f"http://{address}/") as response:
                await response.text()
            seen.answers += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            seen.failures.append(f"{address}: {error!r}")

    async def go_on() -> None:
        timeout, calls = aiohttp.ClientTimeout(5.0), aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=calls) as session:
            while True:
                listed = await plane.client.get(Endpoints, "web", "default")
                addresses = [it.ports["http"] for it in listed.endpoints]
                seen.fewest = min(seen.fewest, len(addresses))
                await asyncio.gather(*(ask(session, it) for it in addresses))
                await asyncio.sleep(0.01)

    task = asyncio.create_task(go_on())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_a_service_is_rolled_out_under_traffic_and_a_broken_revision_goes_back(
    tmp_path: Path,
) -> None:
    """Not one request to a published address fails while all three replicas are replaced; what
    never becomes ready is given up by itself while the old ones serve. [I6, H4, C6.9]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), fence=LONG_FENCE, agent=AGENT) as plane:
            await plane.client.create(service(plane))
            first = (await rests(plane, "Idle")).status.rollout
            await plane.until(lambda: published(plane))
            async with traffic(plane) as seen:
                await want(plane, env=(EnvVar("VERSION", "2"),))
                second = (await rests(plane, "Idle")).status.rollout
                assert second.stable not in ("", first.stable)
                await plane.until(lambda: all_of(plane, second.stable))
                assert (seen.failures, seen.fewest) == ([], 3)
                assert seen.answers > 100

                broken: Template = (await found(plane)).spec.template
                await want(plane, command=(sys.executable, "-c", "raise SystemExit(1)"))
                failed = await rests(plane, "Failed")
                assert failed.status.rollout.reason == "Reverted"
                assert failed.spec.template.command != broken.command
                assert failed.status.rollout.stable == second.stable
                assert (seen.failures, seen.fewest) == ([], 3)

            await plane.until(lambda: all_of(plane, second.stable))
            kept = (await plane.client.list(WorkloadRevision, "default")).objects
            assert sorted(it.spec.number for it in kept) == [1, 2, 3]

    async def published(plane: WholePlane) -> bool:
        try:
            listed = await plane.client.get(Endpoints, "web", "default")
        except Missing:
            return False
        return len(listed.endpoints) == 3

    asyncio.run(story())
