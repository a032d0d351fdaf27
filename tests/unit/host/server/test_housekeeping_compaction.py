"""When history is compacted."""

from __future__ import annotations

import asyncio

from holdfast.host.server.housekeeping import Horizon, compact_for_ever
from holdfast.model.transaction import Change, Put, Transaction
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.memory import MemoryStore


def test_history_is_kept_for_its_time_and_then_forgotten() -> None:
    """[C8]"""
    horizon = Horizon(keep_ms=1_000)
    assert horizon.note(5, 0) is None
    assert horizon.note(9, 999) is None
    assert horizon.note(20, 1_000) == 5
    assert horizon.note(20, 1_500) is None
    assert horizon.note(30, 2_500) == 20


def test_a_busy_plane_keeps_a_bounded_number_of_revisions() -> None:
    horizon = Horizon(keep_ms=1_000_000, keep_max=100)
    assert horizon.note(90, 0) is None
    assert horizon.note(350, 1) == 250
    assert horizon.note(350, 2) is None


def test_large_changes_are_forgotten_by_their_bytes() -> None:
    """A megabyte twenty times a second fills a store within its time."""
    history = HistoryBytes()
    history.skip_to(100)
    horizon = Horizon(history=history, keep_bytes=8 << 20)
    # What was there before it began to count is not known to be much.
    assert horizon.note(100, 0) is None
    for revision in range(101, 121):
        history.note(Change(revision, "objects/secrets/acme/s", bytes(1 << 20), 1))
    forgotten = horizon.note(120, 1)
    assert forgotten is not None
    assert 7 << 20 <= history.since(forgotten) <= 8 << 20
    assert horizon.note(120, 2) is None


def test_only_the_server_whose_task_it_is_forgets() -> None:
    async def story(is_ours: bool) -> int:
        store = MemoryStore()
        for number in range(10):
            await store.txn(Transaction((), (Put("a", b"%d" % number),)))
        work = compact_for_ever(store, lambda: is_ours, Horizon(keep_max=3), every_s=0)
        task = asyncio.create_task(work)
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        return store.keyspace.compacted

    assert asyncio.run(story(True)) == 7
    assert asyncio.run(story(False)) < 7


def test_history_is_not_forgotten_before_the_audit_has_it() -> None:
    async def story() -> int:
        store = MemoryStore()
        for number in range(10):
            await store.txn(Transaction((), (Put("a", b"%d" % number),)))

        async def written(upto: int) -> int:
            return min(upto, 4)

        work = compact_for_ever(store, lambda: True, Horizon(keep_max=3), 0, written)
        task = asyncio.create_task(work)
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        return store.keyspace.compacted

    assert asyncio.run(story()) == 4
