"""Watches over a store in this process: memory and SQLite publish here, readers iterate.

A watch owns a position in the history and no buffer. A reader that keeps up waits in a group with
all others of its prefix, and one batch object serves the whole group, so it can be encoded once. A
reader that falls behind reads the history again from its position; when that is compacted it gets
Expired. So a slow reader costs no memory, and nothing can be lost between a buffer and the history.

With many readers, changes are delivered at most every WAKE_EVERY_S: waking two hundred readers
costs more than the changes themselves. The first change after a pause is delivered at once, and
with few readers, such as a server's own hub, so is every change.

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.model.errors import HoldfastError, invariant
from holdfast.model.transaction import Batch, Change
from holdfast.store.contract import BOOKMARK_EVERY_S

WAKE_EVERY_S = 0.01
FEW_READERS = 4

# A batch read from the history ends with the revision that reaches this many changes, so that a
# reader far behind is served in pieces.
BATCH_CHANGES_MAX = 1_000

# How many revisions are searched at once for the few that concern a reader far behind; then other
# tasks get a turn.
SCAN_REVISIONS_MAX = 10_000

# Reads the changes under a prefix after one revision and up to another from the history.
ReadHistory = Callable[[str, int, int], Awaitable[Batch]]


class LocalWatchHub:
    """Delivers published changes to the watches that wait for them."""

    def __init__(
        self,
        read_history: ReadHistory,
        *,
        position: int,
        bookmark_every_s: float = BOOKMARK_EVERY_S,
        wake_every_s: float = WAKE_EVERY_S,
    ) -> None:
        self.read_history = read_history
        self._bookmark_every_s = bookmark_every_s
        self._wake_every_s = wake_every_s
        # Everything up to the position has been delivered; the pending changes are those after it.
        self.position = position
        self._published = position
        self.pending: list[Change] = []
        # The watches of a group have received everything up to the position. Dicts serve as sets
        # that keep the order of arrival.
        self._groups: dict[str, dict[LocalWatch, None]] = {}
        # Watches that know of later revisions than the position, from a list or from the history.
        self._ahead: dict[LocalWatch, None] = {}
        self._timer: asyncio.Handle | None = None
        self._bookmarks: asyncio.Handle | None = None
        self._handed_out_at = float("-inf")
        self._closed = False
        self._failure: HoldfastError | None = None

    def watch(self, prefix: str, *, after: int) -> LocalWatch:
        return LocalWatch(self, prefix, after)

    def publish(self, revision: int, changes: tuple[Change, ...] | list[Change]) -> None:
        """Publish all changes after the last published revision and up to this one."""
        invariant(revision > self._published, "revisions are published in order")
        self._published = revision
        if not self._groups and not self._ahead:
            # No watch waits: the next one reads the history. Changes still pending were for watches
            # that have left, and must not reach one that joins at the new position.
            self.pending = []
            self.position = revision
            return
        self.pending += changes
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait_s = self._handed_out_at + self._wake_every_s - loop.time()
            if wait_s <= 0 or self._has_few_readers():
                self._timer = loop.call_soon(self._hand_out)
            else:
                self._timer = loop.call_later(wait_s, self._hand_out)

    def _has_few_readers(self) -> bool:
        groups = self._groups
        return len(groups) <= FEW_READERS and sum(map(len, groups.values())) <= FEW_READERS

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        self._stop()

    def fail(self, error: HoldfastError) -> None:
        """Let every watch, and every later one, raise this error."""
        self._failure = error
        self._stop()

    def _stop(self) -> None:
        for handle in (self._timer, self._bookmarks):
            if handle is not None:
                handle.cancel()
        for group in (*self._groups.values(), self._ahead):
            for watch in group:
                watch._wake(None)
        self._groups.clear()
        self._ahead.clear()

    def _hand_out(self) -> None:
        self._timer = None
        self._handed_out_at = asyncio.get_running_loop().time()
        matched = self._matched()
        self.pending = []
        self.position = self._published
        for prefix, changes in matched.items():
            batch = Batch(self.position, tuple(changes))
            for watch in self._groups.pop(prefix):
                watch._wake(batch)
        ahead, self._ahead = self._ahead, {}
        for watch in ahead:
            watch._wake(None)

    def _matched(self) -> dict[str, list[Change]]:
        """The pending changes by waiting prefix.

        There are many prefixes but few lengths, so each change is looked up once for each length.
        """
        lengths = sorted({len(prefix) for prefix in self._groups})
        matched: dict[str, list[Change]] = {}
        for change in self.pending:
            key = change.key
            for length in lengths:
                if length > len(key):
                    break
                prefix = key[:length]
                if prefix in self._groups:
                    matched.setdefault(prefix, []).append(change)
        return matched

    def _join(self, watch: LocalWatch) -> None:
        """Add a watch that has everything up to the position, or more, to those that wait."""
        if watch._after > self.position:
            self._ahead[watch] = None
        else:
            self._groups.setdefault(watch._prefix, {})[watch] = None
        if self._bookmarks is None:
            loop = asyncio.get_running_loop()
            self._bookmarks = loop.call_later(self._bookmark_every_s, self.send_bookmarks)

    def _leave(self, watch: LocalWatch) -> None:
        """Remove a watch that was not woken: nothing has changed for it up to the position."""
        self._ahead.pop(watch, None)
        group = self._groups.get(watch._prefix)
        if group is not None and watch in group:
            watch._after = self.position
            del group[watch]
            if not group:
                del self._groups[watch._prefix]

    def send_bookmarks(self) -> None:
        self._bookmarks = None
        if self.pending:
            # Pending changes may concern waiting watches; a bookmark must not overtake them.
            if self._timer is not None:
                self._timer.cancel()
            self._hand_out()
        bookmark = Batch(self.position)
        groups, self._groups = self._groups, {}
        for group in groups.values():
            for watch in group:
                watch._wake(bookmark)


class LocalWatch:
    """One reader's position. Iterating waits; a cancelled wait loses nothing."""

    __slots__ = ("_after", "_begun", "_hub", "_kept", "_prefix", "_waiter")

    def __init__(self, hub: LocalWatchHub, prefix: str, after: int) -> None:
        self._hub = hub
        self._prefix = prefix
        self._after = after
        self._begun = False
        # A batch that was delivered but not yet returned, because the wait was cancelled.
        self._kept: Batch | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> LocalWatch:
        return self

    async def __anext__(self) -> Batch:
        hub = self._hub
        while True:
            if hub._failure is not None:
                raise hub._failure
            if hub._closed:
                raise StopAsyncIteration
            if self._kept is not None:
                batch, self._kept = self._kept, None
                return self._returned(batch)
            if self._after < hub.position or not self._begun:
                batch = await self._history()
                if batch.changes or not self._begun:
                    return self._returned(batch)
                self._after = batch.revision
                await asyncio.sleep(0)
            else:
                await self._wait()

    async def _history(self) -> Batch:
        hub = self._hub
        # Reading beyond the position would bring this watch ahead of its group for good.
        upto = min(max(hub.position, self._after), self._after + SCAN_REVISIONS_MAX)
        return await hub.read_history(self._prefix, self._after, upto)

    async def _wait(self) -> None:
        invariant(self._waiter is None, "two tasks iterate over one watch")
        self._waiter = asyncio.get_running_loop().create_future()
        self._hub._join(self)
        try:
            await self._waiter
        finally:
            self._hub._leave(self)
            self._waiter = None

    def _wake(self, batch: Batch | None) -> None:
        """End the wait. Called after this watch was taken out of its group."""
        self._kept = batch
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _returned(self, batch: Batch) -> Batch:
        self._begun = True
        self._after = batch.revision
        return batch
