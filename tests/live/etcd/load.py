"""Writers and a watcher that know exactly what they did, and what must be found afterwards.

Every change is made under a token. A writer whose answer was lost asks for the token's fate and
believes it. So at the end each attempt is known to have applied, at one revision, or not; and the
watch, and a second watch over the whole history, must show exactly those that did.

- A chained writer increments its own counter: each transaction compares what the last one wrote.
- A blind writer has no compare at all: only the token keeps a straggler from applying twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.transaction import (
    Batch,
    Change,
    Committed,
    Compare,
    CompareFailed,
    Fate,
    NotApplied,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.etcd import EtcdConfig, EtcdStore
from tests.etcd_cluster import EtcdCluster
from tests.patience import PATIENCE_S

TXN_TIMEOUT_S = 1.5
# Between two attempts of one writer when the cluster is down.
PAUSE_S = 0.05
FATE_TIMEOUT_S = 60.0


@dataclass
class Told:
    """What the writers were told."""

    # (revision, key, value) of each write that took effect, by Committed or by its fate.
    applied: set[tuple[int, str, bytes]] = field(default_factory=set)
    committed_at: list[float] = field(default_factory=list)
    unknown: int = 0
    unknown_applied: int = 0
    sent_again: int = 0
    unavailable: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.applied)} applied; {self.unknown} unknown, of which {self.unknown_applied}"
            f" had applied and {self.sent_again} were sent again; {self.unavailable} certainly not"
        )


class Load:
    """Writers and a watcher on one cluster, running until told to stop."""

    def __init__(self, cluster: EtcdCluster, *, chained: int = 3, blind: int = 3) -> None:
        self.cluster = cluster
        self.told = Told()
        self.batches: list[Batch] = []
        self._chained = chained
        self._blind = blind
        self._stop = asyncio.Event()

    async def open(self) -> EtcdStore:
        config = EtcdConfig(
            endpoints=self.cluster.endpoints, prefix="/load/", call_timeout_s=TXN_TIMEOUT_S
        )
        return await EtcdStore.open(config, bookmark_every_s=1.0)

    async def __aenter__(self) -> Load:
        # Two clients, as two servers would be; the watcher is a third.
        self.stores = [await self.open() for _ in range(3)]
        self.began_at = await self.stores[0].revision()
        self._tasks = [
            asyncio.create_task(self._write_chain(self.stores[i % 2], f"chain/{i}"))
            for i in range(self._chained)
        ] + [
            asyncio.create_task(self._write_blindly(self.stores[i % 2], f"blind/{i}"))
            for i in range(self._blind)
        ]
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        self._watching.cancel()
        await asyncio.gather(*self._tasks, self._watching, return_exceptions=True)
        for store in self.stores:
            await store.close()

    async def writes(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until this many more were acknowledged."""
        goal = len(self.told.committed_at) + count
        async with asyncio.timeout(timeout_s):
            while len(self.told.committed_at) < goal:
                self._check_alive()
                await asyncio.sleep(0.02)

    async def finish(self) -> list[Change]:
        """Stop the writers, let the watcher catch up, and compare everything with everything."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        last = await self._settled_revision()
        async with asyncio.timeout(PATIENCE_S):
            while not self.batches or self.batches[-1].revision < last:
                self._check_alive()
                await asyncio.sleep(0.02)
        changes = [change for batch in self.batches for change in batch.changes]
        self._check_watch(changes)
        await self._check_store(last, changes)
        return changes

    # Writing. --------------------------------------------------------------------------------

    async def _write_chain(self, store: EtcdStore, key: str) -> None:
        modified, n = 0, 0
        while not self._stop.is_set():
            value = b"%d" % (n + 1)
            transaction = Transaction((Compare(key, modified),), (Put(key, value),))
            revision = await self._attempt(store, transaction, key, value)
            if revision is not None:
                modified, n = revision, n + 1

    async def _write_blindly(self, store: EtcdStore, key: str) -> None:
        attempt = 0
        while not self._stop.is_set():
            attempt += 1
            value = b"%d" % attempt
            transaction = Transaction((), (Put(key, value),))
            await self._attempt(store, transaction, key, value)

    async def _attempt(
        self, store: EtcdStore, transaction: Transaction, key: str, value: bytes
    ) -> int | None:
        """The revision at which the transaction took effect, None when it certainly never does."""
        token = store.new_token()
        try:
            outcome = await store.txn(transaction, token=token, timeout_s=TXN_TIMEOUT_S)
        except Unavailable:
            self.told.unavailable += 1
            # Certain: it is not even asked for, and the check at the end would find a lie.
            await asyncio.sleep(PAUSE_S)
            return None
        except OutcomeUnknown:
            self.told.unknown += 1
            revision = await self._find_out(store, transaction, token)
            if revision is None:
                return None
        else:
            if isinstance(outcome, CompareFailed):
                # Only this writer writes the key, and it knows what it wrote.
                raise AssertionError(f"{key} was changed by another client: {outcome}")
            assert isinstance(outcome, Committed)
            revision = outcome.revision
            self.told.committed_at.append(time.monotonic())
        self.told.applied.add((revision, key, value))
        return revision

    async def _find_out(self, store: EtcdStore, transaction: Transaction, token: str) -> int | None:
        """Ask, or send the same once more under the same token: both must lead to the truth."""
        if self.told.unknown % 2:
            try:
                again = await store.txn(transaction, token=token, timeout_s=TXN_TIMEOUT_S)
            except (OutcomeUnknown, Unavailable):
                pass
            else:
                assert isinstance(again, Committed), f"{token} was refused: {again}"
                self.told.sent_again += 1
                return again.revision
        fate = await self._fate(store, token)
        if fate == NotApplied():
            return None
        assert isinstance(fate, TokenApplied), f"{token} was forgotten"
        self.told.unknown_applied += 1
        return fate.revision

    async def _fate(self, store: EtcdStore, token: str) -> Fate:
        async with asyncio.timeout(FATE_TIMEOUT_S):
            while True:
                try:
                    return await store.fate(token)
                except Unavailable:
                    await asyncio.sleep(PAUSE_S)

    # Watching and checking. ------------------------------------------------------------------

    async def _watch(self) -> None:
        async for batch in self.stores[2].watch("", after=self.began_at):
            self.batches.append(batch)
        raise AssertionError("the watch ended")

    async def _settled_revision(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self.stores[0].revision()
                except Unavailable:
                    await asyncio.sleep(PAUSE_S)

    def _check_alive(self) -> None:
        """A task that failed has found something: say what, at once."""
        for task in (*self._tasks, self._watching):
            if task.done() and not task.cancelled() and task.exception():
                task.result()

    def _check_watch(self, changes: list[Change]) -> None:
        """Ordered, unique, and exactly what the writers were told."""
        places = [batch.revision for batch in self.batches]
        assert places == sorted(places)
        seen = Counter((c.revision, c.key, c.value) for c in changes)
        assert [c.revision for c in changes] == sorted(c.revision for c in changes)
        assert max(seen.values()) == 1
        lost = self.told.applied - seen.keys()
        assert not lost, f"acknowledged, but never seen: {sorted(lost)[:5]}"
        invented = seen.keys() - self.told.applied
        assert not invented, f"took effect, but was reported as not: {sorted(invented)[:5]}"
        for batch, following in zip(self.batches, self.batches[1:], strict=False):
            assert all(batch.revision < c.revision <= following.revision for c in following.changes)

    async def _check_store(self, last: int, changes: list[Change]) -> None:
        """The store agrees: its history from the beginning, and its state at the end."""
        replayed: list[Change] = []
        async with asyncio.timeout(PATIENCE_S):
            async for batch in self.stores[0].watch("", after=self.began_at):
                replayed += batch.changes
                if batch.revision >= last:
                    break
        assert replayed == changes
        newest = {change.key: change for change in changes}
        page = await self.stores[1].range("", KEY_END)
        assert {r.key: (r.value, r.modified) for r in page.records} == {
            key: (change.value, change.revision) for key, change in newest.items()
        }
        for key, change in newest.items():
            if key.startswith("chain/"):
                # Each link compared the one before: the count equals the number of writes.
                links = [c.value for c in changes if c.key == key]
                assert links == [b"%d" % (i + 1) for i in range(len(links))]
                assert change.value == links[-1]
