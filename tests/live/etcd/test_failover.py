"""Members die, stop and are cut off under load: nothing acknowledged is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.etcd_cluster import EtcdCluster
from tests.live.etcd.load import Load
from tests.live.etcd.namespaces import Namespaces
from tests.scale import some_of

pytestmark = pytest.mark.xdist_group("etcd-failover")

# From a leader's death to the next acknowledged write.
# How long the random campaign runs; `make failover-long` sets it.
LONG_S = float(os.environ.get("HOLDFAST_FAILOVER_S", "0"))

Faults = Callable[[EtcdCluster, Load], Awaitable[None]]


def play(cluster: EtcdCluster, faults: Faults) -> Load:
    """Run the load through the faults and check everything afterwards."""

    async def story() -> Load:
        async with Load(cluster) as load:
            await load.writes(200)
            await faults(cluster, load)
            await load.writes(200)
            await load.finish()
        print(load.told)
        return load

    return asyncio.run(story())


async def leader_of(cluster: EtcdCluster) -> int:
    return await asyncio.to_thread(cluster.wait_leader)


async def back(cluster: EtcdCluster, index: int) -> None:
    cluster.restart(index)
    await asyncio.to_thread(cluster.wait_healthy, index)


def test_the_leader_is_killed_under_load(tmp_path: Path) -> None:
    """No acknowledged write is lost, none applied twice, no hole in it [INV3, INV10, INV11]."""

    async def faults(cluster: EtcdCluster, load: Load) -> None:
        for _ in range(2):
            leader = await leader_of(cluster)
            cluster.kill(leader)
            await load.writes(205)
            await back(cluster, leader)

    with EtcdCluster(tmp_path, size=3) as cluster:
        load = play(cluster, faults)
    # A leader's death under load leaves questions; if it never does, the load is no load.
    assert load.told.unknown + load.told.unavailable > 0


def test_each_member_is_killed_in_turn(tmp_path: Path) -> None:
    """Writers and watchers survive a rolling restart by SIGKILL [INV3, INV10, INV11, C7.5]."""

    async def faults(cluster: EtcdCluster, load: Load) -> None:
        for index in range(3):
            cluster.kill(index)
            await load.writes(100)
            await back(cluster, index)
            await load.writes(100)

    with EtcdCluster(tmp_path, size=3) as cluster:
        play(cluster, faults)


def test_the_whole_cluster_is_killed(tmp_path: Path) -> None:
    """Acknowledged means on disk: all members die at once and come back [INV10, INV11]."""

    async def faults(cluster: EtcdCluster, load: Load) -> None:
        for index in range(3):
            cluster.kill(index)
        for index in range(3):
            cluster.restart(index)
        for index in range(3):
            await asyncio.to_thread(cluster.wait_healthy, index)

    with EtcdCluster(tmp_path, size=3) as cluster:
        play(cluster, faults)


def test_the_leader_is_paused(tmp_path: Path) -> None:
    """A stopped leader holds requests and then goes on; none of them counts twice [INV3, N1.1]."""

    async def faults(cluster: EtcdCluster, load: Load) -> None:
        leader = await leader_of(cluster)
        cluster.pause(leader)
        try:
            await load.writes(200)
        finally:
            cluster.resume(leader)
        await load.writes(200)

    with EtcdCluster(tmp_path, size=3) as cluster:
        play(cluster, faults)


@pytest.mark.root
@pytest.mark.parametrize("kind", some_of(["from-all", "from-members", "one-way"], 3))
def test_the_leader_is_cut_off(tmp_path: Path, kind: str) -> None:
    """A leader cut off from its peers acknowledges nothing that it cannot keep [INV3, INV11]."""
    with Namespaces(3) as namespaces:

        async def faults(cluster: EtcdCluster, load: Load) -> None:
            leader = await leader_of(cluster)
            others = [i for i in range(3) if i != leader]
            namespaces.cut(leader, others, one_way=kind == "one-way")
            if kind == "from-all":
                namespaces.cut_from_us(leader)
            await load.writes(200)
            namespaces.heal(leader)
            await load.writes(200)

        with EtcdCluster(tmp_path, size=3, hosts=namespaces.hosts, wrap=namespaces.wrap) as cluster:
            play(cluster, faults)


@pytest.mark.slow
@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.skipif(not LONG_S, reason="a long campaign: make failover-long")
def test_random_faults_for_a_long_time(tmp_path: Path) -> None:
    """Any order of deaths and pauses [INV3, INV10, INV11]."""
    seed = int(os.environ.get("HOLDFAST_SEED", str(random.randrange(2**32))))
    print(f"HOLDFAST_SEED={seed}")
    rng = random.Random(seed)

    async def faults(cluster: EtcdCluster, load: Load) -> None:
        until = time.monotonic() + LONG_S
        while time.monotonic() < until:
            index = rng.randrange(3) if rng.random() < 0.5 else await leader_of(cluster)
            if rng.random() < 0.5:
                cluster.kill(index)
                await load.writes(rng.randrange(100))
                await back(cluster, index)
            else:
                cluster.pause(index)
                await load.writes(rng.randrange(100))
                cluster.resume(index)
            await load.writes(rng.randrange(200))

    with EtcdCluster(tmp_path, size=3) as cluster:
        load = play(cluster, faults)
    assert load.told.unknown_applied > 0
