"""Requests wait their turn at a real server: classes, refusals, floods, and a store that stalls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.commit.flow.caps import BytesHeld, Cap, Caps
from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import Seats
from holdfast.commit.flow.request_classes import RequestClass, RequestPurpose
from holdfast.commit.flow.seats import DEFAULT_FLOW_CONTROL, FlowControllers, FlowControlSettings
from holdfast.host.api.flow import flow_metrics
from holdfast.host.api.flow.request_admission import RequestAdmission, errand_of
from holdfast.host.api.routes import table
from holdfast.host.process.metrics import Metrics
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.requests import AcquireLease
from holdfast.model.transaction import Outcome, Transaction
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import GROUP, Answer, ApiRig, events, named, play, workloads

# How long requests wait for a seat, where a test waits for their refusal.
WAITS_MS = 60
BOUNDS = QueueBounds(all_max=20, tenant_max=10, user_max=10)


class Stalling(MemoryStore):
    """A store that commits nothing while it is stalled."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.txns = 0

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        await self.goes_on.wait()
        self.txns += 1
        return await super().txn(transaction, token=token, timeout_s=timeout_s)


class Crowded:
    """A server with few seats, over a store that can stall. Requests wait for as long as a test."""

    def __init__(self, waits_ms: int = int(1_000 * PATIENCE_S)) -> None:
        self.store = Stalling()
        self.rig = ApiRig(self.store)
        tight = Seats(1, 2, 2, BOUNDS, waits_ms)
        writes = {
            **DEFAULT_FLOW_CONTROL.writes,
            RequestClass.TENANT: tight,
            RequestClass.OPERATOR: tight,
        }
        settings = FlowControlSettings(writes=writes, is_measured=False)
        self.admission = RequestAdmission(self.rig.hub, FlowControllers(random.Random(1), settings))
        self.rig.api.admission = self.admission

    async def __aenter__(self) -> Crowded:
        await self.rig.__aenter__()
        await self.rig.tenant()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.goes_on.set()
        await self.rig.__aexit__()

    def begin(self, name: str, user: str = "admin") -> asyncio.Task[Answer]:
        return asyncio.create_task(self.rig.create(named(name), user=user))

    async def settle(self, **expected: int) -> None:
        """Wait until this many requests run or wait, of all classes together."""
        while True:
            self.admission.settle()
            seen = self.admission.controllers.writes.class_loads(self.admission.now_ms()).values()
            found = {key: sum(getattr(it, key) for it in seen) for key in expected}
            if found == expected:
                return
            await self.rig.send("GET", "/version")


def test_what_waits_for_a_store_that_stalls_is_refused_in_time_and_well_formed() -> None:
    """429 with Retry-After, in the header and in the Status, and it did not happen. [E6]"""

    async def story() -> None:
        async with Crowded(WAITS_MS) as crowded:
            crowded.store.goes_on.clear()
            begun = [crowded.begin(f"w{n}") for n in range(2)]
            await crowded.settle(executing=2)
            began = asyncio.get_running_loop().time()
            late = await crowded.begin("late")
            took_ms = 1e3 * (asyncio.get_running_loop().time() - began)
            assert late.code == 429
            # The store never goes on meanwhile, so that there is no other end to the wait.
            assert took_ms >= WAITS_MS
            body = late.body
            assert (body["kind"], body["reason"], body["code"]) == (
                "Status",
                "TooManyRequests",
                429,
            )
            after_s = body["details"]["retryAfterSeconds"]
            assert 1 <= after_s <= 16
            assert late.headers["Retry-After"] == str(after_s)
            assert late.headers["X-Holdfast-Reason"] == "TooManyRequests"
            # Reads have a flow controller of their own.
            assert (await crowded.rig.send("GET", workloads())).code == 200
            crowded.store.goes_on.set()
            assert [(await it).code for it in begun] == [201, 201]
            names = (await crowded.rig.send("GET", workloads())).body["items"]
            assert sorted(it["metadata"]["name"] for it in names) == ["w0", "w1"]

    play(story())


