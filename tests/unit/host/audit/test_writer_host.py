"""The audit writer in its shell: over a real store, on a real disk, and its status."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.host.audit import writer_host as keeping_module
from holdfast.host.audit.segments import records, verify_segments
from holdfast.host.audit.writer_host import AuditKeeper
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.host.server.settings import FORGET, REFUSE
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.audit.audit_records import Mutation, Stamp, encode, record_of
from holdfast.model.transaction import Change, Put, Transaction
from holdfast.observe import history_bytes as history_module
from holdfast.observe.audit_writer import audit_writer as scribe_module
from holdfast.observe.history_bytes import CHANGE_BYTES, HistoryBytes
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.backup import backup, restore


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of the audit writer."""
    for name in ("FLUSH_MS", "RETRY_MS", "LOOK_MS"):
        monkeypatch.setattr(scribe_module, name, 5)


async def say(store: Store, count: int) -> None:
    for number in range(count):
        said = Mutation(who="ann", verb="Patch", name=f"w{number}")
        value = encode(Stamp(1, (said,)))
        await store.txn(Transaction((), (Put(keys.audit_stamp(), value),)))


async def counted(store: Store) -> HistoryBytes:
    """Return what a watch of the whole store has counted, from its first revision on."""
    found = HistoryBytes()
    async for batch in store.watch("", after=0):
        for change in batch.changes:
            found.note(change)
        if found.revision >= await store.revision():
            break
    return found


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000_000):
        if holds():
            return
        await asyncio.sleep(0)


@asynccontextmanager
async def running(
    store: Store, folder: Path, history: HistoryBytes | None = None, **more: str
) -> AsyncIterator[AuditKeeper]:
    keeping = AuditKeeper("one", folder, history or HistoryBytes(), **more)
    shell = Shell(keeping.writer, who.server("one"), store=store, performers=keeping.performers())
    keeping.attach(shell)
    async with shell:
        yield keeping
    keeping.close()


def test_what_is_said_in_the_store_is_written_to_files(tmp_path: Path) -> None:
    """After a restart it continues. [C7.4]"""

    async def story() -> None:
        store, folder = MemoryStore(), tmp_path / "audit"
        for number in (5, 10):
            await say(store, 5)
            async with running(store, folder) as keeping:
                await until(lambda head=number: keeping.writer.head.number == head)
                assert verify_segments([folder], keeping.writer.head).is_whole
                assert keeping.standing().writing
                assert (keeping.standing().lag, keeping.standing().error) == (0, "")
        assert [it.number for it in records([folder])] == list(range(1, 11))

    asyncio.run(story())


def test_a_disk_that_cannot_be_written_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C7.5]"""

    async def story() -> None:
        store = MemoryStore()
        await say(store, 3)
        (tmp_path / "audit").write_text("this is no directory")
        history = await counted(store)
        async with running(store, tmp_path / "audit", history) as keeping:
            await until(lambda: keeping.writer.failures > 2)
            told = keeping.standing()
            assert "audit cannot be written: " in told.error
            assert told.lag >= 3
            metrics = Metrics()
            keeping.count(metrics)
            lines = metrics.text().splitlines()
            assert "holdfast_audit_records 0" in lines
            assert f"holdfast_audit_lag_revisions {told.lag}" in lines
            assert f"holdfast_audit_lag_bytes {keeping.waiting_bytes}" in lines
            assert keeping.waiting_bytes > 3 * CHANGE_BYTES
            assert keeping.refusal() == ""
            with monkeypatch.context() as patch:
                patch.setattr(keeping_module, "WAITING_BYTES_MAX", keeping.waiting_bytes)
                assert keeping.refusal() == ""
                patch.setattr(keeping_module, "WAITING_BYTES_MAX", keeping.waiting_bytes - 1)
                assert "of history wait for the audit, and no server writes it: " in (
                    keeping.refusal()
                )
                # One large value closes it as well as many small ones.
                patch.setattr(keeping_module, "WAITING_BYTES_MAX", 1 << 20)
                assert keeping.refusal() == ""
                history.note(Change(history.revision, "objects/x", b"x" * (1 << 20), 1))
                assert "1 MiB of history wait for the audit" in keeping.refusal()
            os.unlink(tmp_path / "audit")
            await until(lambda: keeping.writer.head.number == 3)
            assert keeping.refusal() == ""

    asyncio.run(story())


@pytest.mark.parametrize("when_behind, upto", [(REFUSE, 0), (FORGET, 6)])
def test_history_waits_for_the_audit_writer_unless_configured_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when_behind: str, upto: int
) -> None:
    """Then nothing is refused, and the gap is visible in the chain. [B5]"""
    monkeypatch.setattr(history_module, "GRAIN_BYTES", 1)

    async def story() -> None:
        store = MemoryStore()
        await say(store, 10)
        history = await counted(store)
        monkeypatch.setattr(keeping_module, "WAITING_BYTES_MAX", history.since(6))
        dead = AuditKeeper("one", tmp_path, history, when_behind=when_behind)
        assert await dead.horizon(store, 9) == upto
        await store.compact(upto)
        async with running(store, tmp_path, when_behind=when_behind) as keeping:
            await until(lambda: keeping.writer.head.revision >= 10)
            found = verify_segments([tmp_path], keeping.writer.head)
            assert found.findings == []
            assert [(it.after, it.upto) for it in found.gaps] == ([(0, 6)] if upto else [])
            assert found.last == (5 if upto else 10)
            assert await keeping.horizon(store, 9) == 9

    asyncio.run(story())


def test_a_restored_store_goes_on_with_a_gap_and_keeps_what_it_knows_nothing_of(
    tmp_path: Path,
) -> None:
    """What was done after the backup is evidence, but no longer part of the chain. [INV10]"""
    path, copy, folder = tmp_path / "store.db", tmp_path / "copy.db", tmp_path / "audit"

    async def written(count: int, number: int) -> AuditKeeper:
        store = await SqliteStore.open(path)
        try:
            await say(store, count)
            async with running(store, folder) as keeping:
                await until(lambda: keeping.writer.head.number >= number)
                return keeping
        finally:
            await store.close()

    asyncio.run(written(3, 3))
    backup(path, copy)
    asyncio.run(written(4, 7))
    path.unlink()
    restore(copy, path)
    keeping = asyncio.run(written(2, 5))
    found = verify_segments([folder], keeping.writer.head)
    assert (found.findings, found.beyond, len(found.gaps)) == ([], 0, 1)
    (aside,) = folder.glob("aside-*")
    assert [record_of(line).number for line in aside.read_bytes().splitlines()] == [4, 5, 6, 7]
