"""Forgets the store's history after a while, so that it does not grow for ever.

Whoever reads more slowly than that is told Expired (410) and lists again; nobody is waited for but
the scribe of the audit, who cannot list again what was done. Which revision to forget is decided by
`Horizon`, which has no clock of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.host import clock
from holdfast.model.errors import HoldfastError
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.contract import Store

KEEP_MS = 600_000
# However busy a plane is, no more than this is kept; at 2,000 writes a second it is five minutes.
KEEP_REVISIONS_MAX = 600_000
# However large what is written: an eighth of what etcd takes unless told otherwise. One object of a
# megabyte that changes twenty times a second would fill that within two minutes.
KEEP_BYTES_MAX = 256 << 20
# So often is looked how much there is: a tenant may write much before it is held to its rate.
EVERY_S = 5.0
_log = logging.getLogger(__name__)


class Horizon:
    """Remembers which revision was current when, and so which ones are old."""

    def __init__(
        self,
        keep_ms: int = KEEP_MS,
        keep_max: int = KEEP_REVISIONS_MAX,
        *,
        history: HistoryBytes | None = None,
        keep_bytes: int = KEEP_BYTES_MAX,
    ) -> None:
        """`history` is what a follower of the whole store has counted."""
        self._keep_ms, self._keep_max = keep_ms, keep_max
        self._history, self._keep_bytes = history, keep_bytes
        self._seen: deque[tuple[int, int]] = deque()
        self._forgotten = 0

    def note(self, revision: int, now_ms: int) -> int | None:
        """Take in the current revision; say up to which one history may be forgotten now."""
        self._seen.append((now_ms, revision))
        old = self._forgotten
        while self._seen and now_ms - self._seen[0][0] >= self._keep_ms:
            old = max(old, self._seen.popleft()[1])
        old = max(old, revision - self._keep_max)
        if self._history is not None:
            by_bytes = self._history.revision_before(self._keep_bytes)
            # What was not counted is kept for its time: an estimate must not end anybody's watch.
            if by_bytes > self._history.counted_since:
                old = max(old, min(by_bytes, revision))
        if old <= self._forgotten:
            return None
        self._forgotten = old
        return old


async def compact_for_ever(
    store: Store,
    is_ours: Callable[[], bool],
    horizon: Horizon,
    every_s: float = EVERY_S,
    waits_for: Callable[[int], Awaitable[int]] | None = None,
) -> None:
    """Note the revision now and then, and forget what is old where that is this server's task.

    `waits_for` says how much of that may be forgotten already.
    """
    while True:
        await asyncio.sleep(every_s)
        try:
            upto = horizon.note(await store.revision(), clock.monotonic_ms())
            if upto is not None and is_ours():
                await store.compact(await waits_for(upto) if waits_for is not None else upto)
        except HoldfastError as error:
            # The next round does it; nothing depends on this one.
            _log.warning("history was not forgotten this time: %s", error.message)
