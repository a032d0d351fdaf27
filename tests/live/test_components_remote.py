"""A machine in a shell against real servers over TLS: what it follows and asks, and faults."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.host.client import Access
from holdfast.host.client.api_client import ApiClient
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.process.shell import Shell
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Expired, InvariantBroken, OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec
from holdfast.model.machine import Answer, Answered, Ask, Asked, Ended, Leave, Open, Pushed
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, Renew, Renewed
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Create,
    Patch,
    PatchType,
    RegisterNode,
    Remove,
    RenewLease,
    RetireLease,
    Term,
    Update,
)
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.watch_events import SERVERS, Departed, Follow, Present, Reached
from tests.live.plane_process import PlaneProcess, until, workload
from tests.patience import PATIENCE_S, STORY_S
from tests.puppet import Puppet

WORKLOADS = Follow("workloads")
# No other client has to agree before one of these is gone.
CLASSES = Follow("priorityclasses")
ADMIN = Identity(name="admin", groups=(who.ADMINS,))
NODES = who.controller("nodes")
AGENT = who.agent("n1")
SCHEDULER = who.scheduler("main")


def obey(stimulus: Any, now: Instant) -> Sequence[Any]:
    """The body of a request is the list of effects."""
    if isinstance(stimulus, Asked):
        return [*stimulus.body, Answer(stimulus.call, "done")]
    return ()


class Component:
    """A puppet in a shell with a way to servers, as several identities."""

    def __init__(self, machine: Any, plane: PlaneProcess, *others: PlaneProcess) -> None:
        pki = CertificateAuthority.open(plane.data / "pki")
        self.urls = tuple(it.url for it in (plane, *others))
        self.accesses = {}
        for identity in (ADMIN, NODES, AGENT, SCHEDULER):
            issued = pki.issue(identity.name, groups=identity.groups)
            self.accesses[identity.name] = Access(
                servers=self.urls, ca=pki.pem, certificate=issued.certificate, key=issued.key
            )
        self.remote = ApiClient(self.accesses)
        self.shell = Shell(machine, ADMIN, peers=self.remote, sources=self.remote)
        self.machine = machine
        self._calls = 0

    async def ask(self, body: Any, sender: str = "", to: str = SERVERS, ms: int = 5_000) -> Any:
        """What the machine is answered."""
        (answer,) = await self.ask_all([body], sender, to, ms)
        return answer

    async def ask_all(
        self, bodies: Sequence[Any], sender: str = "", to: str = SERVERS, ms: int = 5_000
    ) -> list[Any]:
        calls = range(self._calls + 1, self._calls + 1 + len(bodies))
        self._calls += len(bodies)
        asks = [Ask(n, to, body, ms, sender) for n, body in zip(calls, bodies, strict=True)]
        await self.shell.ask("test", asks, 5.0)

        def answers() -> dict[int, Any]:
            return {it.call: it.body for it in self.machine.heard(Answered) if it.call in calls}

        await self.machine.until(lambda: len(answers()) == len(bodies))
        return [answers()[number] for number in calls]

    async def perform(self, *effects: Any) -> None:
        await self.shell.ask("test", list(effects), 5.0)

    def news(self, stream: int) -> list[Any]:
        """All that a stream has told."""
        pushed = [it for it in self.machine.heard(Pushed) if it.stream == stream]
        return [news for it in pushed for news in it.body]


@contextlib.asynccontextmanager
async def living(
    machine: Any, plane: PlaneProcess, *others: PlaneProcess
) -> AsyncIterator[Component]:
    component = Component(machine, plane, *others)
    async with component.shell:
        yield component
    await component.remote.close()


@contextlib.asynccontextmanager
async def running(folder: Path, *options: str) -> AsyncIterator[PlaneProcess]:
    plane = PlaneProcess(folder / "plane", *options)
    try:
        yield await plane.start()
    finally:
        plane.kill()


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def priority(name: str) -> PriorityClass:
    return PriorityClass(ObjectMeta(name=name), spec=PriorityClassSpec(value=7))


def names(news: Sequence[Any]) -> list[str]:
    return [it.object.name for it in news if not isinstance(it, Reached)]


def test_a_stream_lists_sends_what_changes_and_is_resumed_without_a_gap(tmp_path: Path) -> None:
    """[C8]"""

    async def story() -> None:
        async with (
            running(tmp_path) as plane,
            living(Puppet(obey), plane) as one,
            plane.client() as client,
        ):
            for name in ("a", "b"):
                await client.create(priority(name))
            await one.perform(Open(1, SERVERS, CLASSES))
            await one.machine.until(lambda: Reached in map(type, one.news(1)))
            *listed, end = one.news(1)
            assert sorted(names(listed)) == ["a", "b", "critical"]
            assert end.ends_list
            await client.create(priority("c"))
            await client.delete(PriorityClass, "a")
            await one.machine.until(lambda: Departed in map(type, one.news(1)))
            changed = one.news(1)[len(listed) + 1 :]
            assert names(changed) == ["c", "a"]
            assert isinstance(changed[0], Present)
            await one.perform(Leave(1))

            await client.create(priority("d"))
            since = msgspec.structs.replace(CLASSES, since=end.revision)
            await one.perform(Open(1, SERVERS, since), Open(2, SERVERS, since))
            await one.machine.until(lambda: "d" in names(one.news(2)))
            assert names(one.news(2)) == ["c", "a", "d"]
            gone = msgspec.structs.replace(CLASSES, since=10_000_000)
            await one.perform(Open(3, SERVERS, gone))
            (ended,) = await one.machine.told(Ended)
            assert (ended.stream, type(ended.body)) == (3, Expired)

    play(story())


def test_lists_one_after_the_other_share_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resync is whole, ends by itself, and costs no handshake."""
    used: set[Any] = set()
    connect = aiohttp.TCPConnector.connect

    async def recorded(self: aiohttp.TCPConnector, *request: Any, **more: Any) -> Any:
        connection = await connect(self, *request, **more)
        used.add(connection.protocol)
        return connection

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", recorded)

    async def story() -> None:
        async with (
            running(tmp_path) as plane,
            living(Puppet(obey), plane) as one,
            plane.client() as client,
        ):
            await client.create(priority("a"))
            used.clear()
            wanted = msgspec.structs.replace(CLASSES, is_list=True)
            for stream in (1, 2, 3):
                await one.perform(Open(stream, SERVERS, wanted))
                await one.machine.until(lambda: Reached in map(type, one.news(stream)))  # noqa: B023
                await one.perform(Leave(stream))
                assert sorted(names(one.news(stream)[:-1])) == ["a", "critical"]
            assert len(used) == 1

    play(story())


