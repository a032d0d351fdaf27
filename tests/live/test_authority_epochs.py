"""A stale epoch never wins, also where a server has not heard of the takeover."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, AcquireLease, Term
from tests.etcd_cluster import EtcdCluster
from tests.live.authority.furniture import Furniture
from tests.live.authority.rig import Servers
from tests.plane import accepted, bind, refused

pytestmark = pytest.mark.xdist_group("authority-faults")

SCOPE = "scheduler:shard"
TAKEOVERS = 40


async def take_over(servers: Servers, via: int, identity: Identity, epoch: int) -> tuple[Term, int]:
    """Take the lease from its holder, as a process does that saw no renewals."""
    request = AcquireLease(SCOPE, 10_000, seen_epoch=epoch, seen_renewals=0)
    answer = await servers.all[via].client.ask(identity, request)
    return Term(SCOPE, accepted(answer).spec.epoch), answer.revision


def test_takeovers_race_with_binds_of_the_old_holder(tmp_path: Path) -> None:
    """Two schedulers take the shard from each other through two servers, while the old one binds.

    Each bind under an epoch is committed before the takeover or refused; the server that the old
    holder asks has its epoch in its view and must find out. [K1, K3, INV7, SC7]
    """

    async def story() -> None:
        async with Servers(tmp_path, "a", "b", etcd=cluster.endpoints) as servers:
            room = Furniture(servers.ask)
            await room.tenant()
            node, workload = await room.node("node-0", cpu="900"), await room.workload()
            schedulers = [who.scheduler("one"), who.scheduler("two")]
            term, _ = await take_over(servers, 0, schedulers[0], 0)
            stale = won = 0
            for turn in range(TAKEOVERS):
                old, new = schedulers[turn % 2], schedulers[(turn + 1) % 2]
                replicas = [await room.replica(workload, 3 * turn + n) for n in range(3)]
                ask = servers.all[turn % 2].client.ask
                # The first warms the view of the server that the old holder asks.
                accepted(await ask(old, bind(replicas[0], node, term)))
                racing: list[Any] = await asyncio.gather(
                    ask(old, bind(replicas[1], node, term)),
                    take_over(servers, (turn + 1) % 2, new, term.epoch),
                )
                taken, revision = racing[1]
                if isinstance(racing[0], Accepted):
                    won += 1
                    assert racing[0].revision < revision
                else:
                    stale += 1
                    refused(racing[0], Reason.STALE_EPOCH)
                refused(await ask(old, bind(replicas[2], node, term)), Reason.STALE_EPOCH)
                term = taken
            assert term.epoch == TAKEOVERS + 1
            assert won + stale == TAKEOVERS
            await servers.check()

    with EtcdCluster(tmp_path / "etcd") as cluster:
        asyncio.run(story())
