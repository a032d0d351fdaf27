"""A service with real processes, from `kubectl apply` to serving and to its last request.

The addresses in its Endpoints answer; clients that follow them succeed while replicas come and
go. And the store may be away for a while: what runs goes on, what is new waits, all is caught up.
HOLDFAST_END_TO_END_LONG=1, as `make end-to-end-long` sets it, takes the store away for 90 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.host.client import AsyncClient
from holdfast.model.errors import Conflict, HoldfastError, Missing
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import condition
from holdfast.observe.retry import RetryPolicy
from tests.etcd_cluster import EtcdCluster
from tests.live.kubectls import Kubectl, binaries
from tests.live.part import ROOT
from tests.live.plane_process import workload
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import IS_LONG, LONG_FENCE, WholePlane
from tests.live.witness import template
from tests.patience import STORY_S

AWAY_S = 90.0 if IS_LONG else 6.0
AGENT = ("--capacity", "cpu=4")
# A client that asks while the store is away gets an error soon, and does not retry.
ONCE = RetryPolicy(tries_max=1, looks_max=1, deadline_ms=3_000, try_ms=3_000)
PROBE = {"http": {"port": "http"}, "periodSeconds": 1}


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def service(plane: WholePlane, count: int, name: str = "web") -> Workload:
    spec = {**template(plane.witness), "probes": {"readiness": PROBE}, "graceSeconds": 4}
    spec["resources"] = {"cpu": "100m", "memory": "16Mi"}
    return workload(name, replicas=count, template=spec)


async def listed(plane: WholePlane, name: str = "web") -> dict[str, str]:
    """The addresses of a service by replica."""
    try:
        found = await plane.client.get(Endpoints, name, "default")
    except Missing:
        return {}
    return {it.replica: it.ports["http"] for it in found.endpoints}


async def serving(plane: WholePlane, count: int, name: str = "web") -> dict[str, str]:
    """The addresses, once the status says that this many serve."""

    async def look() -> dict[str, str]:
        found = await plane.client.find(Workload, name, "default")
        progress = found.status.progress if found is not None else None
        if progress is None or (progress.serving, progress.admitted) != (count, count):
            return {}
        return await listed(plane, name)

    seen: dict[str, str] = await plane.until(look)
    assert len(seen) == count
    return seen


def status(plane: WholePlane) -> tuple[int, str]:
    """What `holdfast status` prints, and how it ends."""
    kubeconfig = plane.folder / plane.servers[0] / "kubeconfig"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "status"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60.0,
    )
    return done.returncode, done.stdout + done.stderr


class Visitor:
    """A client that follows the Endpoints and asks their addresses again and again."""

    def __init__(self, plane: WholePlane, known: dict[str, str]) -> None:
        self._plane, self.answers, self.refused = plane, 0, list[str]()
        self._known = known
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Visitor:
        self._tasks = [asyncio.create_task(it) for it in (self._follow(), self._visit())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            # A client that cannot ask goes on with what it knows.
            with contextlib.suppress(HoldfastError):
                self._known = await listed(self._plane)
            await asyncio.sleep(0.05)

    async def _visit(self) -> None:
        timeout = aiohttp.ClientTimeout(5.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                for replica, address in list(self._known.items()):
                    try:
                        async with session.get(f"http://{address}/") as response:
                            await response.read()
                            self.answers += 1
                    except aiohttp.ClientError as error:
                        self.refused.append(f"{replica}: {error!r}")
                await asyncio.sleep(0.005)


async def _changed(plane: WholePlane, kubectl: Kubectl) -> None:
    """No client that follows the list is refused while it shrinks and grows, nor while all of it is
    replaced by another template."""
    async with Visitor(plane, await listed(plane)) as visitor:
        await plane.scale(1)
        await serving(plane, 1)
        await plane.scale(3)
        before = await serving(plane, 3)
        other = '{"spec":{"template":{"env":[{"name":"COLOUR","value":"green"}]}}}'
        patch = ("patch", "workload", "web", "--type", "merge", "-p", other)
        await asyncio.to_thread(kubectl, *patch)
        await plane.until(lambda: _replaced(plane, before), 120.0)
        so_far = visitor.answers
        await plane.until(lambda: _true(visitor.answers > so_far + 20))
    assert visitor.refused == []
    assert visitor.answers > 50


async def _replaced(plane: WholePlane, before: dict[str, str]) -> bool:
    found = await plane.client.get(Workload, "web", "default")
    progress = found.status.progress
    if (progress.updated, progress.serving, progress.admitted) != (3, 3, 3):
        return False
    return not before.keys() & (await listed(plane)).keys()


async def _true(is_so: bool) -> bool:
    return is_so


def test_a_service_is_applied_and_serves_at_addresses_that_answer(tmp_path: Path) -> None:
    """The whole way with kubectl; the status of plane and service says so; and scaling and a
    rolling update refuse no client that follows the list. [A6, A11, I6]"""
    kubectl_binary = binaries()[-1]

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), agent=AGENT, fence=LONG_FENCE) as plane:
            kubeconfig = tmp_path / plane.servers[0] / "kubeconfig"
            kubectl = Kubectl(kubectl_binary, kubeconfig, "default", tmp_path)
            document = msgspec.to_builtins(service(plane, 3))
            await asyncio.to_thread(kubectl, "apply", "-f", "-", given=document)
            addresses = await serving(plane, 3)
            async with aiohttp.ClientSession() as session:
                for address in addresses.values():
                    async with session.get(f"http://{address}/") as response:
                        assert response.status == 200
            told = await asyncio.to_thread(kubectl, "get", "endpoints", "web")
            assert any(address in told for address in addresses.values())
            targets = msgspec.json.decode(await plane.client.read("/apis/holdfast.dev/v1/targets"))
            assert sorted(it["targets"][0] for it in targets) == sorted(addresses.values())
            found = await plane.client.get(Workload, "web", "default")
            for name in ("Available", "Bound"):
                said = condition(found.status.conditions, name)
                assert said is not None
                assert (said.status.value, said.observed_generation) == ("True", 1)
            await _changed(plane, kubectl)
            await plane.until(lambda: _healthy(plane))

    play(story())


async def _healthy(plane: WholePlane) -> bool:
    """`holdfast status` says that everything works, with all controllers and both nodes."""
    code, said = await asyncio.to_thread(status, plane)
    if code:
        return False
    assert "Everything works." in said
    for part in ("controller   workload", "controller   endpoints", "scheduler    main", "2 nodes"):
        assert part in said, said
    text = await plane.client.read("/metrics")
    assert b'holdfast_component_epoch{component="controller:endpoints"' in text
    return True


@pytest.mark.long
@pytest.mark.xdist_group("plane-etcd")
def test_while_the_store_is_away_work_runs_on_and_new_work_waits(tmp_path: Path) -> None:
    """Nothing is decided, and clients get an error; afterwards everything is caught up with, and
    nothing that ran was touched. [C7.6, H4, H8]"""
    (tmp_path / "etcd").mkdir()

    async def story(cluster: EtcdCluster) -> None:
        about = plane_on_etcd(cluster, 1)
        plane = WholePlane(tmp_path, ("n1", "n2"), agent=AGENT, fence=LONG_FENCE, plane=about)
        async with plane:
            await plane.client.create(service(plane, 2))
            before = await serving(plane, 2)
            ids = {it.name: it.status.process.id for it in await plane.replicas()}
            cluster.pause(0)
            try:
                await _away(plane, before)
            finally:
                cluster.resume(0)
            began = time.monotonic()
            # The first wish had no answer; it may have reached the store all the same.
            with contextlib.suppress(Conflict):
                await plane.client.create(service(plane, 1, "late"))
            await serving(plane, 1, "late")
            print(f"caught up in {time.monotonic() - began:.1f} s")
            assert await serving(plane, 2) == before
            after = await plane.replicas()
            assert {it.name: it.status.process.id for it in after} == ids
            for it in after:
                assert (it.status.state, it.status.stage) == (State.RUNNING, Stage.SERVING)
                assert it.status.process.restarts == 0

    with EtcdCluster(tmp_path / "etcd") as cluster:
        play(story(cluster))


async def _away(plane: WholePlane, addresses: dict[str, str]) -> None:
    """The store does not answer: work does, new work is refused for a reason, `status` says so."""
    async with Visitor(plane, addresses) as visitor:
        async with AsyncClient(plane.access, policy=ONCE) as client:
            with pytest.raises(HoldfastError) as caught:
                await client.create(service(plane, 1, "late"))
        assert caught.value.message
        code, said = await asyncio.to_thread(status, plane)
        assert code == 1, said
        assert "the server cannot reach it" in said
        await asyncio.sleep(AWAY_S)
        assert visitor.answers > 10 * len(addresses)
        assert visitor.refused == []
