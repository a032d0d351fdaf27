"""Reads that are confirmed, over a cluster that plays a script instead of talking to etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from holdfast.model.errors import Unavailable
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.linearizable_reads import STALE_TRIES_MAX, LinearizableReader


class ScriptedEtcd:
    """Answers reads with the revisions it was given, and log entries with the true one."""

    def __init__(self, revision: int, *read_revisions: int) -> None:
        self.revision = revision
        self.reads = list(read_revisions)
        self.entries = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def range(self, request: pb.RangeRequest, timeout_s: float) -> pb.RangeResponse:
        revision = self.reads.pop(0) if self.reads else self.revision
        return pb.RangeResponse(header=pb.ResponseHeader(revision=revision))

    async def txn(
        self, request: pb.TxnRequest, timeout_s: float, *, writes: bool = True
    ) -> pb.TxnResponse:
        self.entries += 1
        revision = self.revision
        await self.gate.wait()
        return pb.TxnResponse(header=pb.ResponseHeader(revision=revision), succeeded=True)


def reader_of(etcd: ScriptedEtcd, *, confirm: bool) -> LinearizableReader:
    return LinearizableReader(cast("Cluster", etcd), Layout("/x/"), confirm=confirm, timeout_s=1.0)


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_a_stale_read_is_made_again() -> None:
    """On versions that serve old states after a pause, the log tells what is missing [C2]."""

    async def story() -> None:
        etcd = ScriptedEtcd(9, 5, 7)
        page = await reader_of(etcd, confirm=True).range("a", "b", limit=1, at=None)
        assert page.revision == 9
        assert etcd.entries == 1

    play(story)


def test_a_member_that_stays_behind_is_not_believed() -> None:
    async def story() -> None:
        etcd = ScriptedEtcd(9, *[5] * (STALE_TRIES_MAX + 1))
        with pytest.raises(Unavailable, match="revision 5"):
            await reader_of(etcd, confirm=True).range("a", "b", limit=1, at=None)

    play(story)


@pytest.mark.parametrize("confirm", [True, False])
def test_nothing_is_read_from_before_what_this_store_has_seen(confirm: bool) -> None:
    """Whatever the version: an answer already given is never taken back [C2, INV10]."""

    async def story() -> None:
        etcd = ScriptedEtcd(5)
        reader = reader_of(etcd, confirm=confirm)
        reader.saw(7)
        with pytest.raises(Unavailable):
            await reader.revision()
        etcd.revision = 7
        assert await reader.revision() == 7

    play(story)


def test_a_fixed_version_needs_no_log_entry() -> None:
    async def story() -> None:
        etcd = ScriptedEtcd(9)
        reader = reader_of(etcd, confirm=False)
        assert (await reader.range("a", "b", limit=1, at=None)).revision == 9
        assert await reader.revision() == 9
        assert etcd.entries == 0

    play(story)


def test_a_past_revision_needs_no_confirmation() -> None:
    async def story() -> None:
        etcd = ScriptedEtcd(9, 9)
        assert (await reader_of(etcd, confirm=True).range("a", "b", limit=1, at=4)).revision == 4
        assert etcd.entries == 0

    play(story)


def test_readers_share_an_entry_but_never_one_that_began_before_them() -> None:
    """Many readers cost few entries, and each still sees all that came before it [C2]."""

    async def story() -> None:
        etcd = ScriptedEtcd(1)
        reader = reader_of(etcd, confirm=True)
        etcd.gate.clear()
        first = asyncio.ensure_future(reader.revision())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert etcd.entries == 1
        # A write is acknowledged while the first entry is under way.
        etcd.revision = 2
        others = [asyncio.ensure_future(reader.revision()) for _ in range(50)]
        await asyncio.sleep(0)
        etcd.gate.set()
        assert await first == 1
        assert await asyncio.gather(*others) == [2] * 50
        assert etcd.entries == 2

    play(story)


def test_a_reader_that_leaves_does_not_take_the_others_along() -> None:
    async def story() -> None:
        etcd = ScriptedEtcd(3)
        reader = reader_of(etcd, confirm=True)
        etcd.gate.clear()
        leaving, staying = (asyncio.ensure_future(reader.revision()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        etcd.gate.set()
        assert await staying == 3

    play(story)
