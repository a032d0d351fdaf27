"""Linearizable reads from memory: they see every write acknowledged before they were sent.

The store confirms its revision after the request has arrived. Once the hub has reached that
revision, its bytes are the answer. Many readers share one confirmation. A reader that arrives while
one is in flight waits for the next: the one in flight may have read the revision too early for it.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.host.process.metrics import Histogram
from holdfast.host.process.shell import Shell
from holdfast.model.errors import HoldfastError
from holdfast.model.read_requests import Reach
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store
from holdfast.store.encryption import EncryptedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

# The hub is usually a few milliseconds behind the store. When it is further behind, a list is read
# from the store itself.
BEHIND_MAX_S = 0.5
_READER = "reader"


class Freshness:
    """Tells whether the hub has reached the store's revision. One for each server."""

    def __init__(self, store: Store, hub: WatchHub, shell: Shell) -> None:
        self._store, self._hub, self._shell = store, hub, shell
        # These stores know their revision without a round trip, so there is nothing to share.
        bare = store.inner if isinstance(store, EncryptedStore) else store
        self._local = bare if isinstance(bare, MemoryStore | SqliteStore) else None
        self._sent: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None
        # How far the hub is behind the store, in seconds; None if it is not measured.
        self.lags: Histogram | None = None

    async def revision(self) -> int:
        """The store's revision, confirmed after this call. Raises Unavailable."""
        if self._local is not None:
            return self._local.known_revision
        if self._next is None:
            self._next = asyncio.create_task(self._confirm(self._sent))
        # Others wait for the same task; a caller that gives up must not cancel it.
        return await asyncio.shield(self._next)

    async def _confirm(self, before: asyncio.Task[int] | None) -> int:
        if before is not None and not before.done():
            await asyncio.wait([before])
        # From here on the request is in flight, and later callers wait for another one.
        self._sent, self._next = self._next, None
        return await self._store.revision()

    @property
    def is_hub_fresh_now(self) -> bool:
        """Whether the hub has all acknowledged writes, where that is known without a round trip."""
        local = self._local
        if local is None or not self._hub.is_ready:
            return False
        return self._hub.revision >= local.known_revision

    async def is_hub_fresh(self, *, patience_s: float = BEHIND_MAX_S) -> bool:
        """Whether the hub has all writes acknowledged before this call, within `patience_s`."""
        wanted = await self.revision()
        if patience_s <= 0:
            return self._hub.is_ready and self._hub.revision >= wanted
        began = time.monotonic()
        is_fresh = await self.wait_for_revision(wanted, patience_s)
        if self.lags is not None:
            # Measured only here, where the revision comes from the store: a client may ask for any
            # revision. A wait that is given up counts with its full length.
            self.lags.observe(time.monotonic() - began)
        return is_fresh

    async def wait_for_revision(self, revision: int, patience_s: float) -> bool:
        """Wait until the hub has everything up to a revision; False if `patience_s` runs out."""
        if self._hub.is_ready and self._hub.revision >= revision:
            return True
        answer = await self._shell.submit(_READER, Reach(revision), patience_s)
        return not isinstance(answer, HoldfastError)