def test_a_stream_that_breaks_or_cannot_be_had_ends_as_unavailable(tmp_path: Path) -> None:
    """[C8]"""

    async def story() -> None:
        async with running(tmp_path) as plane, living(Puppet(obey), plane) as one:
            await one.perform(Open(1, SERVERS, WORKLOADS))
            await one.machine.told(Pushed)
            plane.kill()
            (broken,) = await one.machine.told(Ended)
            assert isinstance(broken.body, Unavailable)
            await one.perform(Open(1, SERVERS, WORKLOADS))
            _, refused = await one.machine.told(Ended, 2)
            assert isinstance(refused.body, Unavailable)

    play(story())


class Picture(Puppet):
    """A machine that is nothing but a cache."""

    def __init__(self) -> None:
        super().__init__(self._react)
        self.cache = Cache([WORKLOADS], _Half(), resync_ms=600_000)

    def _react(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return self.cache.step(stimulus, now).effects

    @property
    def names(self) -> list[str]:
        return sorted(it.name for it in self.cache.all("workloads"))


class _Half:
    def random(self) -> float:
        return 0.5


def test_a_cache_over_real_servers_comes_back_after_each_kill(tmp_path: Path) -> None:
    """[C7.5, C8]"""

    async def story() -> None:
        async with running(tmp_path) as plane, living(Picture(), plane) as one:
            snapshot = one.machine
            async with plane.client() as client:
                await client.create(workload("a"))
                await snapshot.until(lambda: snapshot.names == ["a"])
                plane.kill()
                await snapshot.told(Ended)
                await plane.start()
                await client.create(workload("b"))
                await until(lambda: snapshot.names == ["a", "b"], PATIENCE_S)
            assert snapshot.cache.missed == 0

    play(story())


def test_every_question_has_its_answer_under_its_own_identity(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as plane, living(Puppet(obey), plane) as one:
            made = await one.ask(Create(workload("a"), operation="op-1"))
            assert made == Accepted(made.revision)
            again = await one.ask(Create(workload("a"), operation="op-1"))
            assert (type(again), again.replayed) == (Accepted, True)
            exists = await one.ask(Create(workload("a"), operation="op-2"))
            assert (type(exists), exists.reason) == (Refusal, Reason.EXISTS)

            found = await one.ask(Get("workloads", "a", "default"))
            obj = found.object
            assert (found, obj.name) == (GetResult(obj, made.revision), "a")
            assert await one.ask(Get("workloads", "none", "default")) == GetResult(None, 0)

            spec = msgspec.structs.replace(obj.spec, replicas=3)
            changed = await one.ask(Update(msgspec.structs.replace(obj, spec=spec)))
            assert changed.objects[0].spec.replicas == 3
            stale = await one.ask(Update(msgspec.structs.replace(obj, spec=spec)))
            assert stale.reason is Reason.STALE_OBJECT
            patch = {"spec": {"replicas": -1}}
            wrong = await one.ask(Patch("workloads", "default", "a", PatchType.MERGE, patch))
            assert (wrong.reason, wrong.causes[0].path) == (Reason.INVALID, "spec.replicas")

            lease = await one.ask(AcquireLease("scheduler:main", 15_000), SCHEDULER.name)
            assert lease.objects[0].spec.holder == SCHEDULER.name
            held = await one.ask(AcquireLease("scheduler:main", 15_000, 9, 9), NODES.name)
            assert isinstance(held, Refusal)

            gone = await one.ask(Remove("workloads", "default", "a", uid=obj.metadata.uid))
            assert gone.objects[0].metadata.deletion_timestamp is not None
            other = await one.ask(Remove("workloads", "default", "a", uid="another"))
            assert isinstance(other, Refusal)
            assert isinstance(await one.ask(Create(priority("x"))), Accepted)
            assert await one.ask(Remove("priorityclasses", "", "x")) == Accepted(0)
            assert await one.ask(Get("priorityclasses", "x")) == GetResult(None, 0)

    play(story())


def test_agents_renew_and_controller_nodes_learns_it_from_the_same_server(tmp_path: Path) -> None:
    """[H3]"""

    async def story() -> None:
        options = ("--self-stop-after", "6", "--name", "first")
        async with running(tmp_path, *options) as plane, living(Puppet(obey), plane) as one:
            node = Node(ObjectMeta(name="n1"), spec=NodeSpec(region="eu", zone="eu-a"))
            made = await one.ask(RegisterNode(node), AGENT.name)
            (found,) = made.objects
            renew = Renew("n1", found.metadata.uid, found.status.incarnation)
            renewed = await one.ask(renew, AGENT.name)
            assert isinstance(renewed, Renewed)
            assert renewed.acknowledges(renew)
            assert renewed.timing.self_stop_after_ms == 6_000
            heard = await one.ask(HeartbeatQuery(), NODES.name, plane.url)
            assert isinstance(heard, HeartbeatReport)
            assert (heard.server, list(heard.ages_ms)) == ("first", ["n1"])
            refused = await one.ask(HeartbeatQuery(), AGENT.name, plane.url)
            assert refused.reason is Reason.NOT_ALLOWED
            assert isinstance(
                await one.ask(HeartbeatQuery(), NODES.name, "https://else:1"), Unavailable
            )

    play(story())


def test_many_requests_of_one_step_are_few_http_requests(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as plane, living(Puppet(obey), plane) as one:
            wishes = [RetireLease(f"scheduler:s{n}", 1, 1) for n in range(1_000)]
            answers = await one.ask_all(wishes, SCHEDULER.name)
            assert {type(it) for it in answers} == {Refusal}
            _, metrics = await plane.fetch("/metrics")
            counted = [
                line
                for line in metrics.splitlines()
                if 'resource="requests"' in line and "_total" in line and not line.startswith("#")
            ]
            assert sum(float(line.split()[-1]) for line in counted) == 4, counted

    play(story())


def test_a_server_that_refuses_connections_is_passed_over(tmp_path: Path) -> None:
    """[C7.5]"""

    async def story() -> None:
        async with running(tmp_path) as plane:
            dead = PlaneProcess(plane.data, port=1)
            async with living(Puppet(obey), dead, plane) as one:
                for _ in range(3):
                    assert isinstance(await one.ask(Get("workloads", "a", "default")), GetResult)
                    made = await one.ask(AcquireLease("scheduler:main", 15_000), SCHEDULER.name)
                    assert isinstance(made, Accepted | Refusal)
                alone = await one.ask(HeartbeatQuery(), NODES.name, dead.url)
                assert isinstance(alone, Unavailable)
            plane.kill()
            async with living(Puppet(obey), dead, plane) as one:
                assert isinstance(await one.ask(Create(workload("a"))), Unavailable)
                assert isinstance(await one.ask(RenewLease(Term("s", 1))), Unavailable)

    play(story())


def test_a_write_whose_server_dies_without_an_answer_may_have_happened(tmp_path: Path) -> None:
    """And a read did not, whatever it was. [N1.1]"""

    async def story() -> None:
        async with running(tmp_path) as plane, living(Puppet(obey), plane) as one:
            # Connections for all of them, or they would fail before anything is sent.
            await one.ask_all([Get("workloads", "a", "default")] * 5)
            # Stopped, it takes connections and bytes and answers nothing; then it is gone.
            plane.signal(signal.SIGSTOP)
            asking = asyncio.create_task(
                one.ask_all(
                    [
                        Create(workload("a"), operation="op-1"),
                        RenewLease(Term("s", 1)),
                        Get("workloads", "a", "default"),
                    ]
                )
            )
            await asyncio.sleep(0.3)
            plane.kill()
            created, renewed, got = await asking
            assert isinstance(created, OutcomeUnknown)
            assert isinstance(renewed, OutcomeUnknown)
            assert isinstance(got, Unavailable)

    play(story())


def test_silence_ends_within_the_time_that_was_given(tmp_path: Path) -> None:
    """[C7.6]"""

    async def story() -> None:
        async with running(tmp_path) as plane, living(Puppet(obey), plane) as one:
            await one.ask_all([Get("workloads", "a", "default"), RenewLease(Term("s", 1))])
            plane.signal(signal.SIGSTOP)
            patient = asyncio.create_task(one.ask_all([Create(workload("b"))], ms=50_000))
            answers = await one.ask_all([Create(workload("a")), RenewLease(Term("s", 1))], ms=400)
            assert [type(it) for it in answers] == [OutcomeUnknown] * 2
            assert not patient.done()
            patient.cancel()

    play(story())


def test_a_machine_that_uses_an_identity_it_was_not_given_stops(tmp_path: Path) -> None:
    """That is a bug of ours, and never a request under another name. [A9]"""

    async def story() -> None:
        async with running(tmp_path) as plane:
            one = Component(Puppet(obey), plane)
            await one.shell.start()
            await one.perform(Ask(1, SERVERS, Get("nodes", "n1"), 1_000, "system:server:first"))
            with pytest.raises(InvariantBroken, match="system:server:first has no certificate"):
                await one.shell.wait()
            await one.remote.close()

    play(story())


def test_a_stranger_under_the_servers_address_is_not_spoken_to(tmp_path: Path) -> None:
    """A server proves itself by the plane's authority before it is asked anything."""

    async def story() -> None:
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
        async with (
            running(tmp_path / "one") as plane,
            running(tmp_path / "two") as stranger,
            living(Puppet(obey), plane) as one,
        ):
            for name, access in one.accesses.items():
                one.accesses[name] = msgspec.structs.replace(access, servers=(stranger.url,))
            remote = ApiClient(one.accesses)
            with pytest.raises(Unavailable):
                await remote.ask(ADMIN, SERVERS, Create(workload("a")), 5.0)
            await remote.close()

    play(story())
