"""Binds as they are in production: a scheduler's client, over TLS, to a server process.

Each identity has its certificate: the scheduler, the agents of two nodes, the controller that
makes replicas, the administrator. All certificates come from the plane's own authority.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.host.client import AsyncClient
from holdfast.model.errors import Conflict, Forbidden, HoldfastError, Missing
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Resources, Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Accepted, Bind, BindTogether, Move, RegisterNode, Target, Term
from tests.live.plane_process import PATIENT, PlaneProcess, take_lease
from tests.live.relay import Relay

NS = "default"
SCHEDULER = "system:scheduler:one"
# Four cores each, and every replica wants one.
CORES = 4
NODES = ("node-a", "node-b")


class Fleet:
    """A plane with two nodes and one workload, and an identity for every part."""

    def __init__(self, process: PlaneProcess, relay: Relay, stack: contextlib.AsyncExitStack):
        self.process, self.relay, self._stack = process, relay, stack
        self._clients: dict[str, AsyncClient] = {}
        self._ordinals = 0

    async def client(self, name: str = "") -> AsyncClient:
        """A client with a certificate of this name; the administrator without one."""
        if name not in self._clients:
            made = self.process.client_as(name) if name else self.process.client()
            self._clients[name] = await self._stack.enter_async_context(made)
        return self._clients[name]

    async def far_scheduler(self) -> AsyncClient:
        """The scheduler behind the wire that loses answers."""
        near = await self.client(SCHEDULER)
        access = msgspec.structs.replace(near.access, servers=(self.relay.url,))
        return await self._stack.enter_async_context(AsyncClient(access, policy=PATIENT))

    async def furnish(self) -> None:
        admin = await self.client()
        await admin.create(Region(ObjectMeta(name="eu"), spec=RegionSpec(jurisdictions=("eu",))))
        self.nodes: dict[str, Node] = {}
        for name in NODES:
            spec = NodeSpec(region="eu", zone="eu-a", capacity={"cpu": str(CORES), "memory": "8Gi"})
            agent = await self.client(f"system:node:{name}")
            said = await agent.ask(RegisterNode(Node(ObjectMeta(name=name), spec=spec)))
            (node,) = said.objects
            assert isinstance(node, Node)
            self.nodes[name] = node
        template = Template(command=("sleep", "60"), resources=Resources(cpu="1", memory="1Mi"))
        spec = WorkloadSpec(template=template, replicas=20)
        self.workload = await admin.create(
            Workload(ObjectMeta(name="web", namespace=NS), spec=spec)
        )
        scheduler = await self.client(SCHEDULER)
        self.term = await take_lease(scheduler, "scheduler:one")

    async def pending(self, count: int) -> list[Replica]:
        """Create this many replicas without a place."""
        controller = await self.client("system:controller:workload")
        await take_lease(controller, "controller:workload")
        made = []
        for ordinal in range(self._ordinals, self._ordinals + count):
            spec = ReplicaSpec(
                workload="web",
                workload_uid=self.workload.metadata.uid,
                ordinal=ordinal,
                template=self.workload.spec.template,
            )
            metadata = ObjectMeta(name=f"web-{ordinal}-0", namespace=NS)
            made.append(await controller.create(Replica(metadata, spec=spec)))
        self._ordinals += count
        return made

    def bind(self, replica: Replica, node: str = "node-a", operation: str = "") -> Bind:
        metadata, number = replica.metadata, replica.status.transition_number
        meant = Target(NS, replica.name, metadata.uid, number)
        return Bind(meant, node, self.nodes[node].metadata.uid, self.term, operation)

    async def where(self, *replicas: Replica) -> list[str]:
        """On which node each is by now; nothing for none."""
        admin = await self.client()
        found = [await admin.get(Replica, replica.name, NS) for replica in replicas]
        return [r.status.binding.node if r.status.binding is not None else "" for r in found]

    async def room(self, node: str) -> int:
        """How many more replicas the commit lets onto a node."""
        scheduler = await self.client(SCHEDULER)
        extra = await self.pending(CORES + 1)
        verdicts = await scheduler.ask_all([self.bind(replica, node) for replica in extra])
        return sum(isinstance(verdict, Accepted) for verdict in verdicts)


@contextlib.asynccontextmanager
async def furnished(folder: Path) -> AsyncIterator[Fleet]:
    process = PlaneProcess(folder / "data")
    try:
        await process.start()
        async with contextlib.AsyncExitStack() as stack:
            relay = await stack.enter_async_context(Relay(process.port))
            fleet = Fleet(process, relay, stack)
            await fleet.furnish()
            yield fleet
        await process.stop()
    finally:
        process.kill()


def play(folder: Path, story: Callable[[Fleet], Awaitable[None]]) -> None:
    async def played() -> None:
        async with asyncio.timeout(120), furnished(folder) as fleet:
            await story(fleet)

    asyncio.run(played())


def test_a_bound_replica_is_started_by_the_agent_of_its_node(tmp_path: Path) -> None:
    """The scheduler binds, the agent of that node sees it and runs it. [A6]"""

    async def story(fleet: Fleet) -> None:
        scheduler = await fleet.client(SCHEDULER)
        (replica,) = await fleet.pending(1)
        said = await scheduler.ask(fleet.bind(replica))
        (bound,) = said.objects
        assert isinstance(bound, Replica)
        assert (bound.status.state, said.replayed) == (State.BOUND, False)
        seen = {}
        for node in NODES:
            agent = await fleet.client(f"system:node:{node}")
            field = f"status.binding.node={node}"
            listed = await agent.list(Replica, fields=field)
            seen[node] = [r.name for r in listed.objects]
        assert seen == {"node-a": [replica.name], "node-b": []}
        meant = Target(NS, bound.name, bound.metadata.uid, bound.status.transition_number)
        incarnation = fleet.nodes["node-a"].status.incarnation
        runs = Move(meant, State.RUNNING, incarnation=incarnation)
        other = await fleet.client("system:node:node-b")
        with pytest.raises(HoldfastError):
            await other.ask(runs)
        agent = await fleet.client("system:node:node-a")
        (running,) = (await agent.ask(runs)).objects
        assert isinstance(running, Replica)
        assert running.status.state is State.RUNNING

    play(tmp_path, story)


def test_of_a_batch_each_bind_is_decided_by_itself(tmp_path: Path) -> None:
    """One does not fit any more and is refused by name; the others hold. [C4]"""

    async def story(fleet: Fleet) -> None:
        scheduler = await fleet.client(SCHEDULER)
        replicas = await fleet.pending(CORES + 2)
        places = ["node-a"] * (CORES + 1) + ["node-b"]
        verdicts = await scheduler.ask_all(map(fleet.bind, replicas, places))
        *fit, full, elsewhere = verdicts
        assert all(isinstance(verdict, Accepted) for verdict in (*fit, elsewhere)), verdicts
        assert isinstance(full, HoldfastError)
        assert full.code == "NodeFull"
        assert await fleet.where(*replicas) == [*(["node-a"] * CORES), "", "node-b"]
        # Refused is not forgotten: it fits on the other node.
        await scheduler.ask(fleet.bind(replicas[CORES], "node-b"))
        assert await fleet.where(replicas[CORES]) == ["node-b"]

    play(tmp_path, story)


def test_a_gang_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """All of them or none. [G5]"""

    async def story(fleet: Fleet) -> None:
        scheduler = await fleet.client(SCHEDULER)
        replicas = await fleet.pending(CORES + 1)
        with pytest.raises(HoldfastError) as refused:
            await scheduler.ask(BindTogether(tuple(map(fleet.bind, replicas))))
        assert refused.value.code == "NodeFull"
        assert await fleet.where(*replicas) == [""] * len(replicas)
        await scheduler.ask(BindTogether(tuple(map(fleet.bind, replicas[:CORES]))))
        assert await fleet.where(*replicas) == [*(["node-a"] * CORES), ""]

    play(tmp_path, story)


def test_a_bind_whose_answer_was_lost_is_bound_once(tmp_path: Path) -> None:
    """The client looks before it sends again, and again under the same operation id. [E5]"""

    async def story(fleet: Fleet) -> None:
        scheduler = await fleet.far_scheduler()
        replica, other = await fleet.pending(2)
        # The connection exists by now, so what gets lost is an answer and not a greeting.
        await scheduler.get(Replica, replica.name, NS)
        fleet.relay.losing = 1
        wish = fleet.bind(replica, operation="bind-1")
        said = await scheduler.ask(wish)
        assert (fleet.relay.lost, scheduler.performer.lost) == (1, 1)
        assert said.replayed
        (found,) = said.objects
        assert isinstance(found, Replica)
        assert found.status.transition_number == replica.status.transition_number + 1
        # Another process that knows the operation, as after a restart of the scheduler.
        again = await (await fleet.client(SCHEDULER)).ask(wish)
        assert (again.replayed, again.objects) == (True, ())
        now = await (await fleet.client()).get(Replica, replica.name, NS)
        assert now.metadata.resource_version == found.metadata.resource_version
        # The same id for something else is answered with what became of that id.
        reused = await scheduler.ask(fleet.bind(replica, "node-b", operation="bind-1"))
        assert (reused.replayed, reused.objects) == (True, (now,))
        with pytest.raises(Conflict) as stale:
            await scheduler.ask(fleet.bind(replica, "node-b", operation="bind-2"))
        assert stale.value.code == "StaleReplica"
        assert await fleet.where(replica, other) == ["node-a", ""]
        assert await fleet.room("node-a") == CORES - 1, "it was charged once"

    play(tmp_path, story)


def test_a_batch_whose_answer_was_lost_is_resolved_one_by_one(tmp_path: Path) -> None:
    """What fitted was bound once, what did not fit is still refused. [E5, C4]"""

    async def story(fleet: Fleet) -> None:
        scheduler = await fleet.far_scheduler()
        replicas = await fleet.pending(CORES + 1)
        await scheduler.get(Replica, replicas[0].name, NS)
        fleet.relay.losing = 1
        verdicts = await scheduler.ask_all(map(fleet.bind, replicas))
        assert fleet.relay.lost == 1
        *fit, full = verdicts
        assert [isinstance(v, Accepted) and v.replayed for v in fit] == [True] * CORES
        assert isinstance(full, HoldfastError)
        assert full.code == "NodeFull"
        assert await fleet.where(*replicas) == [*(["node-a"] * CORES), ""]
        assert await fleet.room("node-a") == 0

    play(tmp_path, story)


def test_only_the_scheduler_that_holds_its_lease_binds(tmp_path: Path) -> None:
    """Not an agent, not a tenant, not a scheduler with another's term or an old one. [C4, K3]"""

    async def story(fleet: Fleet) -> None:
        (replica,) = await fleet.pending(1)
        wish = fleet.bind(replica)
        for name, no in (
            # For an agent there is nothing but what is bound to it.
            ("system:node:node-a", Missing),
            ("ada", Forbidden),
            ("system:controller:workload", Forbidden),
        ):
            with pytest.raises(no):
                await (await fleet.client(name)).ask(wish)
        rival = await fleet.client("system:scheduler:two")
        with pytest.raises(HoldfastError) as stolen:
            await rival.ask(wish)
        assert stolen.value.code in ("StaleEpoch", "NotOwner")
        old = msgspec.structs.replace(wish, term=Term(wish.term.scope, wish.term.epoch - 1))
        scheduler = await fleet.client(SCHEDULER)
        with pytest.raises(Conflict) as stale:
            await scheduler.ask(old)
        assert stale.value.code == "StaleEpoch"
        assert await fleet.where(replica) == [""]
        await scheduler.ask(wish)

    play(tmp_path, story)
