"""Closes the plane to growth before its store is full, so that there is room to make room.

etcd takes no more writes at all at a size of its own (--quota-backend-bytes), and every deletion of
ours also writes: ledgers, the operation, its word for the audit. So from a part of that size on,
what people would add is refused, with a sentence that says what to do; reads, deletions and all
that components do go on. `plane` runs it where the store is etcd; docs/stores.md has the runbook.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from holdfast.host.metrics import Metrics
from holdfast.model.errors import HoldfastError
from holdfast.store.contract import Space, Store

Ask = Callable[[], Awaitable[Space]]

EVERY_S = 5.0
# From this part on people add nothing. Components, deletions and the history that waits to be
# forgotten have the rest.
CLOSED_AT = 0.8
# And below this part they may again: it must not open and close with every deletion.
OPEN_AT = 0.75
_RUNBOOK = 'docs/stores.md, "When etcd is full", says how to make room'


class StoreSpace:
    """See the module's docstring."""

    def __init__(self, space: Ask | None, say: Callable[[str], None]) -> None:
        """`space` asks the store; None where it has no bound of its own."""
        self._space, self._say = space, say
        self.seen: Space | None = None
        self._is_full = False

    async def look(self) -> None:
        """Ask the store how full it is. Raises HoldfastError."""
        if self._space is None:
            return
        seen = self.seen = await self._space()
        bound = OPEN_AT if self._is_full else CLOSED_AT
        is_full = seen.is_closed or seen.in_use >= bound * seen.most
        if is_full and not self._is_full:
            self._say(f"{self._sentence(seen)} {_RUNBOOK}.")
        self._is_full = is_full

    async def look_for_ever(self, every_s: float = EVERY_S) -> None:
        """Again and again, for as long as the server lives."""
        while self._space is not None:
            # What was seen counts until the store answers again.
            with contextlib.suppress(HoldfastError):
                await self.look()
            await asyncio.sleep(every_s)

    def full(self) -> str:
        """Why people may add nothing at the moment; empty while they may."""
        if not self._is_full or self.seen is None:
            return ""
        return f"{self._sentence(self.seen)} Delete what is not needed; {_RUNBOOK}."

    def closed(self) -> str:
        """Why nothing at all can be written at the moment; empty while it can."""
        if self.seen is None or not self.seen.is_closed:
            return ""
        return f"etcd takes no more writes (alarm NOSPACE): only reads are served; {_RUNBOOK}"

    @staticmethod
    def _sentence(seen: Space) -> str:
        return (
            f"the store is nearly full: {seen.in_use >> 20} of {seen.most >> 20} MiB are in use, "
            "so nothing is added at the moment."
        )

    def count(self, metrics: Metrics) -> None:
        """Add it to what the server counts."""
        metrics.gauge(
            "store_in_use_ratio",
            "How much of what the store takes is in use; alarm from 0.8 on, when people's writes "
            "are refused.",
            lambda: self.seen.in_use / self.seen.most if self.seen is not None else 0.0,
        )
        metrics.gauge(
            "store_closed",
            "1 while the store takes no writes at all (etcd's NOSPACE); alarm above 0.",
            lambda: float(self.seen is not None and self.seen.is_closed),
        )


def space_of(store: Store) -> Ask | None:
    """How to ask a store how full it is; None where it has no bound of its own."""
    found: Ask | None = getattr(store, "space", None)
    return found
