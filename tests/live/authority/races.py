"""Eight racers claim the last unit of something, at the same moment, through several servers.

One of them must win, the others must be told why not, and what was won is given back before the
next round. Tests demand that; the benchmark counts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.model.access import identity as who
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Create, Move, Term
from tests.live.authority.furniture import Furniture, replica_of
from tests.live.authority.rig import ServerProcess, Servers
from tests.plane import SCHEDULER, WORKLOADS, accepted, bind, target

RACERS = 8
LOSES_BY = {
    "device": Reason.DEVICE_TAKEN,
    "cpu": Reason.NODE_FULL,
    "quota": Reason.QUOTA_EXCEEDED,
}


@dataclass
class Result:
    """What came of all rounds of one claim."""

    rounds: int = 0
    # The number of rounds by their number of winners.
    winners: Counter[int] = field(default_factory=Counter)
    won_through: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    # How often a server knew nothing of what another one had acknowledged.
    forgotten: int = 0

    @property
    def double_allocations(self) -> int:
        return sum(rounds * (winners - 1) for winners, rounds in self.winners.items() if winners)

    @property
    def rounds_without_winner(self) -> int:
        return self.winners[0]


class Race:
    """The furniture of one claim: a tenant, a node and eight replicas of its own."""

    def __init__(self, servers: Servers, claim: str) -> None:
        self.servers = servers
        self.claim = claim
        self.result = Result()
        self._replicas: list[Any] = []
        self._lives = [0] * RACERS

    async def prepare(self, room: Furniture, term: Term) -> None:
        """One of what is claimed, and plenty of everything else."""
        tenant = f"racers-{self.claim}"
        await room.tenant(tenant)
        if self.claim == "quota":
            await room.quota(tenant, cpu="1")
        self._node = await room.node(
            f"node-{self.claim}",
            cpu="1" if self.claim == "cpu" else "64",
            gpus=1 if self.claim == "device" else 0,
        )
        gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
        more = {"devices": gpu} if self.claim == "device" else {}
        self._workload = await room.workload("racer", tenant, **more)
        self._replicas = [await room.replica(self._workload, n) for n in range(RACERS)]
        self._term, self._births = term, await room.births()

    async def run(self, rounds: int) -> Result:
        """All rounds, or as many as it takes until one has not exactly one winner."""
        while (
            self.result.rounds < rounds
            and self.result.winners.keys() <= {1}
            and not self.result.forgotten
        ):
            await self._round()
        return self.result

    async def _round(self) -> None:
        processes = self.servers.all
        answers = await asyncio.gather(
            *(self._claim(processes[i % len(processes)], i) for i in range(RACERS))
        )
        won = [i for i, answer in enumerate(answers) if isinstance(answer, Accepted)]
        self.result.rounds += 1
        self.result.winners[len(won)] += 1
        for answer in answers:
            if isinstance(answer, Refusal):
                self.result.losses[answer.reason] += 1
            elif not isinstance(answer, Accepted):
                self.result.losses[type(answer).__name__] += 1
        for index in won:
            name = processes[index % len(processes)].config.name
            self.result.won_through[name] += 1
        if len(won) == 1:
            await self._give_back(won[0], accepted(answers[won[0]]))

    async def _claim(self, process: ServerProcess, index: int) -> Any:
        request = bind(self._replicas[index], self._node, self._term)
        return await process.client.answer(SCHEDULER, request)

    async def _give_back(self, index: int, bound: Any) -> None:
        """Let the work end and be released, and send the next life into the race."""
        agent, seen = who.agent(self._node.name), target(bound)
        failed = Move(seen, State.FAILED, incarnation=1)
        number = seen.number + 1
        released = Move(
            type(seen)(seen.namespace, seen.name, seen.uid, number), State.RELEASED, incarnation=1
        )
        self._lives[index] += 1
        fresh = Create(replica_of(self._workload, index, self._lives[index]), term=self._births)
        # One connection keeps their order, and so does the server.
        client = self.servers.all[self.result.rounds % len(self.servers.all)].client
        answers = await asyncio.gather(
            client.ask(agent, failed), client.ask(agent, released), client.ask(WORKLOADS, fresh)
        )
        has_ended = all(isinstance(answer, Accepted) for answer in answers[:2])
        if self.servers.all[0].config.careless and not has_ended:
            # A server that compares nothing knows nothing of what another one has acknowledged, or
            # overwrites the ledger in which it stands.
            self.result.forgotten += 1
            return
        accepted(answers[0])
        accepted(answers[1])
        self._replicas[index] = accepted(answers[2])


async def race(servers: Servers, claims: tuple[str, ...], rounds: int) -> dict[str, Result]:
    """This many rounds of each claim, the claims side by side."""
    room = Furniture(servers.ask)
    term = await room.term(SCHEDULER)
    races = [Race(servers, claim) for claim in claims]
    for each in races:
        await each.prepare(room, term)
    results = await asyncio.gather(*(each.run(rounds) for each in races))
    return dict(zip(claims, results, strict=True))
