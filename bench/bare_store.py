"""The rate of a store alone, without a server: the bound for the figures of servers."""

from __future__ import annotations

import asyncio
import itertools
import time

from holdfast.model.errors import invariant
from holdfast.model.transaction import ABSENT, Committed, Compare, Put, Transaction
from holdfast.store.contract import Store


async def bare_store(
    store: Store, value: bytes, count: int, rows: int, in_flight: int
) -> tuple[float, list[float]]:
    """Write `count` rows; return rows per second and the time of each transaction."""
    prefix = store.new_token()
    keys = (f"bare/{prefix}/{n:08d}" for n in range(count))
    each: list[float] = []

    async def work() -> None:
        while group := list(itertools.islice(keys, rows)):
            transaction = Transaction(
                tuple(Compare(key, ABSENT) for key in group),
                tuple(Put(key, value) for key in group),
            )
            sent = time.perf_counter()
            outcome = await store.txn(transaction, token=store.new_token())
            each.append(time.perf_counter() - sent)
            invariant(isinstance(outcome, Committed), "there is no other writer")

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return count / (time.perf_counter() - began), each
