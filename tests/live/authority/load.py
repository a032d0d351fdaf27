"""Workers that live whole lives of replicas through failing servers, and know what they were told.

Each request has an operation id and is repeated under it until a server answers. So whatever was
lost on the way, the last answer must be a yes to what was meant, or a no that the plane's state
explains; a replica that has moved without its worker knowing would show as StaleReplica.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from holdfast.correct.controller import operation as operation_id
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Bind, Create, Move, Target, Term
from tests.live.authority.furniture import Furniture, replica_of
from tests.live.authority.rig import Servers
from tests.plane import SCHEDULER, WORKLOADS

# What may be tried again elsewhere, and how often.
FULL = (Reason.NODE_FULL, Reason.QUOTA_EXCEEDED)
PLACES_MAX = 200


class Load:
    """This many workers, each with this many replicas one after another."""

    def __init__(self, servers: Servers, *, workers: int, lives: int, nodes: int = 4) -> None:
        self.servers = servers
        self.workers, self.lives = workers, lives
        self._node_count = nodes
        self._random = random.Random(1)
        self.told: Counter[str] = Counter()
        # Who was bound and not released: replica name -> node.
        self.left: dict[str, str] = {}
        self._ended = asyncio.Event()

    async def prepare(self) -> None:
        room = Furniture(self.servers.ask)
        await room.tenant()
        # Room for about half of the workers, so that places are fought over.
        cores = max(1, self.workers // 2 // self._node_count)
        self._nodes = await room.nodes(self._node_count, cpu=str(cores))
        self._workload = await room.workload()
        self._term: Term = await room.term(SCHEDULER)
        self._births: Term = await room.term(WORKLOADS)

    async def run(self) -> None:
        await asyncio.gather(*(self._work(worker) for worker in range(self.workers)))

    async def reached(self, lives: int) -> None:
        """Wait until this many lives have ended."""
        while self.told["lives"] < lives:
            self._ended.clear()
            await self._ended.wait()

    @property
    def total(self) -> int:
        return self.workers * self.lives

    async def _work(self, worker: int) -> None:
        for life in range(self.lives):
            await self._live(worker, life)
            self.told["lives"] += 1
            self._ended.set()

    async def _live(self, worker: int, life: int) -> None:
        fresh = replica_of(self._workload, worker, life)
        named = operation_id("w", fresh.name, life, "create")
        born = Create(fresh, operation=named, term=self._births)
        answer = await self._insist(WORKLOADS, born)
        # A repeated create is answered without the object; only its name is sure.
        made = answer.objects[0] if answer.objects else None
        if made is None:
            made = await self._find(fresh)
        seen = Target(made.namespace, made.name, made.metadata.uid, 0)
        node = await self._bind(seen)
        keep = life == self.lives - 1 and worker % 4 == 0
        states = (State.RUNNING,) if keep else (State.RUNNING, State.FAILED, State.RELEASED)
        for number, state in enumerate(states, start=1):
            at = Target(seen.namespace, seen.name, seen.uid, number)
            operation = operation_id(node, seen.uid, number, state.value)
            move = Move(at, state, incarnation=1, operation=operation)
            await self._insist(who.agent(node), move)
        if keep:
            self.left[seen.name] = node

    async def _find(self, fresh: Any) -> Any:
        """Read what a create has made whose answer was lost: a second one says what is there."""
        read = Create(fresh, operation="w/read", term=self._births)
        again = await self._retry(WORKLOADS, read)
        assert isinstance(again, Refusal), again
        assert again.reason is Reason.EXISTS, again
        self.told["found"] += 1
        metadata = type(fresh.metadata)(
            name=fresh.name, namespace=fresh.namespace, uid=again.details["uid"]
        )
        return type(fresh)(metadata, spec=fresh.spec)

    async def _bind(self, seen: Target) -> str:
        """Bind somewhere; a full place is left for another."""
        asked: list[Bind] = []
        for attempt in range(PLACES_MAX):
            node = self._random.choice(self._nodes)
            operation = operation_id(SCHEDULER.name, seen.uid, attempt, f"bind {node.name}")
            asked.append(Bind(seen, node.name, node.metadata.uid, self._term, operation=operation))
            answer = await self._retry(SCHEDULER, asked[-1])
            if isinstance(answer, Accepted):
                self.told["bound"] += 1
                return str(node.name)
            assert isinstance(answer, Refusal), answer
            if answer.reason is Reason.STALE_REPLICA:
                return await self._found_bound(asked[:-1])
            assert answer.reason in FULL, answer
            self.told["full"] += 1
            await asyncio.sleep(0.005 * self._random.random())
        raise AssertionError(f"no place for {seen.name} in {PLACES_MAX} tries")

    async def _found_bound(self, asked: list[Bind]) -> str:
        """A copy of an earlier try lay somewhere, and was accepted after another was refused.

        Exactly one of the operations that were asked for remembers it.
        """
        found = []
        for request in asked:
            answer = await self._retry(SCHEDULER, request)
            if isinstance(answer, Accepted):
                assert answer.replayed, answer
                found.append(request.node)
        assert len(found) == 1, (asked, found)
        self.told["late"] += 1
        self.told["bound"] += 1
        return found[0]

    async def _insist(self, identity: Identity, request: Any) -> Accepted:
        answer = await self._retry(identity, request)
        assert isinstance(answer, Accepted), (request, answer)
        return answer

    async def _retry(self, identity: Identity, request: Any) -> Any:
        answer = await self.servers.insist(identity, request)
        if isinstance(answer, Accepted) and answer.replayed:
            self.told["replayed"] += 1
        return answer
