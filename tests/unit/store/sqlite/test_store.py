"""Time-outs, cancellation and failure as a caller of the embedded store sees them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.model.transaction import Committed, NotApplied, Put, TokenApplied, Transaction
from holdfast.store.contract import KEY_END
from holdfast.store.sqlite import SqliteStore, schema
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.store import TRANSACTION_BYTES_MAX
from tests.faulty_disk import FaultyDisk
from tests.patience import PATIENCE_S


def put(key: str, value: bytes = b"1") -> Transaction:
    return Transaction((), (Put(key, value),))


async def passed(event: threading.Event) -> None:
    """Wait for another thread without stopping this one."""
    await asyncio.to_thread(event.wait)


def play(path: Path, story: Callable[[SqliteStore, FaultyDisk], Awaitable[None]]) -> None:
    """A story on a fresh store whose disk obeys the test."""

    async def run() -> None:
        disk = FaultyDisk()
        store = await SqliteStore.open(path / "store.db", vfs=disk.name)
        try:
            await story(store, disk)
        finally:
            disk.heal()
            await store.close()

    asyncio.run(run())


def test_a_time_out_while_being_written_is_unknown_until_asked(tmp_path: Path) -> None:
    """OutcomeUnknown, then the final word by token: here it did happen [N1.1]."""

    async def story(store: SqliteStore, disk: FaultyDisk) -> None:
        token = store.new_token()
        with disk.held_sync() as begun:
            call = asyncio.create_task(store.txn(put("a"), token=token, timeout_s=0.01))
            await passed(begun)
            with pytest.raises(OutcomeUnknown):
                await call
            asking = asyncio.create_task(store.fate(token))
        assert await asking == TokenApplied(1)
        assert (await store.range("a", "b")).records[0].modified == 1

    play(tmp_path, story)


def test_a_time_out_before_being_written_certainly_did_not_happen(tmp_path: Path) -> None:
    """It is withdrawn, so that it cannot happen later either [N1.1]."""

    async def story(store: SqliteStore, disk: FaultyDisk) -> None:
        token = store.new_token()
        with disk.held_sync() as begun:
            first = asyncio.create_task(store.txn(put("a")))
            await passed(begun)
            with pytest.raises(Unavailable):
                await store.txn(put("b"), token=token, timeout_s=0.01)
        assert await first == Committed(1)
        assert await store.fate(token) == NotApplied()
        assert [r.key for r in (await store.range("", KEY_END)).records] == ["a"]

    play(tmp_path, story)


def test_a_cancelled_caller_leaves_the_rest_alone(tmp_path: Path) -> None:
    """What is being written goes on, what waits is withdrawn, others are served."""

    async def story(store: SqliteStore, disk: FaultyDisk) -> None:
        with disk.held_sync() as begun:
            written = asyncio.create_task(store.txn(put("written")))
            await passed(begun)
            waiting = asyncio.create_task(store.txn(put("waiting")))
            other = asyncio.create_task(store.txn(put("other")))
            await asyncio.sleep(0)
            written.cancel()
            waiting.cancel()
            await asyncio.sleep(0)
        assert isinstance(await other, Committed)
        await asyncio.gather(written, waiting, return_exceptions=True)
        keys = [r.key for r in (await store.range("", KEY_END)).records]
        assert keys == ["other", "written"]

    play(tmp_path, story)


def test_reads_do_not_wait_for_a_slow_disk(tmp_path: Path) -> None:
    """A stalled sync stops writers, not readers, and shows nothing that is not durable [INV11]."""

    async def story(store: SqliteStore, disk: FaultyDisk) -> None:
        await store.txn(put("a", b"old"))
        with disk.held_sync() as begun:
            call = asyncio.create_task(store.txn(put("a", b"new")))
            await passed(begun)
            assert (await store.range("a", "b")).records[0].value == b"old"
            assert await store.revision() == 1
        await call
        assert (await store.range("a", "b")).records[0].value == b"new"

    play(tmp_path, story)


def test_a_failed_disk_is_reported_to_every_caller(tmp_path: Path) -> None:
    """Callers, later callers, readers, watchers and the process that runs the store [INV11]."""

    async def run() -> None:
        disk, told = FaultyDisk(), list[str]()
        path = tmp_path / "store.db"
        store = await SqliteStore.open(path, vfs=disk.name, on_failure=told.append)
        await store.txn(put("a"))
        watch = store.watch("", after=1)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        disk.fail_syncs()
        calls = [asyncio.create_task(store.txn(put(f"k{i}"))) for i in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(o, OutcomeUnknown | Unavailable) for o in outcomes)
        assert any(isinstance(o, OutcomeUnknown) for o in outcomes)
        with pytest.raises(Unavailable, match="has stopped"):
            await waiting
        for call in (
            store.txn(put("b")),
            store.range("a", "b"),
            store.fate(store.new_token()),
            store.revision(),
            store.compact(1),
        ):
            with pytest.raises(Unavailable, match="has stopped"):
                await call
        assert len(told) == 1
        assert told == [store.failure]
        assert str(path) in told[0]
        await store.close()
        assert disk.after_fault == []

    asyncio.run(run())


def test_a_bug_in_the_writer_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C7.6]"""

    class Bug(BaseException):
        pass

    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    async def story(store: SqliteStore, _: FaultyDisk) -> None:
        def fail(_: SqliteEngine, __: object) -> None:
            raise Bug

        monkeypatch.setattr(SqliteEngine, "run", fail)
        with pytest.raises(OutcomeUnknown, match="stopped by a bug"):
            await store.txn(put("a"))
        with pytest.raises(Unavailable, match="stopped by a bug"):
            await store.txn(put("a"))

    play(tmp_path, story)
    assert [args.exc_type for args in seen] == [Bug]


def test_damage_found_by_a_reader_stops_the_store(tmp_path: Path) -> None:
    """A file that lies is not written to any more [INV11]."""

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store.db", cache_bytes_max=0)
        await store.txn(put("a", b"right"))
        connection = schema.connect(tmp_path / "store.db")
        connection.execute("UPDATE log SET value = ?", (b"wrong",))
        connection.close()
        for _ in range(2):
            with pytest.raises(Unavailable, match="was altered") as caught:
                await store.range("a", "b")
            assert caught.value.code == "StoreCorrupt"
        with pytest.raises(Unavailable):
            await store.txn(put("a"))
        await store.close()

    asyncio.run(run())


def test_what_is_too_large_is_refused_before_it_reaches_the_disk(tmp_path: Path) -> None:
    async def story(store: SqliteStore, _: FaultyDisk) -> None:
        with pytest.raises(Invalid):
            await store.txn(put("a", bytes(TRANSACTION_BYTES_MAX + 1)))
        too_many = tuple(Put(f"k{i}", b"") for i in range(schema.WRITES_MAX + 1))
        with pytest.raises(Invalid):
            await store.txn(Transaction((), too_many))
        outcome = await store.txn(Transaction((), too_many[1:]), timeout_s=PATIENCE_S)
        assert outcome == Committed(1)

    play(tmp_path, story)


def test_closing_finishes_what_was_begun(tmp_path: Path) -> None:
    """Every caller gets an answer, and it is true."""

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "store.db")
        calls = [asyncio.create_task(store.txn(put(f"k{i}"))) for i in range(50)]
        await asyncio.sleep(0)
        await store.close()
        outcomes = await asyncio.gather(*calls)
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        again = await SqliteStore.open(tmp_path / "store.db")
        assert await again.revision() == 50
        await again.close()
        await again.close()

    asyncio.run(run())
