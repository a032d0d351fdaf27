"""Watches over HTTP: what they send, when the answer is 410, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import Expired
from holdfast.model.read_requests import Reach
from holdfast.model.transaction import Batch
from holdfast.store.local_watches import LocalWatchHub
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import (
    GROUP,
    MERGE,
    TABLE,
    ApiRig,
    events,
    named,
    play,
    store_of,
    workloads,
)


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of(request.param, tmp_path)) as rig:
            await rig.tenant()
            await story(rig)

    return lambda story: play(played(story))


def test_a_watch_sends_what_is_there_and_then_what_changes(run: Any) -> None:
    """In order, each once. [C8, INV10]"""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        async with rig.watch(workloads()) as watch:
            assert watch.status == 200
            ((kind, obj),) = await events(watch, 1)
            assert (kind, obj["metadata"]["name"]) == ("ADDED", "a")
            await rig.create(named("b"))
            headers = {"Content-Type": MERGE}
            body = {"spec": {"replicas": 4}}
            await rig.send("PATCH", workloads(name="a"), body, headers=headers)
            told = await events(watch, 2)
        assert [(k, o["metadata"]["name"]) for k, o in told] == [("ADDED", "b"), ("MODIFIED", "a")]
        assert told[1][1]["spec"]["replicas"] == 4

    run(story)


def test_a_watch_goes_on_where_a_list_ended(run: Any) -> None:
    """As every informer does it; a selector holds for both. [C8]"""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        listed = (await rig.send("GET", workloads())).body
        await rig.create(named("b"))
        await rig.create(named("c"))
        version = listed["metadata"]["resourceVersion"]
        query = {"fieldSelector": "metadata.name=c", "resourceVersion": version}
        async with rig.watch(workloads(), **query) as watch:
            ((kind, obj),) = await events(watch, 1)
        assert (kind, obj["metadata"]["name"]) == ("ADDED", "c")

    run(story)


def test_a_watch_in_the_form_of_tables(run: Any) -> None:
    """Each event is a table of one row, as `kubectl get -w` prints it."""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        async with rig.watch(workloads(), accept=TABLE) as watch:
            ((kind, obj),) = await events(watch, 1)
        assert (kind, obj["kind"]) == ("ADDED", "Table")
        assert obj["rows"][0]["cells"][0] == "a"

    run(story)


def test_what_is_too_old_is_410_in_the_stream_from_its_beginning(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never as an HTTP status: some clients list again after an event only. [INV10]"""
    forget: list[str] = []
    watch_store = LocalWatchHub.watch

    async def forgetful(self: LocalWatchHub, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        async for batch in watch_store(self, prefix, after=after):
            if forget:
                raise Expired(forget.pop())
            yield batch

    monkeypatch.setattr(LocalWatchHub, "watch", forgetful)

    async def story(rig: ApiRig) -> None:
        async with rig.watch(workloads(), resourceVersion="999999") as watch:
            assert watch.status == 200
            ((kind, obj),) = await events(watch, 1)
            assert (kind, obj["code"], obj["reason"]) == ("ERROR", 410, "Expired")
            assert await watch.content.read() == b""
        await rig.create(named("a"))
        async with rig.watch(workloads()) as watch:
            await events(watch, 1)
            # The watch of the hub expires with the next change.
            forget.append("compacted")
            await rig.create(named("b"))
            ((kind, obj),) = await events(watch, 1)
            assert (kind, obj["code"], obj["reason"]) == ("ERROR", 410, "Expired")
            assert await watch.content.read() == b""

    run(story)


def test_a_watch_ends_after_the_time_that_was_asked_for(run: Any) -> None:
    """In order, so that the client opens another without an error. [C8]"""

    async def story(rig: ApiRig) -> None:
        async with rig.watch(workloads(), timeoutSeconds="1") as watch:
            assert await watch.content.read() == b""

    run(story)


def test_a_client_that_goes_is_noticed(run: Any) -> None:
    """Also when nothing happens that could be told."""

    async def story(rig: ApiRig) -> None:
        watch = await rig.watch(workloads())
        assert rig.hub.watchers == 1
        watch.close()
        while rig.hub.watchers:
            await rig.hub_shell.ask("test", Reach(0), 5.0)

    run(story)


def test_a_stop_ends_open_watches_within_seconds(tmp_path: Path) -> None:
    """Their clients see the end of the stream and not a broken connection."""

    async def story() -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await rig.tenant()
            watches = [await rig.watch(f"{GROUP}/tenants") for _ in range(20)]
            for watch in watches:
                await events(watch, 1)
            async with asyncio.timeout(PATIENCE_S):
                await rig.api.stop()
            for watch in watches:
                assert await watch.content.read() == b""

    play(story())


def test_the_initial_list_of_a_watch_is_marked_where_it_ends(run: Any) -> None:
    """For clients that list by watching. [C8]"""

    async def story(rig: ApiRig) -> None:
        await rig.create(named("a"))
        query = {"sendInitialEvents": "true", "allowWatchBookmarks": "true"}
        async with rig.watch(workloads(), **query) as watch:
            told = await events(watch, 2)
        assert [kind for kind, _ in told] == ["ADDED", "BOOKMARK"]
        marks = {"k8s.io/initial-events-end": "true", "holdfast.dev/listed": "1"}
        assert told[1][1]["metadata"]["annotations"] == marks

    run(story)


def test_namespaces_are_tenants_and_core_events_are_events(run: Any) -> None:
    """In the shapes that kubectl insists on."""

    async def story(rig: ApiRig) -> None:
        listed = (await rig.send("GET", "/api/v1/namespaces")).body
        assert (listed["kind"], listed["apiVersion"]) == ("NamespaceList", "v1")
        assert listed["items"][0]["status"] == {"phase": "Active"}
        table = (await rig.send("GET", "/api/v1/namespaces/acme", headers={"Accept": TABLE})).body
        assert table["rows"][0]["cells"][:2] == ["acme", "Active"]
        event = {
            "kind": "Event",
            "metadata": {"name": "web.1"},
            "involvedObject": {"kind": "Workload", "name": "web", "namespace": "acme"},
            "reason": "Scaled",
        }
        made = await rig.send("POST", f"{GROUP}/namespaces/acme/events", event)
        assert made.code == 201, made.body
        path = "/api/v1/namespaces/acme/events"
        found = (await rig.send("GET", path, fieldSelector="involvedObject.name=web")).body
        assert [(e["apiVersion"], e["reason"]) for e in found["items"]] == [("v1", "Scaled")]
        none = (await rig.send("GET", path, fieldSelector="involvedObject.name=db")).body
        assert none["items"] == []
        async with rig.watch("/api/v1/namespaces") as watch:
            ((kind, obj),) = await events(watch, 1)
        assert (kind, obj["kind"]) == ("ADDED", "Namespace")

    run(story)