def test_more_than_may_wait_are_refused_at_once() -> None:
    """A line has an end. [E6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            crowded.store.goes_on.clear()
            tasks = [crowded.begin(f"w{n}") for n in range(2 + BOUNDS.tenant_max + 3)]
            await crowded.settle(executing=2, waiting=BOUNDS.tenant_max)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert {it.result().code for it in done} == {429}
            crowded.store.goes_on.set()
            codes = [(await it).code for it in tasks]
            assert codes.count(429) >= 3
            assert codes.count(201) + codes.count(429) == len(tasks)

    play(story())


def test_leases_pass_while_everything_else_waits() -> None:
    """What components and agents live by has seats of its own. [E6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            rig = crowded.rig
            crowded.store.goes_on.clear()
            tasks = [crowded.begin(f"w{n}") for n in range(12)]
            await crowded.settle(executing=2, waiting=10)
            lease = msgspec.to_builtins(AcquireLease("scheduler:main", 1_000))
            asked = asyncio.create_task(
                rig.send("POST", f"{GROUP}/terms", lease, user="system:scheduler:main")
            )
            await crowded.settle(executing=3)
            renew = msgspec.to_builtins(Renew("n1", "u", 1))
            path = f"{GROUP}/nodes/n1/renewals"
            # It reads, and what it reads is not stalled: there is no such node.
            assert (await rig.send("POST", path, renew, user="system:node:n1")).code == 404
            crowded.store.goes_on.set()
            assert (await asked).code == 200
            await asyncio.gather(*tasks)

    play(story())


@pytest.mark.parametrize("user", ["ada", "admin"])
def test_the_path_of_leases_lifts_components_only(user: str) -> None:
    """The class follows from who asks; a person there is a person. [E6]"""

    async def story() -> None:
        async with Crowded(WAITS_MS) as crowded:
            crowded.store.goes_on.clear()
            tasks = [crowded.begin(f"w{n}", user) for n in range(2)]
            await crowded.settle(executing=2)
            lease = msgspec.to_builtins(AcquireLease("scheduler:main", 1_000))
            answer = await crowded.rig.send("POST", f"{GROUP}/terms", lease, user=user)
            assert answer.code == 429
            crowded.store.goes_on.set()
            await asyncio.gather(*tasks)

    play(story())


def test_only_requests_about_terms_are_taken_in_on_their_path() -> None:
    """Otherwise anything could be sent first. [E6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            body = {"type": "RetireLease", "scope": "s", "seen_epoch": 1, "seen_renewals": 1}
            path, user = f"{GROUP}/terms", "system:scheduler:main"
            assert (await crowded.rig.send("POST", path, body, user=user)).code == 400
            assert (await crowded.rig.send("POST", path, [], user=user)).code == 400

    play(story())


def test_a_client_that_goes_takes_its_request_along() -> None:
    """A request whose client has given up is neither begun nor executed."""

    async def story() -> None:
        async with Crowded() as crowded:
            crowded.store.goes_on.clear()
            first, second = crowded.begin("w0"), crowded.begin("w1")
            await crowded.settle(executing=2)
            waiting = crowded.begin("gone-waiting")
            await crowded.settle(executing=2, waiting=1)
            waiting.cancel()
            await crowded.settle(executing=2, waiting=0)
            # One of the two has reached the store already; the authority withdraws the other.
            second.cancel()
            await crowded.settle(executing=1)
            crowded.store.goes_on.set()
            assert (await first).code == 201
            names = (await crowded.rig.send("GET", workloads())).body["items"]
            assert [it["metadata"]["name"] for it in names] == ["w0"]

    play(story())


def test_a_tenant_that_floods_leaves_the_others_their_turns() -> None:
    """Others are served as if it were not there. [G1, E6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            flood = [crowded.begin(f"f{n}") for n in range(60)]
            await asyncio.sleep(0)
            for n in range(5):
                assert (await crowded.begin(f"calm-{n}", "ada")).code == 201
            codes = [(await it).code for it in flood]
            assert codes.count(201) >= 1

    play(story())


async def limit(rig: ApiRig, rate: int) -> None:
    """Give acme a quota with this rate, or another one."""
    quota = {"kind": "Quota", "metadata": {"name": "default"}, "spec": {"requestsPerSecond": rate}}
    path = f"{GROUP}/namespaces/acme/quotas"
    if (await rig.send("POST", path, quota)).code == 409:
        merge = {"Content-Type": "application/merge-patch+json"}
        await rig.send("PATCH", f"{path}/default", {"spec": quota["spec"]}, headers=merge)


def test_a_tenant_beyond_its_rate_gets_retry_after() -> None:
    """The quota says how often a tenant may ask, and counts as soon as it is changed. [B6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            rig = crowded.rig
            await limit(rig, 1)
            for _ in range(30):
                late = await rig.send("GET", workloads(), user="ada")
                if late.code == 429:
                    break
            assert late.code == 429
            assert late.body["details"]["retryAfterSeconds"] >= 1
            assert "request rate exceeds its limit" in late.body["message"]
            assert (await rig.send("GET", workloads())).code == 200
            await limit(rig, 1_000)
            codes = [(await rig.send("GET", workloads(), user="ada")).code for _ in range(20)]
            assert codes[1:] == [200] * 19

    play(story())


def test_a_batch_counts_as_what_it_brings() -> None:
    """One body with many objects takes as many from a tenant's rate. [B6, G1]"""

    async def story() -> None:
        async with Crowded() as crowded:
            await limit(crowded.rig, 10)
            batch = [named(f"b{n}") for n in range(60)]
            assert (await crowded.rig.send("POST", workloads(), batch, user="ada")).code == 200
            late = await crowded.rig.send("GET", workloads(), user="ada")
            assert late.code == 429
            assert late.body["details"]["retryAfterSeconds"] >= 4

    play(story())


def test_watches_of_one_user_are_bounded() -> None:
    """What lasts is bounded by number, and makes room when it ends. [B6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            caps = dict.fromkeys(RequestClass, Cap(user_max=2, tenant_max=3))
            crowded.admission.watches = Caps(caps)
            rig = crowded.rig

            def watch() -> Any:
                return rig.watch(workloads(), user="ada", sendInitialEvents="true")

            async with watch() as first, watch() as second:
                assert (first.status, second.status) == (200, 200)
                async with watch() as third:
                    assert third.status == 429
                    assert (await third.json())["reason"] == "TooManyRequests"
                async with rig.watch(workloads()) as another:
                    assert another.status == 200
                await rig.create(named("web"))
                assert "ADDED" in [kind for kind, _ in await events(first, 2)]
            async with asyncio.timeout(PATIENCE_S):
                while len(crowded.admission.watches):
                    await rig.send("GET", workloads())
            async with watch() as again:
                assert again.status == 200

    play(story())


def test_connections_of_one_user_are_bounded() -> None:
    """One more connection is refused with a reason, and closed. [B6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            rig, admission = crowded.rig, crowded.admission
            admission.connections = Caps(dict.fromkeys(RequestClass, Cap(user_max=1, tenant_max=2)))
            path, who = rig.url + workloads(), {"X-Test-User": "ada"}
            async with aiohttp.ClientSession(headers=who) as one:
                async with one.get(path) as good:
                    assert good.status == 200
                async with aiohttp.ClientSession(headers=who) as other, other.get(path) as refused:
                    assert refused.status == 429
                    assert refused.headers["Connection"] == "close"
                    assert "connections" in (await refused.json())["message"]
                async with one.get(path) as again:
                    assert again.status == 200
            async with asyncio.timeout(PATIENCE_S):
                while admission.connections.tenants.get("acme"):
                    await rig.send("GET", "/version")

    play(story())


def test_bodies_that_are_still_arriving_are_bounded_in_bytes() -> None:
    """A body larger than the room that is left is refused before it is read. [B6]"""

    async def story() -> None:
        async with Crowded() as crowded:
            rig = crowded.rig
            crowded.admission.bytes_held = held = BytesHeld(all_max=3_000_000, tenant_max=1_200_000)
            arrives = asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield b"["
                await arrives.wait()
                yield b"]"

            async def send(user: str) -> int:
                headers = {"X-Test-User": user, "Content-Type": "application/json"}
                url = rig.url + workloads()
                async with rig.http.post(url, data=slowly(), headers=headers) as response:
                    return response.status

            first = asyncio.create_task(send("ada"))
            async with asyncio.timeout(PATIENCE_S):
                while not held.all:
                    await rig.send("GET", "/version")
            # Its length is not announced, so that it may become as large as any.
            refused = asyncio.create_task(send("ada"))
            assert await refused == 429
            other = asyncio.create_task(send("admin"))
            async with asyncio.timeout(PATIENCE_S):
                while held.all < 2 << 20:
                    await rig.send("GET", "/version")
            arrives.set()
            assert [await first, await other] == [200, 200]
            assert (held.all, held.refused) == (0, 1)

    play(story())


def test_a_read_of_everything_can_wait_and_a_page_of_it_need_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lists without a limit are background once they are long."""

    async def story() -> None:
        monkeypatch.setattr("holdfast.host.api.flow.request_admission.SWEEP_OVER", 2)
        async with Crowded() as crowded:
            rig = crowded.rig
            for n in range(3):
                assert (await rig.create(named(f"w{n}"))).code == 201
            reads = crowded.admission.controllers.reads

            def begun(kind: RequestClass) -> int:
                return reads.class_loads(crowded.admission.now_ms())[kind].tally.begun

            for query in ({"limit": "500"}, {"fieldSelector": "metadata.name=w1"}):
                assert (await rig.send("GET", workloads(), user="ada", **query)).code == 200
            for query in ({"resourceVersion": "1"}, {"sendInitialEvents": "false"}):
                query |= {"timeoutSeconds": "1", "resourceVersionMatch": "NotOlderThan"}
                async with rig.watch(workloads(), user="ada", **query):
                    pass
            assert begun(RequestClass.BACKGROUND) == 0
            async with rig.watch(workloads(), user="ada"):
                assert begun(RequestClass.BACKGROUND) == 1
            assert (await rig.send("GET", workloads(), user="ada")).code == 200
            assert begun(RequestClass.BACKGROUND) == 2
            await rig.send("GET", workloads(), user="system:scheduler:main")
            assert begun(RequestClass.BACKGROUND) == 2

    play(story())


def test_every_route_has_an_errand_and_only_a_few_are_lifelines() -> None:
    """A new route is served in turn like all others."""
    lifelines = {
        it.path.rpartition("/")[2] for it in table() if errand_of(it) is RequestPurpose.LIFELINE
    }
    assert lifelines == {"renewals", "heartbeats", "terms"}
    for route in table():
        if route.method == "GET" and errand_of(route) is not RequestPurpose.LIFELINE:
            assert errand_of(route) is RequestPurpose.READ


def test_the_metrics_show_who_waits_and_who_was_refused() -> None:
    """By flow controller, class, tenant and reason. [M6]"""

    async def story() -> None:
        async with Crowded(WAITS_MS) as crowded:
            metrics = Metrics()
            flow_metrics.count(crowded.admission, metrics)
            crowded.store.goes_on.clear()
            begun = [crowded.begin(f"w{n}", "ada") for n in range(2)]
            await crowded.settle(executing=2)
            late = crowded.begin("late", "ada")
            await crowded.settle(waiting=1)
            text = metrics.text()
            assert 'holdfast_requests_executing{gate="writes",class="tenant"} 2' in text
            assert 'holdfast_requests_waiting{gate="writes",class="tenant"} 1' in text
            assert (await late).code == 429
            crowded.store.goes_on.set()
            await asyncio.gather(*begun)
            again = {"X-Holdfast-Attempt": "2"}
            await crowded.rig.send("GET", workloads(), user="ada", headers=again)
            text = metrics.text()
            assert 'holdfast_tenant_retries_total{class="tenant",tenant="acme"} 1' in text
            reason = 'gate="writes",class="tenant",reason="WaitedTooLong"'
            assert f"holdfast_requests_refused_total{{{reason}}} 1" in text
            labels = 'class="tenant",tenant="acme",outcome="refused"'
            assert f"holdfast_tenant_requests_total{{{labels}}} 1" in text

    play(story())
