"""Playing a story on an empty store of any kind, for the conformance suite.

The suite is test_store_reads, test_store_transactions and test_store_watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast.model.transaction import Batch, Change, Committed, Compare, Put, Transaction
from holdfast.store.contract import Store
from tests.store_factories import SILENCE_MAX_S, Rig


def on_fresh(rig: Rig, story: Callable[[Store], Awaitable[None]]) -> None:
    """Play a story on an empty store."""

    async def play() -> None:
        store = await rig.fresh()
        try:
            await story(store)
        finally:
            await store.close()

    rig.run(play())


def puts(*pairs: tuple[str, bytes], **compares: int) -> Transaction:
    return Transaction(
        tuple(Compare(k, m) for k, m in compares.items()), tuple(Put(k, v) for k, v in pairs)
    )


async def put(store: Store, key: str, value: bytes) -> int:
    outcome = await store.txn(puts((key, value)))
    assert isinstance(outcome, Committed)
    return outcome.revision


async def following(batches: AsyncIterator[Batch]) -> Batch:
    async with asyncio.timeout(SILENCE_MAX_S):
        return await anext(batches)


async def collect(batches: AsyncIterator[Batch], upto: int) -> list[Change]:
    """All changes until a batch reaches the revision."""
    changes: list[Change] = []
    while True:
        batch = await following(batches)
        changes += batch.changes
        if batch.revision >= upto:
            return changes
