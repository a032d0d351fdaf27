"""The server's machine in the real shell: two of them in one process, over one store."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.commit.server import AuthorityServer
from holdfast.host.process.peers import PeerTable
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import Identity, server
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted
from holdfast.store.contract import KEY_END
from holdfast.store.memory import MemoryStore
from tests.live.authority.furniture import Furniture
from tests.plane import SCHEDULER, bind
from tests.puppet import play

TIMEOUT_S = 10.0


class Pair:
    """Servers `a` and `b`, of which `a` is started first and so holds the lease."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.table = PeerTable()
        self.machines: dict[str, AuthorityServer] = {}
        self.shells: dict[str, Shell] = {}

    async def start(self, name: str) -> None:
        machine = AuthorityServer(name, random.Random(name), self.store)
        shell = Shell(machine, server(name), store=self.store, peers=self.table)
        self.machines[name], self.shells[name] = machine, shell
        self.table.add(name, shell)
        await shell.start()
        # Each answer is a turn of the event loop; after a few the server knows whose the lease is.
        for _ in range(20):
            assert isinstance(await shell.ask(server(name), "no request", TIMEOUT_S), Refusal)

    async def stop(self, name: str) -> None:
        self.table.remove(name)
        await self.shells.pop(name).stop()

    async def ask(self, identity: Identity, request: Any, via: str = "b") -> Any:
        return await self.shells[via].ask(identity, request, TIMEOUT_S)

    def check(self) -> None:
        records = self.store.keyspace.range("", KEY_END).records
        assert recount(records) == []
        assert excesses(records) == []


def test_forty_binds_for_ten_places_through_two_servers() -> None:
    """Ten are accepted, thirty get a reason, and the ledgers are right. [INV4]"""

    async def story() -> None:
        pair = Pair()
        await pair.start("a")
        await pair.start("b")
        room = Furniture(pair.ask)
        await room.tenant()
        node, workload = await room.node("node-0", cpu="10"), await room.workload()
        replicas = [await room.replica(workload, n) for n in range(40)]
        term = await room.term(SCHEDULER)
        answers = await asyncio.gather(
            *(
                pair.ask(SCHEDULER, bind(replica, node, term), "ab"[n % 2])
                for n, replica in enumerate(replicas)
            )
        )
        assert sum(isinstance(answer, Accepted) for answer in answers) == 10
        refusals = [answer for answer in answers if isinstance(answer, Refusal)]
        assert {refusal.reason for refusal in refusals} == {Reason.NODE_FULL}
        pair.check()
        assert pair.machines["a"].term is not None
        assert pair.machines["b"].term is None
        await pair.stop("a")
        await pair.stop("b")
        await pair.store.close()

    play(story())


def test_a_server_goes_on_when_the_other_has_stopped() -> None:
    """[K2, C7.5]"""

    async def story() -> None:
        pair = Pair()
        await pair.start("a")
        await pair.start("b")
        room = Furniture(pair.ask)
        await room.tenant("before")
        await pair.stop("a")
        await room.tenant("after")
        pair.check()
        await pair.stop("b")
        await pair.store.close()

    play(story())
