"""Closes the plane to growth before its store is full, so that there is room to make room.

etcd takes no more writes at all at a size of its own (--quota-backend-bytes), and every deletion of
ours also writes: ledgers, the operation, its word for the audit. So from a part of that size on,
what people would add is refused, with a sentence that says what to do; reads, deletions and all
that components do go on. Should it be full all the same (others use the same etcd, or it was given
less room), each server makes room by itself: history that nobody needs is forgotten, members give
back free pages, and the alarm is taken back. `plane` runs it where the store is etcd;
docs/stores.md has the runbook.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from holdfast.host.process.metrics import Metrics
from holdfast.model.errors import HoldfastError
from holdfast.store.contract import Space, Store

Ask = Callable[[], Awaitable[Space]]
Do = Callable[[], Awaitable[None]]

EVERY_S = 5.0
# From this part on people add nothing. Components, deletions and the history that waits to be
# forgotten have the rest.
CLOSED_AT = 0.8
# And below this part they may again: it must not open and close with every deletion.
OPEN_AT = 0.75
# With more than this left the alarm would be raised again by the next writes.
HOPELESS_AT = 0.97
# Servers do not all stop members at the same time, and none does so again and again.
RELIEF_AFTER_S, RELIEF_EVERY_S = 5.0, 60.0
_RUNBOOK = 'docs/stores.md, "When etcd is full", says how to make room'


@runtime_checkable
class _Bounded(Protocol):
    """A store with a bound of its own, which only etcd has. Its module is not loaded for others."""

    async def space(self) -> Space: ...

    async def make_room(self, revision: int) -> None: ...

    async def disarm(self) -> None: ...


class StoreSpace:
    """See the module's docstring."""

    def __init__(
        self,
        space: Ask | None,
        say: Callable[[str], None],
        make_room: Do | None = None,
        disarm: Do | None = None,
    ) -> None:
        """`space` asks the store; None where it has no bound of its own. `make_room` gives back
        all that nobody needs, after which `disarm` lets a full store take writes again.
        """
        self._space, self._say = space, say
        self._make_room, self._disarm = make_room, disarm
        self._relief_s = 0.0
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
                if self.closed():
                    await self._relieve_in_turn()
            await asyncio.sleep(every_s)

    async def _relieve_in_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._relief_s:
            return
        self._relief_s = loop.time() + RELIEF_EVERY_S
        await asyncio.sleep(RELIEF_AFTER_S * random.random())
        await self.look()
        if self.closed():
            await self.relieve()

    async def relieve(self) -> None:
        """Make room in a store that takes no writes, if it can be made. Raises HoldfastError."""
        if self._make_room is None or self._disarm is None:
            return
        try:
            await self._make_room()
            await self.look()
            seen = self.seen
            if seen is None or seen.size >= HOPELESS_AT * seen.most:
                self._say(
                    "etcd takes no more writes, and all that it holds is needed: give its members "
                    f"more room. {_RUNBOOK}."
                )
                return
            await self._disarm()
        except HoldfastError as error:
            self._say(f"etcd takes no writes, and could not be opened again: {error.message}")
            raise
        await self.look()
        if not self.closed():
            self._say("etcd takes writes again: history was forgotten and its members defragmented")

    def full(self) -> str:
        """Why people may add nothing at the moment; empty while they may."""
        if not self._is_full or self.seen is None:
            return ""
        return f"{self._sentence(self.seen)} Delete what is not needed; {_RUNBOOK}."

    def closed(self) -> str:
        """Why nothing at all can be written at the moment; empty while it can."""
        if self.seen is None or not self.seen.is_closed:
            return ""
        return (
            "etcd takes no more writes (alarm NOSPACE): only reads are served until the servers "
            f"have made room; {_RUNBOOK}"
        )

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


def space_of(
    store: Store, say: Callable[[str], None], horizon: Callable[[int], Awaitable[int]]
) -> StoreSpace:
    """What looks after the room of a store. `horizon` says up to where history may be forgotten."""
    if not isinstance(store, _Bounded):
        return StoreSpace(None, say)

    async def make_room() -> None:
        await store.make_room(await horizon(await store.revision()))

    return StoreSpace(store.space, say, make_room, store.disarm)
