"""Every kind of store that the conformance suite runs against.

A kind is a `Rig`: it knows how to make an empty store and how to open one again. To add a kind,
write a subclass and append it to `RIGS`, with the marks that its tests shall bear:

    RIGS.append((EtcdRig, (pytest.mark.live,)))

`rig` in the test modules is a fixture over `params()`; a rig starts once for each module that uses
it and is stopped at the end. Every coroutine of one rig runs on one event loop, through `run`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from holdfast.store.contract import Store
from holdfast.store.encryption import EncryptedStore
from holdfast.store.encryption.keyring import Keyring, Wrapped
from holdfast.store.etcd import EtcdConfig, EtcdStore
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from tests.etcd_cluster import EtcdCluster

T = TypeVar("T")

# Short, so that a test which waits for a bookmark does not wait long.
BOOKMARK_EVERY_S = 0.05
# A watch that says nothing for so long is taken to have lost something.
SILENCE_MAX_S = 20.0


class Rig:
    """How tests make stores of one kind."""

    name: ClassVar[str]
    # Whether revisions grow by exactly one with each transaction that writes, from 0 when empty.
    exact_revisions: ClassVar[bool] = True
    # Whether `reopen` brings back what was there.
    durable: ClassVar[bool] = True
    # How many random histories are played: fewer where each call crosses a network.
    histories: ClassVar[int] = 60

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runner = asyncio.Runner()
        self._numbers = itertools.count(1)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def start(self) -> None:
        """Start what all stores of this kind need, once."""

    def stop(self) -> None:
        """Stop what `start` started."""
        self._runner.close()

    async def fresh(self) -> Store:
        """A store without records. Its revision need not be 0."""
        raise NotImplementedError

    async def reopen(self, store: Store) -> Store:
        """Close the store and open it again."""
        raise NotImplementedError


class MemoryRig(Rig):
    name = "memory"
    durable = False

    async def fresh(self) -> Store:
        return MemoryStore(bookmark_every_s=BOOKMARK_EVERY_S)


class SqliteRig(Rig):
    name = "sqlite"
    cache_bytes_max: ClassVar[int] = 1_000_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # In memory where there is such a folder: what survives a power failure is shown elsewhere,
        # and a busy disk would make thousands of syncs slow.
        if os.access("/dev/shm", os.W_OK):
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-store-", dir="/dev/shm"))
        self._paths: dict[Store, Path] = {}

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.folder)

    async def fresh(self) -> Store:
        return await self._open(self.folder / f"{next(self._numbers)}.db")

    async def reopen(self, store: Store) -> Store:
        await store.close()
        return await self._open(self._paths.pop(store))

    async def _open(self, path: Path) -> Store:
        store = await SqliteStore.open(
            path, bookmark_every_s=BOOKMARK_EVERY_S, cache_bytes_max=self.cache_bytes_max
        )
        self._paths[store] = path
        return store


class UncachedSqliteRig(SqliteRig):
    """Values are read from the file, also old ones while they are being swept."""

    name = "sqlite-uncached"
    cache_bytes_max = 200


class _OneKey:
    """A key service without a key: what matters here is the way to the store and back."""

    async def wrap(self, data_key: bytes) -> Wrapped:
        return Wrapped("one", data_key)

    async def unwrap(self, wrapped: Sequence[Wrapped]) -> list[bytes | None]:
        return [it.data for it in wrapped]


class EncryptedRig(Rig):
    """Every record is encrypted on its way to a store in memory."""

    name = "encrypted"
    durable = False

    async def fresh(self) -> Store:
        inner = MemoryStore(bookmark_every_s=BOOKMARK_EVERY_S)
        return EncryptedStore(inner, await Keyring.open(_OneKey()), prefixes=("",))


class EtcdRig(Rig):
    """One cluster for all stores, each under a prefix of its own."""

    name = "etcd"
    exact_revisions = False
    histories = 15
    members: ClassVar[int] = 1

    def start(self) -> None:
        self._cluster = EtcdCluster(self.folder, size=self.members)
        self._cluster.__enter__()
        self._prefixes: dict[Store, str] = {}

    def stop(self) -> None:
        super().stop()
        self._cluster.stop()

    async def fresh(self) -> Store:
        return await self._open(f"/{next(self._numbers)}/")

    async def reopen(self, store: Store) -> Store:
        await store.close()
        return await self._open(self._prefixes.pop(store))

    async def _open(self, prefix: str) -> Store:
        config = EtcdConfig(endpoints=self._cluster.endpoints, prefix=prefix)
        store = await EtcdStore.open(config, bookmark_every_s=BOOKMARK_EVERY_S)
        self._prefixes[store] = prefix
        return store


class EtcdTrioRig(EtcdRig):
    """Three members, and calls to whichever is ready."""

    name = "etcd-trio"
    histories = 8
    members = 3


RIGS: list[tuple[type[Rig], tuple[pytest.MarkDecorator, ...]]] = [
    (MemoryRig, ()),
    (SqliteRig, ()),
    (UncachedSqliteRig, ()),
    (EncryptedRig, ()),
    (EtcdRig, (pytest.mark.live,)),
    (EtcdTrioRig, (pytest.mark.live,)),
]


def params() -> list[Any]:
    """For `pytest.fixture(params=...)`. Tests of one kind stay in one process of a parallel run."""
    return [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.xdist_group(kind.name), *marks])
        for kind, marks in RIGS
    ]


def started(kind: type[Rig], folder: Path) -> Iterator[Rig]:
    """The body of a fixture: `yield from started(request.param, folder)`."""
    rig = kind(folder)
    rig.start()
    try:
        yield rig
    finally:
        rig.stop()
