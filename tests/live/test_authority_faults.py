"""Servers as real processes lose answers, die and sleep under load, on etcd and on SQLite.

Whatever happens, each operation takes effect once, what was acknowledged is there, and the ledgers
equal the sum of the bindings.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.lease_takeover import LEASE_MS
from tests.etcd_cluster import EtcdCluster
from tests.live.authority.load import Load
from tests.live.authority.rig import Servers
from tests.scale import some_of

pytestmark = pytest.mark.xdist_group("authority-faults")

Faults = Callable[[Servers, Load], Awaitable[None]]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


async def calm(servers: Servers, load: Load) -> None:
    """No faults but those of the store."""


def play(
    folder: Path, names: str, *, faults: Faults = calm, workers: int = 16, lives: int, **config: Any
) -> Load:
    """Live through the faults, and recount everything afterwards."""

    async def story() -> Load:
        servers = Servers(folder, *names, **config)
        async with servers:
            load = Load(servers, workers=workers, lives=lives)
            await load.prepare()
            async with asyncio.TaskGroup() as together:
                together.create_task(load.run())
                together.create_task(faults(servers, load))
        await servers.check()
        return load

    load = asyncio.run(story())
    assert load.told["lives"] == load.total
    return load


@pytest.mark.parametrize("names", some_of(["abc", "ab"], 2))
def test_several_servers_decide_at_once(etcd: EtcdCluster, tmp_path: Path, names: str) -> None:
    """No server forwards: each decides on its own view, and the compares sort it out. [K2, N1.7]"""
    prefix = f"/{names}-alone/"
    load = play(tmp_path, names, lives=8, etcd=etcd.endpoints, prefix=prefix)
    assert load.told["bound"] == load.total
    assert load.told["full"] > 0


def test_answers_of_etcd_are_lost(etcd: EtcdCluster, tmp_path: Path) -> None:
    """A tenth of all transactions is left without answer; each takes effect once. [N1.1, INV3]"""
    load = play(tmp_path, "ab", lives=6, etcd=etcd.endpoints, prefix="/lossy/", lossy=0.1)
    assert load.told["bound"] == load.total


def test_answers_of_sqlite_are_lost(tmp_path: Path) -> None:
    """[N1.1, INV3]"""
    load = play(tmp_path, "a", lives=12, sqlite=str(tmp_path / "plane.db"), lossy=0.1)
    assert load.told["bound"] == load.total


def killing(*shares: float) -> Faults:
    """Kill one server after another when these shares of the load are done; each comes back."""

    async def faults(servers: Servers, load: Load) -> None:
        for turn, share in enumerate(shares):
            await load.reached(int(share * load.total))
            process = servers.all[turn % len(servers.all)]
            process.kill()
            await asyncio.sleep(0.2)
            await process.start()

    return faults


@pytest.mark.long
def test_servers_on_etcd_are_killed(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Any of three may die at any moment; those who asked it ask another. [K2, C7.5, INV11]"""
    load = play(
        tmp_path,
        "abc",
        faults=killing(0.1, 0.35, 0.6),
        lives=10,
        etcd=etcd.endpoints,
        prefix="/killed/",
        forwards=True,
    )
    # Some got no answer: otherwise no server was killed in mid-load.
    assert load.servers.unclear > 0


def test_the_server_on_sqlite_is_killed(tmp_path: Path) -> None:
    """What was acknowledged is there when it comes back. [INV11, C7.4]"""
    load = play(
        tmp_path,
        "a",
        faults=killing(0.1, 0.35, 0.6),
        lives=12,
        sqlite=str(tmp_path / "plane.db"),
    )
    assert load.servers.unclear > 0


@pytest.mark.slow
def test_the_holder_of_the_lease_sleeps_and_wakes(etcd: EtcdCluster, tmp_path: Path) -> None:
    """It wakes with an old view and an old epoch, and neither wins. [K1, K3, INV7]"""

    async def faults(servers: Servers, load: Load) -> None:
        holder = servers.all[0]
        await load.reached(load.total // 8)
        holder.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(1.5 * LEASE_MS / 1000)
            await load.reached(load.total // 4)
        finally:
            holder.signal(signal.SIGCONT)

    play(
        tmp_path,
        "ab",
        faults=faults,
        lives=40,
        etcd=etcd.endpoints,
        prefix="/asleep/",
        forwards=True,
    )
