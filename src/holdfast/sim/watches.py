"""Watch and Unwatch on simulated stores.

A watch collects what it has not delivered when a delivery arrives, not when a change is made: one
event carries all changes since the last, as a busy store's watch does, and a machine that is cut
off finds everything in one batch when it is back. Behind the contract there are only delays,
bookmarks and Expired; a raw store's watch may also lose, repeat and travel in time (`delivery`).
"""

from __future__ import annotations

from holdfast.model.errors import Expired, HoldfastError, invariant
from holdfast.model.machine import Changed, Unwatch, Watch
from holdfast.model.transaction import Change
from holdfast.sim.calls import Calls
from holdfast.sim.cell import Cell
from holdfast.sim.delivery import LOSE, REPEAT, STALE, Deliveries
from holdfast.sim.lives import Lives
from holdfast.sim.storage import SimStore, Storage
from holdfast.store.contract import BOOKMARK_EVERY_S, Batch

_BOOKMARK_US = int(BOOKMARK_EVERY_S * 1e6)
# A watch that cannot reach its machine tries again after so long.
_RETRY_US = 500_000
# A raw watch that travels in time goes back so many revisions at most.
_TRAVEL_REVISIONS = 20


class OpenWatch:
    """One watch of one life of a machine."""

    __slots__ = ("cell", "number", "opened_after", "prefix", "reached", "scheduled", "store")

    def __init__(self, cell: Cell, store: SimStore, effect: Watch) -> None:
        self.cell = cell
        self.store = store
        self.number = effect.watch
        self.prefix = effect.prefix
        self.opened_after = effect.after
        # All changes up to this revision have been delivered.
        self.reached = effect.after
        # Whether a delivery is on the heap.
        self.scheduled = False


class Watches:
    """Performs Watch and Unwatch."""

    def __init__(
        self, world: Lives, storage: Storage, calls: Calls, deliveries: Deliveries
    ) -> None:
        self.world = world
        self._storage = storage
        self._calls = calls
        self._deliveries = deliveries
        self._deliver_handler = self._deliver
        self._last_name: tuple[str, str, tuple[int, int, int]] | None = None
        self._last_batch = Batch(0, ())
        world.perform(Watch, self._watch)
        world.perform(Unwatch, self._unwatch)
        world.crash_hooks.append(self._forget)
        storage.commit_hooks.append(self._on_commit)

    def _watch(self, cell: Cell, effect: Watch) -> None:
        invariant(effect.watch not in cell.watches, f"{cell.name} reuses watch {effect.watch}")
        store = self._storage.of(cell)
        watch = OpenWatch(cell, store, effect)
        cell.watches[effect.watch] = watch
        store.watches.append(watch)
        self._schedule(watch)
        self.world.post(self.world.now_us + _BOOKMARK_US, self._bookmark, watch, None)

    def _unwatch(self, cell: Cell, effect: Unwatch) -> None:
        watch = cell.watches.get(effect.watch)
        if watch is not None:
            self._close(watch)

    def _forget(self, cell: Cell) -> None:
        for watch in list(cell.watches.values()):
            self._close(watch)

    def _close(self, watch: OpenWatch) -> None:
        del watch.cell.watches[watch.number]
        watch.store.watches.remove(watch)

    def expire(self, cell: Cell) -> None:
        """Close all watches of a machine, as a store does that compacted past them."""
        for watch in list(cell.watches.values()):
            self._close(watch)
            error = Expired(f"watch on {watch.prefix} is gone: list again")
            self.world.hand(cell, Changed(watch.number, error))

    def _on_commit(self, store: SimStore, changes: tuple[Change, ...]) -> None:
        for watch in store.watches:
            if not watch.scheduled:
                prefix = watch.prefix
                for change in changes:
                    if change.key.startswith(prefix):
                        self._schedule(watch)
                        break

    def _bookmark(self, _number: int, watch: OpenWatch, _: None) -> None:
        if self._is_open(watch):
            if not watch.scheduled:
                self._schedule(watch)
            self.world.post(self.world.now_us + _BOOKMARK_US, self._bookmark, watch, None)

    def _schedule(self, watch: OpenWatch) -> None:
        watch.scheduled = True
        path = self.world.network.path(watch.store.host, watch.cell.host)
        delay_us = path.delay_us()
        trouble = path.trouble
        if trouble is not None:
            delay_us += trouble.delay_us + int(path.random() * trouble.scatter_us)
        self.world.post(self.world.now_us + delay_us, self._deliver_handler, watch, None)

    def _deliver(self, _number: int, watch: OpenWatch, _: None) -> None:
        if not self._is_open(watch):
            return
        retry_us = self._obstacle_until_us(watch)
        if retry_us > self.world.now_us:
            self.world.post(retry_us, self._deliver_handler, watch, None)
            return
        watch.scheduled = False
        cell, keyspace = watch.cell, watch.store.keyspace
        try:
            batch = self._batch(watch)
        except HoldfastError as error:
            self._close(watch)
            self.world.hand(cell, Changed(watch.number, error))
            return
        before, watch.reached = watch.reached, batch.revision
        if batch.revision < keyspace.revision:
            self._schedule(watch)
        if watch.store.raw_watches:
            self._deliver_raw(watch, batch, before)
        else:
            cell.delivered += 1
            self.world.hand(cell, Changed(watch.number, batch))

    def _batch(self, watch: OpenWatch) -> Batch:
        """What a watch delivers next. Those that have come as far as another see the same."""
        keyspace = watch.store.keyspace
        at = (watch.reached, keyspace.revision, keyspace.compacted)
        name = (watch.store.name, watch.prefix, at)
        if name != self._last_name:
            self._last_batch = keyspace.changes(watch.prefix, after=watch.reached)
            self._last_name = name
        return self._last_batch

    def _obstacle_until_us(self, watch: OpenWatch) -> int:
        """When to try (again) to reach the machine; now if nothing is in the way."""
        world, store = self.world, watch.store
        if not store.host.up or self._calls.lost_on_the_way(store.host, watch.cell.host):
            return world.now_us + _RETRY_US
        stalled_us = 0 if store.trouble is None else store.trouble.stalled_until_us
        return max(stalled_us, self._deliveries.held_until_us(watch.cell))

    def _deliver_raw(self, watch: OpenWatch, batch: Batch, before: int) -> None:
        cell, number = watch.cell, watch.number
        fate = self._deliveries.befalls(cell)
        if fate != LOSE:
            self.world.hand(cell, Changed(number, batch))
        if fate == REPEAT:
            self.world.send(cell, Changed(number, batch), 0)
        elif fate == STALE:
            keyspace = watch.store.keyspace
            since = max(before - _TRAVEL_REVISIONS, watch.opened_after, keyspace.compacted)
            past = keyspace.changes(watch.prefix, after=since).changes
            old = tuple(change for change in past if change.revision <= before)
            self.world.send(cell, Changed(number, Batch(before, old)), 0)

    @staticmethod
    def _is_open(watch: OpenWatch) -> bool:
        return watch.cell.watches.get(watch.number) is watch
