"""A real server process over real TLS with the embedded store: used, killed, stopped, restarted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.host.client import AsyncClient, DeletedObject, Departed, Listed, Present, follow
from holdfast.model.errors import Conflict, Forbidden, Missing
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import PatchType
from tests.live.plane_process import PlaneProcess, workload
from tests.patience import PATIENCE_S

NS = "default"


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[PlaneProcess]:
    process = PlaneProcess(folder / "data")
    try:
        await process.start()
        yield process
        await process.stop()
    finally:
        process.kill()


def test_a_client_does_everything_to_objects(tmp_path: Path) -> None:
    """[A1, A2]"""

    async def story() -> None:
        async with running(tmp_path) as process, process.client() as client:
            made = await client.create(workload("web", replicas=2))
            assert made.metadata.uid
            assert await client.get(Workload, "web", NS) == made
            with pytest.raises(Conflict) as exists:
                await client.create(workload("web"))
            assert exists.value.code == "AlreadyExists"

            changed = await client.change(Workload, "web", NS, _labelled)
            assert changed.metadata.labels == {"tier": "front"}
            with pytest.raises(Conflict):
                await client.update(msgspec.structs.replace(made, spec=changed.spec))
            patch = {"metadata": {"labels": {"tier": "back"}}}
            patched = await client.patch(Workload, "web", NS, patch)
            assert patched.metadata.labels == {"tier": "back"}
            await client.patch(
                Workload,
                "web",
                NS,
                [{"op": "remove", "path": "/metadata/labels/tier"}],
                form=PatchType.JSON,
            )
            applied = await client.apply(workload("api", replicas=1), manager="tests")
            assert applied.metadata.managed_fields[0].manager == "tests"
            await client.scale(Workload, "web", NS, 5)
            assert (await client.get(Workload, "web", NS)).spec.replicas == 5

            names = [w.name for w in (await client.list(Workload, NS, page=1)).objects]
            assert names == ["api", "web"]
            assert [t.name for t in (await client.list(Tenant)).objects] == ["default"]
            left = await client.delete(Workload, "api", NS)
            assert isinstance(left, DeletedObject | Workload)
            with pytest.raises(Missing):
                await client.get(Workload, "nothing", NS)

    asyncio.run(story())


def _labelled(old: Workload) -> Workload:
    metadata = msgspec.structs.replace(old.metadata, labels={"tier": "front"})
    return msgspec.structs.replace(old, metadata=metadata)


def test_a_repeated_operation_is_answered_and_not_performed_again(tmp_path: Path) -> None:
    """[E5]"""

    async def story() -> None:
        async with running(tmp_path) as process, process.client() as client:
            first = await client.create(workload("once"), operation="op-1")
            again = await client.create(workload("once"), operation="op-1")
            assert again.metadata.uid == first.metadata.uid
            with pytest.raises(Conflict):
                await client.create(workload("once"), operation="op-2")

    asyncio.run(story())


def test_health_is_open_and_metrics_are_for_those_who_may(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as process, process.client() as client:
            for path in ("/livez", "/healthz", "/readyz"):
                assert await process.fetch(path, known=False) == (200, "ok")
            code, text = await process.fetch("/readyz?verbose", known=False)
            assert (code, "[+]store ok" in text, "[+]hub ok" in text) == (200, True, True)
            assert (await process.fetch("/metrics", known=False))[0] == 401
            await client.create(workload("counted"))
            code, text = await process.fetch("/metrics")
            assert code == 200
            line = 'holdfast_requests_total{verb="create",resource="workloads",code="201"} 1'
            assert line in text.splitlines()
            assert 'holdfast_store_txns_total{outcome="committed"}' in text

    asyncio.run(story())


def test_the_certificate_says_who_asks(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as process:
            async with process.client_as("ada", f"tenant:{NS}") as ada:
                await ada.create(workload("hers"))
                with pytest.raises(Forbidden):
                    await ada.list(Tenant)
            async with process.client_as("eve") as eve:
                with pytest.raises(Forbidden):
                    await eve.list(Workload, NS)
        for path in (tmp_path / "data" / "kubeconfig", *(tmp_path / "data" / "pki").iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700

    asyncio.run(story())


def test_nothing_acknowledged_is_lost_by_kill_9_under_load(tmp_path: Path) -> None:
    """[E5, C7.5]"""
    acknowledged: dict[str, str] = {}

    async def load(client: AsyncClient, who: int, stopped: asyncio.Event) -> None:
        number = 0
        while not stopped.is_set():
            name = f"w{who}-{number}"
            made = await client.create(workload(name), operation=f"create/{name}")
            acknowledged[name] = made.metadata.uid
            number += 1

    async def story() -> None:
        process = PlaneProcess(tmp_path / "data")
        try:
            await process.start()
            async with process.client() as client:
                stopped = asyncio.Event()
                tasks = [asyncio.create_task(load(client, who, stopped)) for who in range(8)]
                for round_ in range(3):
                    before = len(acknowledged)
                    while len(acknowledged) < before + 40:
                        await asyncio.sleep(0.003 * (round_ + 1))
                        assert not any(task.done() for task in tasks), tasks
                    process.kill()
                    await process.start()
                stopped.set()
                await asyncio.gather(*tasks)
                listed = (await client.list(Workload, NS)).objects
                there = {w.name: w.metadata.uid for w in listed}
                assert there == acknowledged
                assert client.performer.lost > 0, "no answer was ever lost: the test shows nothing"
            await process.stop()
        finally:
            process.kill()

    asyncio.run(story())


def test_a_stop_takes_seconds_with_fifty_watchers(tmp_path: Path) -> None:
    async def watch(client: AsyncClient, ready: asyncio.Semaphore) -> None:
        async for _ in follow(client, Workload, NS):
            ready.release()

    async def story() -> None:
        async with running(tmp_path) as process, process.client() as client:
            ready = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(watch(client, ready)) for _ in range(50)]
            # One for the list, one for what the open watch brings.
            for _ in range(50):
                await ready.acquire()
            await client.create(workload("seen"))
            for _ in range(50):
                await ready.acquire()
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0, process.log
            assert "Stopped." in process.log
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await process.start()

    asyncio.run(story())


def test_a_restart_keeps_certificates_and_data_and_a_second_server_is_refused(
    tmp_path: Path,
) -> None:
    """[C7.4]"""

    async def story() -> None:
        async with running(tmp_path) as process:
            files = [tmp_path / "data" / "kubeconfig", *(tmp_path / "data" / "pki").iterdir()]
            before = {path: path.read_bytes() for path in files}
            async with process.client() as client:
                made = await client.create(workload("kept"))
            rival = await asyncio.to_thread(_refused, tmp_path)
            assert "is in use by process" in rival
            await process.stop()
            await process.start()
            assert {path: path.read_bytes() for path in files} == before
            async with process.client() as client:
                assert await client.get(Workload, "kept", NS) == made

    asyncio.run(story())


def _refused(folder: Path) -> str:
    """What a second server on the same data says before it ends."""
    rival = PlaneProcess(folder / "data")
    try:
        assert rival.spawn().wait(PATIENCE_S) == 1
        return rival.log
    finally:
        rival.kill()


def test_a_watch_goes_on_over_a_restart_without_a_hole(tmp_path: Path) -> None:
    """[C8, C7.5]"""
    told: list[str] = []
    listed = 0

    async def watch(client: AsyncClient, until: int, begun: asyncio.Event) -> None:
        nonlocal listed
        async for news in follow(client, Workload, NS):
            begun.set()
            if isinstance(news, Listed):
                listed += 1
                # A list after 410 replaces what is known, so it tells what was missed.
                known = set(told)
                told.extend(w.name for w in news.objects if w.name not in known)
            elif isinstance(news, Present) and news.object.metadata.generation == 1:
                told.append(news.object.name)
            elif isinstance(news, Departed):
                told.append(f"-{news.object.name}")
            if len(told) >= until:
                return

    async def story() -> None:
        process = PlaneProcess(tmp_path / "data")
        try:
            await process.start()
            async with process.client() as client:
                begun = asyncio.Event()
                task = asyncio.create_task(watch(client, 60, begun))
                await begun.wait()
                for number in range(60):
                    if number in (20, 40):
                        process.kill()
                        await process.start()
                    await client.create(workload(f"w{number:02}"))
                async with asyncio.timeout(PATIENCE_S):
                    await task
            assert told == [f"w{number:02}" for number in range(60)]
            await process.stop()
        finally:
            process.kill()

    asyncio.run(story())
