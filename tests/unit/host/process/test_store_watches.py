"""Watches of a machine: in order, one batch at a time, and nothing once closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.model.errors import Expired, OutcomeUnknown, Unavailable
from holdfast.model.machine import Changed, Started, Unwatch, Watch
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.puppet import PERSON, Puppet, obey, play, shell


def test_a_watch_delivers_in_order_until_it_is_closed() -> None:
    """[C8]"""

    async def story() -> None:
        store, puppet = MemoryStore(), Puppet(obey)
        async with shell(puppet, store=store) as one:
            await one.ask(PERSON, [Watch(7, "a", 0)], 5.0)
            # A bookmark says that the watch stands.
            await puppet.told(Changed)
            for n in range(5):
                await store.txn(
                    Transaction(
                        (),
                        (Put("a", b"%d" % n), Put("b", b"")),
                    )
                )
            await puppet.until(lambda: _values(puppet.stimuli) == [b"0", b"1", b"2", b"3", b"4"])
            await one.ask(PERSON, [Unwatch(7), Watch(7, "b", 0)], 5.0)
            await puppet.until(lambda: _values(puppet.stimuli)[5:] == [b""] * 5)
        await store.close()

    play(story())


def _values(stimuli: list[Any]) -> list[bytes]:
    batches = [s.body for s in stimuli if isinstance(s, Changed) and isinstance(s.body, Batch)]
    return [change.value for batch in batches for change in batch.changes]


class Flood(MemoryStore):
    """A watch that always has more, and counts how much of it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    async def _flow(self) -> AsyncIterator[Batch]:
        while True:
            self.given += 1
            yield Batch(self.given)

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        return self._flow()


def test_a_watch_waits_for_its_machine_and_nothing_arrives_after_unwatch() -> None:
    """A slow machine slows the store's reader down; memory does not grow."""

    async def story() -> None:
        def react(stimulus: Any, now: Instant) -> Sequence[Any]:
            if isinstance(stimulus, Started):
                return [Watch(1, "", 0)]
            # The next batch may wait in line already; it must not come any more.
            return (
                [Unwatch(1)]
                if isinstance(stimulus, Changed) and stimulus.body.revision == 3
                else ()
            )

        store, puppet = Flood(), Puppet(react)
        async with shell(puppet, store=store) as one:
            await puppet.told(Changed, 3)
            with pytest.raises(OutcomeUnknown):
                await one.ask(PERSON, (), 0.05)
        revisions = [s.body.revision for s in puppet.stimuli if isinstance(s, Changed)]
        assert revisions == [1, 2, 3]
        assert store.given <= 4
        await store.close()

    play(story())


@pytest.mark.parametrize("how", ["compacted", "closed"])
def test_a_watch_that_is_lost_says_so_once(how: str) -> None:
    """[INV10]"""

    async def story() -> None:
        store, puppet = MemoryStore(), Puppet(obey)
        for _ in range(3):
            await store.txn(Transaction((), (Put("a", b""),)))
        if how == "compacted":
            await store.compact(3)
        async with shell(puppet, store=store) as one:
            await one.ask(PERSON, [Watch(1, "a", 0 if how == "compacted" else 3)], 5.0)
            changed = await puppet.told(Changed)
            if how == "closed":
                await store.close()
                changed = await puppet.told(Changed, 2)
            assert isinstance(changed[-1].body, Expired if how == "compacted" else Unavailable)
            # The number is free again.
            await one.ask(PERSON, [Unwatch(1)], 5.0)
        await store.close()

    play(story())
