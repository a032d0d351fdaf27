"""Linearizable reads, also on versions of etcd whose own can be stale.

`store` reads through here. Before 3.4.43, 3.5.28 and 3.6.9 a member that was paused may answer a
linearizable read from an older state (etcd#20418). On such servers a read is confirmed through the
log: an entry that changes nothing goes through raft, its answer names a revision that includes all
that was acknowledged before, and a read that shows an older state is repeated. All callers that
arrive while one such entry is in flight share the next, so that many readers cost few entries.
"""

from __future__ import annotations

import asyncio

from holdfast.model.errors import Expired, Unavailable
from holdfast.model.transaction import Page, Record
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.cluster import Cluster
from holdfast.store.etcd.layout import Layout, is_bookmark, to_record

# How often a read that is older than the known revision is repeated.
STALE_TRIES_MAX = 3


class LinearizableReader:
    """The reads of one store."""

    def __init__(
        self, cluster: Cluster, layout: Layout, *, confirm: bool, timeout_s: float
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._confirm = confirm
        self._timeout_s = timeout_s
        # The highest revision that any answer named: nothing read from now on may be older.
        self._seen = 0
        self._running: asyncio.Future[int] | None = None
        self._next: asyncio.Future[int] | None = None

    def saw(self, revision: int) -> None:
        self._seen = max(self._seen, revision)

    async def revision(self) -> int:
        """A revision that includes everything acknowledged before the call."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after_running())
            # All callers may have left before it fails; then the error is of no interest.
            self._next.add_done_callback(lambda f: f.cancelled() or f.exception())
        return await asyncio.shield(self._next)

    async def range(self, start: str, end: str, *, limit: int, at: int | None) -> Page:
        if at is not None:
            return await self._page(start, end, limit, at)
        if not self._confirm:
            return await self._fresh_page(start, end, limit, self._seen)
        # Both at once: the page is as good as one read after the confirmation, provided that its
        # state is not older.
        reading = asyncio.ensure_future(self._page(start, end, limit, None))
        try:
            floor = await self.revision()
            page = await reading
        finally:
            reading.cancel()
        if page.revision >= floor:
            return page
        return await self._fresh_page(start, end, limit, floor)

    async def _after_running(self) -> int:
        if self._running is not None:
            await asyncio.wait([self._running])
        self._running, self._next = self._next, None
        floor = self._seen
        if self._confirm:
            request = pb.TxnRequest(success=[codec.delete(self._layout.none)])
            txn = await self._cluster.txn(request, self._timeout_s, writes=False)
            revision = txn.header.revision
        else:
            query = pb.RangeRequest(key=self._layout.none)
            revision = (await self._cluster.range(query, self._timeout_s)).header.revision
        if revision < floor:
            raise Unavailable(f"etcd answered a read with revision {revision}, it was at {floor}")
        self.saw(revision)
        return revision

    async def _fresh_page(self, start: str, end: str, limit: int, floor: int) -> Page:
        for _ in range(STALE_TRIES_MAX):
            page = await self._page(start, end, limit, None)
            if page.revision >= floor:
                return page
        raise Unavailable(f"etcd keeps reading revision {page.revision}, it was at {floor}")

    async def _page(self, start: str, end: str, limit: int, at: int | None) -> Page:
        """Read at a revision, or the newest.

        One record more than asked for shows whether there is more: more names in etcd do not, since
        they may all be bookmarks.
        """
        if at is not None and at < 1:
            # For etcd this would mean the newest.
            raise Expired(f"etcd has no revision {at}", code="Compacted")
        records: list[Record] = []
        first, last = self._layout.range(start, end)
        while True:
            request = pb.RangeRequest(
                key=first, range_end=last, limit=limit + 1 - len(records), revision=at or 0
            )
            answer = await self._cluster.range(request, self._timeout_s)
            self.saw(answer.header.revision)
            at = at or answer.header.revision
            records += [to_record(self._layout, kv) for kv in answer.kvs if not is_bookmark(kv.key)]
            if len(records) > limit:
                return Page(at, tuple(records[:limit]), records[limit].key)
            if not answer.more:
                return Page(at, tuple(records))
            first = answer.kvs[-1].key + b"\0"
