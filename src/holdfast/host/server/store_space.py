"""Refuses growth before the store is full, so that there is room left to make room.

etcd stops all writes at its quota (--quota-backend-bytes), and every deletion of ours also writes:
ledgers, the operation, its audit record. So from a part of the quota on, people's additions are
refused, with a message that says what to do; reads, deletions and all work of components go on. If
etcd is full all the same (others use it too, or its quota is smaller), each server makes room by
itself: unneeded history is compacted, members are defragmented, and the alarm is disarmed.
`server_process` runs it where the store is etcd; docs/stores.md has the runbook.
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
# From this part of the quota on people add nothing. The rest is for components, deletions and
# history that is not compacted yet.
CLOSED_AT = 0.8
# Below this part they may add again: it must not open and close with every deletion.
OPEN_AT = 0.75
# With more than this in use the next writes would raise the alarm again.
HOPELESS_AT = 0.97
# Servers do not all defragment members at the same time, and none does so too often.
RELIEF_AFTER_S, RELIEF_EVERY_S = 5.0, 60.0
_RUNBOOK = 'docs/stores.md, "When etcd is full", says how to make room'


@runtime_checkable
class _Bounded(Protocol):
    """A store with a quota, which only etcd has. Its module is not loaded for others."""

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
        """`space` asks the store; None where it has no quota. `make_room` removes all unneeded
        history, after which `disarm` lets a full store accept writes again.
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
        """Check at intervals until cancelled."""
        while self._space is not None:
            # The last result counts until the store answers again.
            with contextlib.suppress(HoldfastError):
                await self.look()
                if self.write_refusal():
                    await self._relieve_in_turn()
            await asyncio.sleep(every_s)

    async def _relieve_in_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._relief_s:
            return
        self._relief_s = loop.time() + RELIEF_EVERY_S
        await asyncio.sleep(RELIEF_AFTER_S * random.random())
        await self.look()
        if self.write_refusal():
            await self.relieve()

    async def relieve(self) -> None:
        """Make room in a store that accepts no writes, if possible. Raises HoldfastError."""
        if self._make_room is None or self._disarm is None:
            return
        try:
            await self._make_room()
            await self.look()
            seen = self.seen
            if seen is None or seen.size >= HOPELESS_AT * seen.most:
                self._say(
                    "etcd accepts no writes, and it needs all that it holds: raise the quota of "
                    f"its members. {_RUNBOOK}."
                )
                return
            await self._disarm()
        except HoldfastError as error:
            self._say(f"etcd accepts no writes and could not be reopened: {error.message}")
            raise
        await self.look()
        if not self.write_refusal():
            self._say("etcd accepts writes again: history was compacted and members defragmented")

    def full(self) -> str:
        """Return why people may add nothing at the moment; empty while they may."""
        if not self._is_full or self.seen is None:
            return ""
        return f"{self._sentence(self.seen)} Delete what is not needed; {_RUNBOOK}."

    def write_refusal(self) -> str:
        """Return why nothing can be written at the moment; empty while writes are possible."""
        if self.seen is None or not self.seen.is_closed:
            return ""
        return (
            "etcd accepts no writes (alarm NOSPACE): only reads are served until the servers "
            f"have made room; {_RUNBOOK}"
        )

    @staticmethod
    def _sentence(seen: Space) -> str:
        return (
            f"the store is nearly full: {seen.in_use >> 20} of {seen.most >> 20} MiB are in use, "
            "so nothing can be added at the moment."
        )

    def count(self, metrics: Metrics) -> None:
        """Add these metrics to the server's."""
        metrics.gauge(
            "store_in_use_ratio",
            "Used part of the store's quota; alarm from 0.8 on, when people's writes are refused.",
            lambda: self.seen.in_use / self.seen.most if self.seen is not None else 0.0,
        )
        metrics.gauge(
            "store_closed",
            "1 while the store accepts no writes at all (etcd's NOSPACE); alarm above 0.",
            lambda: float(self.seen is not None and self.seen.is_closed),
        )


def space_of(
    store: Store, say: Callable[[str], None], horizon: Callable[[int], Awaitable[int]]
) -> StoreSpace:
    """Return the watcher of a store's space. `horizon` returns the revision to compact to."""
    if not isinstance(store, _Bounded):
        return StoreSpace(None, say)

    async def make_room() -> None:
        await store.make_room(await horizon(await store.revision()))

    return StoreSpace(store.space, say, make_room, store.disarm)
