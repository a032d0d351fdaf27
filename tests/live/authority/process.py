"""One server process: `python -m tests.live.authority.process CONFIG`.

CONFIG is the JSON of a `Config`. The process serves until its standard input is closed, so it never
outlives the test that started it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import msgspec

from holdfast.commit.authority import GroupLimits
from holdfast.commit.draft import CommitGroup
from holdfast.commit.server import AuthorityServer
from holdfast.host.process.peers import NoPeers
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import server
from holdfast.model.transaction import Transaction
from holdfast.store.contract import Store
from holdfast.store.etcd import EtcdConfig, EtcdStore
from holdfast.store.sqlite import SqliteStore
from tests.live.authority.lossy import LossyStore
from tests.live.authority.wire import Neighbours, serve

# etcd takes 128 operations by default, of which the store keeps two for itself.
ETCD_LIMITS = GroupLimits(requests_max=64, compares_max=120)


class Config(msgspec.Struct, frozen=True):
    """What one server process is started with."""

    name: str
    folder: str
    sqlite: str = ""
    etcd: tuple[str, ...] = ()
    prefix: str = "/holdfast/"
    # Whether it forwards to the holder of the lease; otherwise every server decides by itself.
    forwards: bool = False
    # The share of transactions whose answer is lost.
    lossy: float = 0.0
    seed: int = 0
    # A planted bug: writes are sent without their compares, as by "check, then write".
    careless: bool = False


async def open_store(config: Config) -> Store:
    if config.sqlite:
        store: Store = await SqliteStore.open(config.sqlite)
    else:
        endpoints = EtcdConfig(endpoints=config.etcd, prefix=config.prefix)
        store = await EtcdStore.open(endpoints)
    return LossyStore(store, config.lossy, config.seed) if config.lossy else store


def forget_compares() -> None:
    """Plant the bug that the races must find."""
    whole = CommitGroup.transaction

    def bare(self: CommitGroup, wall_ms: int = 0) -> Transaction:
        return Transaction((), whole(self, wall_ms).writes)

    CommitGroup.transaction = bare  # type: ignore[method-assign]


async def main(config: Config) -> None:
    if config.careless:
        forget_compares()
    store = await open_store(config)
    limits = ETCD_LIMITS if config.etcd else GroupLimits()
    machine = AuthorityServer(config.name, random.SystemRandom(), store, limits=limits)
    folder = Path(config.folder)
    neighbours = Neighbours(folder)
    peers = neighbours if config.forwards else NoPeers()
    shell = Shell(machine, server(config.name), store=store, peers=peers)
    async with shell:
        sockets = await serve(shell, folder / f"{config.name}.sock")
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.buffer.read))
        broken = asyncio.create_task(shell.wait())
        await asyncio.wait([ended, broken], return_when=asyncio.FIRST_COMPLETED)
        sockets.close()
        await neighbours.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Config)))
