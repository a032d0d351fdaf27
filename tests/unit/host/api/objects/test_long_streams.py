"""Open streams end when their callers may not have them any more."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import aiohttp
import pytest

from holdfast.commit.flow.flow_control import RequestState
from holdfast.commit.flow.request_classes import RequestPurpose, classify
from holdfast.host.api.objects.long_streams import lasts
from holdfast.host.api.routes import table
from holdfast.host.process.served_streams import ServedStream
from holdfast.host.server.caller_rights import TRUST_S
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import (
    GROUP,
    WEB,
    ApiRig,
    events,
    named,
    with_tenant,
    workloads,
)


def test_every_route_that_stays_open_is_judged_again() -> None:
    found = {(route.verb, route.subresource) for route in table() if lasts(route)}
    assert found == {("watch", ""), ("attend", ""), ("get", "log"), ("create", "exec")}


def test_a_watch_ends_when_its_reader_loses_its_identity_and_others_go_on() -> None:
    """As if its time were over; what its client asks next is refused."""

    async def story(rig: ApiRig) -> None:
        await rig.create(WEB)
        async with (
            rig.watch(workloads(), user="ada") as hers,
            rig.watch(workloads()) as others,
        ):
            for watch in (hers, others):
                assert [it[0] for it in await events(watch, 1)] == ["ADDED"]
            await rig.api.long_streams.sweep()
            rig.strangers.add("ada")
            await rig.api.long_streams.sweep()
            assert await asyncio.wait_for(hers.content.read(), PATIENCE_S) == b""
            assert (await rig.send("GET", workloads(), user="ada")).code == 401
            await rig.create(named("more"))
            assert [it[0] for it in await events(others, 1)] == ["ADDED"]
            assert (rig.api.long_streams.ended, len(rig.api.long_streams)) == (1, 1)

    with_tenant(story)


def test_a_watch_ends_when_its_reader_may_not_watch_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(rig: ApiRig) -> None:
        async with rig.watch(workloads(), user="ada") as hers:
            assert hers.status == 200
            tenants = Identity(name="ada")
            monkeypatch.setattr(rig.api.long_streams, "authenticate", lambda request: tenants)
            await rig.api.long_streams.sweep()
            assert await asyncio.wait_for(hers.content.read(), PATIENCE_S) == b""

    with_tenant(story)


def test_a_watch_that_waits_for_a_seat_is_refused_with_an_answer() -> None:
    """The sweep leaves it alone: it cut off callers without the right, who never learned why."""

    async def story(rig: ApiRig) -> None:
        admission = rig.api.admission
        reads, flow = (
            admission.controllers.reads,
            classify(Identity(name="bob"), RequestPurpose.READ),
        )
        running = []
        while (entry := reads.enter(flow, admission.now_ms())).state is RequestState.BEGUN:
            running.append(entry)
        reads.withdraw(entry)

        async def first_line_of_watch() -> bytes:
            # Not with `rig.http`, which would ask a second time by itself.
            address = urlsplit(rig.url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            head = (
                f"GET {workloads()}?watch=true HTTP/1.1\r\nHost: server\r\nX-Test-User: bob\r\n\r\n"
            )
            writer.write(head.encode())
            try:
                return await reader.readline()
            finally:
                writer.close()

        watching = asyncio.create_task(first_line_of_watch())
        async with asyncio.timeout(PATIENCE_S):
            while not reads.waiting:
                await rig.send("GET", "/version")
        await rig.api.long_streams.sweep()
        for entry in running:
            reads.leave(entry, admission.now_ms())
        assert (await rig.send("GET", workloads())).code == 200
        assert b" 403 " in await watching

    with_tenant(story)


def test_a_stream_without_a_way_to_end_in_peace_is_cut_off() -> None:
    """An agent's line is one."""

    async def story(rig: ApiRig) -> None:
        url = f"{rig.url}{GROUP}/nodes/n1/summons"
        agent = {"X-Test-User": "system:node:n1"}
        async with rig.http.get(url, headers=agent) as line:
            assert await line.content.readline() == b"\n"
            rig.strangers.add("system:node:n1")
            await rig.api.long_streams.sweep()
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(line.content.read(), PATIENCE_S)
        assert len(rig.api.long_streams) == 0

    with_tenant(story)


def test_a_server_that_may_be_behind_serves_no_person_until_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was taken away may not have reached it. Components go on. [B5]"""

    async def story(rig: ApiRig) -> None:
        rights, later_s = rig.api.services.rights, time.monotonic() + TRUST_S + 1
        assert (await rig.send("GET", workloads(), user="ada")).code == 200
        with monkeypatch.context() as patched:
            patched.setattr(rights, "now_s", lambda: later_s)
            # It asks its store before it gives up.
            assert (await rig.send("GET", workloads(), user="ada")).code == 200
        with monkeypatch.context() as patched:
            patched.setattr(rights, "now_s", lambda: later_s * 2)

            async def lost(*, patience_s: float = 0.0) -> bool:
                raise Unavailable("the store does not answer")

            patched.setattr(rig.api.services.freshness, "is_hub_fresh", lost)
            for user in ("ada", "admin"):
                answer = await rig.send("GET", workloads(), user=user, resourceVersion="0")
                assert (answer.code, answer.headers["Retry-After"]) == (503, "1"), user
            scheduler = await rig.send(
                "GET", workloads(), user="system:scheduler:main", resourceVersion="0"
            )
            assert scheduler.code == 200
        assert (await rig.send("GET", workloads(), user="ada")).code == 200

    with_tenant(story)


def test_a_server_that_may_be_behind_ends_logs_and_commands_and_no_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a watch could tell has not reached it either. [B5]"""
    log = next(it for it in table() if it.subresource == "log")

    async def story(rig: ApiRig) -> None:
        async with rig.watch(workloads(), user="ada") as hers:
            assert hers.status == 200
            (call,) = rig.api.long_streams
            watch, later_s = call.route, time.monotonic() + TRUST_S + 1
            for route, may in ((watch, True), (log, False)):
                call.route = route
                assert rig.api.long_streams.may_stay(call)
                with monkeypatch.context() as patched:
                    patched.setattr(rig.api.services.rights, "now_s", lambda: later_s)
                    assert rig.api.long_streams.may_stay(call) is may

    with_tenant(story)


def test_a_watch_that_does_not_end_in_peace_is_cut_off_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose reader takes nothing in would not. [C7.6]"""

    async def story(rig: ApiRig) -> None:
        async with rig.watch(workloads(), user="ada") as hers:
            assert hers.status == 200
            with monkeypatch.context() as patched:
                patched.setattr(ServedStream, "end", lambda self, body: None)
                rig.strangers.add("ada")
                await rig.api.long_streams.sweep()
                assert len(rig.api.long_streams) == 1
                await rig.api.long_streams.sweep()
                with pytest.raises(aiohttp.ClientError):
                    await asyncio.wait_for(hers.content.read(), PATIENCE_S)
            assert (len(rig.api.long_streams), rig.api.long_streams.ended) == (0, 1)

    with_tenant(story)
