"""The last unit of anything goes to one of eight, whichever servers they ask.

OpenStack Placement on PostgreSQL gave the last unit away twice in 53 of 75 such rounds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.etcd_cluster import EtcdCluster
from tests.live.authority.races import LOSES_BY, Result, race
from tests.live.authority.rig import Servers
from tests.scale import scaled

pytestmark = pytest.mark.xdist_group("authority-races")

CLAIMS = tuple(LOSES_BY)


def demand_one_winner(results: dict[str, Result], rounds: int) -> None:
    for claim, result in results.items():
        assert result.winners == {1: rounds}, (claim, result)
        # Each loser got the exact reason.
        assert result.losses == {LOSES_BY[claim]: 7 * rounds}, (claim, result)


@pytest.mark.slow
def test_eight_racers_over_two_servers_on_one_etcd(tmp_path: Path) -> None:
    """Each round has one winner, and the ledgers equal the sum of the bindings.

    [C6.1, C6.6, C6.8, INV1, INV3, INV4, N1.7]
    """
    rounds = scaled(100, 334)

    async def story() -> dict[str, Result]:
        async with Servers(tmp_path, "a", "b", etcd=cluster.endpoints) as servers:
            results = await race(servers, CLAIMS, rounds)
            await servers.check()
            return results

    with EtcdCluster(tmp_path / "etcd") as cluster:
        results = asyncio.run(story())
    demand_one_winner(results, rounds)
    won = sum((result.won_through for result in results.values()), start=Result().won_through)
    # Each server wins often: otherwise they did not race at all.
    assert min(won["a"], won["b"]) > rounds * 3 // 10, won


def test_a_server_that_checks_and_then_writes_is_caught(tmp_path: Path) -> None:
    """The races can be lost: without compares the last unit is soon given away twice, or what one
    server has acknowledged is unknown to the other.
    """

    async def story() -> dict[str, Result]:
        async with Servers(tmp_path, "a", "b", etcd=cluster.endpoints, careless=True) as servers:
            # It ends with the first round that has not one winner, and few are needed as a rule.
            return await race(servers, CLAIMS, 1_000)

    with EtcdCluster(tmp_path / "etcd") as cluster:
        results = asyncio.run(story())
    assert all(it.double_allocations or it.forgotten for it in results.values()), results


def test_eight_racers_over_one_server_on_sqlite(tmp_path: Path) -> None:
    """The embedded store is held to the same. [C6.1, C6.6, INV1, INV3, INV4]"""
    rounds = 50

    async def story() -> dict[str, Result]:
        servers = Servers(tmp_path, "a", sqlite=str(tmp_path / "plane.db"))
        async with servers:
            results = await race(servers, CLAIMS, rounds)
        await servers.check()
        return results

    demand_one_winner(asyncio.run(story()), rounds)
