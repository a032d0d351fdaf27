"""Every request to the HTTP server is counted once, whatever its outcome."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from holdfast.host.api.app import Api
from holdfast.host.process.metrics import Metrics
from holdfast.host.server.server_metrics import request_observer
from holdfast.store.memory import MemoryStore
from tests.unit.host.api.api_rig import GROUP, ApiRig, named, play


class _MeteredRig(ApiRig):
    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.metrics = Metrics()
        self.asleep = asyncio.Event()
        self._over: asyncio.Queue[int] = asyncio.Queue()
        services = self.api.services
        self.api = Api(
            store=services.store,
            authority=services.authority,
            hub=services.hub,
            hub_shell=services.hub_shell,
            authenticate=self.authenticate,
            extras={"/sleep": self._sleep, "/bug": self._bug},
            observer=self._observe,
        )

    def _observe(self, request: web.BaseRequest, code: int, seconds: float) -> None:
        request_observer(self.metrics)(request, code, seconds)
        self._over.put_nowait(code)

    async def _sleep(self, _: web.BaseRequest) -> web.StreamResponse:
        self.asleep.set()
        await asyncio.Event().wait()
        return web.Response()

    async def _bug(self, _: web.BaseRequest) -> web.StreamResponse:
        raise ZeroDivisionError

    async def seen(self, *labels: str) -> None:
        """Wait until a request with these labels is over on the server's side too."""
        while not self.metrics.requests.value(*labels):
            await self._over.get()


def test_each_request_is_counted_with_what_was_asked_and_answered() -> None:
    async def story() -> None:
        async with _MeteredRig() as rig:
            await rig.tenant()
            await rig.create(named("web"))
            await rig.create(named("web"))
            await rig.send("GET", f"{GROUP}/namespaces/acme/workloads/none")
            await rig.send("GET", "/nothing/of/ours")
            requests = rig.metrics.requests
            assert requests.value("create", "tenants", "201") == 1
            assert requests.value("create", "workloads", "201") == 1
            assert requests.value("create", "workloads", "409") == 1
            assert requests.value("get", "workloads", "404") == 1
            assert requests.value("get", "other", "404") == 1
            assert rig.metrics.latency.count("create", "workloads") == 2

    play(story())


def test_a_client_that_went_and_a_bug_of_ours_are_distinguished() -> None:
    async def story() -> None:
        async with _MeteredRig() as rig:
            async with aiohttp.ClientSession() as impatient:
                asking = asyncio.create_task(impatient.get(rig.url + "/sleep"))
                await rig.asleep.wait()
                asking.cancel()
            await rig.seen("get", "other", "499")
            assert (await rig.send("GET", "/bug")).code == 500
            await rig.seen("get", "other", "500")

    play(story())


def test_a_watch_is_counted_but_says_nothing_of_how_long_requests_take() -> None:
    async def story() -> None:
        async with _MeteredRig() as rig:
            async with rig.watch(f"{GROUP}/workloads"):
                pass
            await rig.seen("watch", "workloads", "499")
            assert rig.metrics.latency.count("watch", "workloads") == 0

    play(story())
