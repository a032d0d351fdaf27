"""Streams and watches over the simulated network.

A stream keeps its order. Lost segments slow it down, as retransmissions do; a cut while an item is
under way breaks the stream, and both sides notice only when their keep-alive gives up. `Deliveries`
decides about faults of single items.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.model.errors import Expired, HoldfastError, Unavailable, invariant
from holdfast.model.machine import (
    Changed,
    End,
    Ended,
    Leave,
    Left,
    Open,
    Opened,
    Push,
    Pushed,
    Unwatch,
    Watch,
)
from holdfast.model.transaction import Batch, Change
from holdfast.sim.calls import Calls
from holdfast.sim.cell import Cell
from holdfast.sim.lives import Lives
from holdfast.sim.storage import SimStore, Storage
from holdfast.sim.virtual_network import Path
from holdfast.store.contract import BOOKMARK_EVERY_S

# Faults of a single delivery of a watch or a stream.
#
# The store's contract promises a watch without gaps, so a machine that watches the store through it
# sees only delays, bookmarks and Expired. A stream from a server passes proxies, buffers and
# servers that restart: its items may be lost, repeated, or come from the past. A watch on a raw
# store, below the layer that guarantees the contract, has the same faults (etcd 3.4 does travel in
# time).

LOSE = "lose"
REPEAT = "repeat"
# An old item again after newer ones: from a server that lags behind, or travels in time.
STALE = "stale"
KINDS = (LOSE, REPEAT, STALE)


class Deliveries:
    """Decides about each delivery to a machine."""

    def __init__(self, world: Lives) -> None:
        self._world = world
        self._rng = world.rng("delivery")

    def held_until_us(self, cell: Cell) -> int:
        """When the next delivery to this machine may take place."""
        now_us = self._world.now_us
        if not cell.holds and cell.held_until_us <= now_us:
            return now_us
        if cell.holds:
            for_us = cell.holds.pop(cell.delivered + 1, 0)
            cell.held_until_us = max(cell.held_until_us, now_us + for_us)
        return max(cell.held_until_us, now_us)

    def next_fault(self, cell: Cell) -> str | None:
        """Count a delivery that no contract guards, and return its fault, if any."""
        cell.delivered += 1
        cell.unguarded += 1
        kind = cell.delivery_faults.pop(cell.unguarded, None) if cell.delivery_faults else None
        if kind is None and cell.delivery_permille:
            kind = self._draw_kind(cell)
        if kind is not None:
            self._world.inject(f"delivery_{kind}")
            self._world.note(f"{cell.name} delivery {cell.unguarded}: {kind}")
        return kind

    def _draw_kind(self, cell: Cell) -> str | None:
        for kind, permille in cell.delivery_permille.items():
            if self._rng.random() * 1000 < permille:
                return kind
        return None


# A side that receives nothing for this long considers the other one gone.
KEEP_ALIVE_US = 15_000_000
# A lost segment is sent again after this time.
_RETRANSMIT_US = 200_000
# How many items old an item from the past can be.
_PAST_ITEMS = 8


class Stream:
    """One stream from a client to a server. It is open while both sides know it."""

    __slots__ = ("broken", "client", "down", "last_us", "number", "past", "server", "server_number")

    def __init__(self, client: Cell, number: int, server: Cell, down: Path) -> None:
        self.client = client
        self.number = number
        self.server = server
        # The path of its items, from the server to the client.
        self.down = down
        # Set when the request to open arrives.
        self.server_number = 0
        # Nothing arrives any more, though one side or both have yet to notice.
        self.broken = False
        # Nothing arrives before what was sent earlier.
        self.last_us = 0
        self.past: deque[Any] = deque(maxlen=_PAST_ITEMS)


class Streams:
    """Performs Open, Leave, Push and End."""

    def __init__(self, world: Lives, calls: Calls, deliveries: Deliveries) -> None:
        self.world = world
        self._calls = calls
        self._deliveries = deliveries
        self._rng = world.rng("streams")
        world.perform(Open, self._open)
        world.perform(Leave, self._leave)
        world.perform(Push, self._push)
        world.perform(End, self._end)
        world.crash_hooks.append(self._forget)

    # The client's side -------------------------------------------------------------------------

    def _open(self, cell: Cell, effect: Open) -> None:
        invariant(effect.stream not in cell.streams, f"{cell.name} reuses stream {effect.stream}")
        server = self._calls.find(effect.to, cell)
        if server is None:
            error = Unavailable(f"{effect.to} is not known")
            self.world.send(cell, Ended(effect.stream, error), 0)
            return
        if not cell.identity_at(server):
            error = Unavailable(f"{cell.name} has no credentials for {effect.to}")
            self.world.send(cell, Ended(effect.stream, error), 0)
            return
        path = self.world.network.path
        stream = Stream(cell, effect.stream, server, path(server.host, cell.host))
        cell.streams[effect.stream] = stream
        at_us = self._arrival(stream, path(cell.host, server.host))
        self.world.post(at_us, self._arrive, stream, effect)

    def _arrive(self, number: int, stream: Stream, effect: Open) -> None:
        client, server = stream.client, stream.server
        if not self._known_to_client(stream):
            return
        if self._calls.lost_on_the_way(client.host, server.host):
            self._tell_client(stream, Unavailable("no answer to the open"), KEEP_ALIVE_US)
        elif server.machine is None:
            self._tell_client(stream, Unavailable(f"{server.name} refused the connection"), 0)
        else:
            stream.server_number = number
            server.served[number] = stream
            self.world.hand(server, Opened(number, client.identity_at(server), effect.body))

    def _leave(self, cell: Cell, effect: Leave) -> None:
        stream = cell.streams.pop(effect.stream, None)
        if stream is not None:
            self._tell_server(stream)

    # The server's side -------------------------------------------------------------------------

    def _push(self, cell: Cell, effect: Push) -> None:
        stream = cell.served.get(effect.stream)
        if stream is not None:
            at_us = self._arrival(stream, stream.down)
            self.world.post(at_us, self._item, stream, effect.body)

    def _item(self, _number: int, stream: Stream, body: Any) -> None:
        client = stream.client
        if stream.broken or not self._known_to_client(stream):
            return
        if self._calls.lost_on_the_way(stream.server.host, client.host):
            self.break_off(stream, KEEP_ALIVE_US)
            return
        world = self.world
        held_us = self._deliveries.held_until_us(client)
        if held_us > world.now_us:
            stream.last_us = max(stream.last_us, held_us)
            world.post(held_us, self._item, stream, body)
            return
        fate = self._deliveries.next_fault(client)
        stream.past.append(body)
        if fate != LOSE:
            world.hand(client, Pushed(stream.number, body))
        if fate == REPEAT:
            world.send(client, Pushed(stream.number, body), 0)
        elif fate == STALE:
            world.send(client, Pushed(stream.number, stream.past[0]), 0)

    def _end(self, cell: Cell, effect: End) -> None:
        stream = cell.served.pop(effect.stream, None)
        if stream is not None:
            self._tell_client(stream, effect.body, None)

    # Ends --------------------------------------------------------------------------------------

    def break_off(self, stream: Stream, after_us: int) -> None:
        """Break a stream; both sides notice after this time."""
        stream.broken = True
        if self._known_to_client(stream):
            self._tell_client(stream, Unavailable("the stream broke"), after_us)
        if stream.server_number in stream.server.served:
            del stream.server.served[stream.server_number]
            self.world.send(stream.server, Left(stream.server_number), after_us)

    def _tell_client(self, stream: Stream, body: Any, after_us: int | None) -> None:
        """End the stream for its client, after this time or after all items under way."""
        world = self.world
        if after_us is None:
            at_us = self._arrival(stream, stream.down)
        else:
            at_us = world.now_us + after_us
        world.post(at_us, self._ended, stream, body)

    def _ended(self, _number: int, stream: Stream, body: Any) -> None:
        if not self._known_to_client(stream):
            return
        held_us = self._deliveries.held_until_us(stream.client)
        if held_us > self.world.now_us:
            # After the items that are held back, or they would be lost.
            self.world.post(held_us, self._ended, stream, body)
            return
        del stream.client.streams[stream.number]
        self.world.hand(stream.client, Ended(stream.number, body))

    def _tell_server(self, stream: Stream) -> None:
        server = stream.server
        if server.served.pop(stream.server_number, None) is None:
            return
        path = self.world.network.path(stream.client.host, server.host)
        quiet = path.cut or not stream.client.host.up
        delay_us = KEEP_ALIVE_US if quiet else path.delay_us()
        self.world.send(server, Left(stream.server_number), delay_us)

    def _forget(self, cell: Cell) -> None:
        """Close the connections of a crashed machine; with the power off they stay half open."""
        ours, cell.streams = cell.streams, {}
        for stream in ours.values():
            self._tell_server(stream)
        theirs, cell.served = cell.served, {}
        for stream in theirs.values():
            quiet = not cell.host.up or self.world.network.path(cell.host, stream.client.host).cut
            error = Unavailable(f"{cell.name} is gone")
            self._tell_client(stream, error, KEEP_ALIVE_US if quiet else None)

    # The path ----------------------------------------------------------------------------------

    @staticmethod
    def _known_to_client(stream: Stream) -> bool:
        return stream.client.streams.get(stream.number) is stream

    def _arrival(self, stream: Stream, path: Path) -> int:
        delay_us = path.delay_us()
        trouble = path.trouble
        if trouble is not None:
            delay_us += trouble.delay_us + int(self._rng.random() * trouble.scatter_us)
            if self._rng.random() * 1000 < trouble.loss_permille:
                self.world.inject("loss")
                delay_us += _RETRANSMIT_US
        at_us = self.world.now_us + delay_us
        if at_us > stream.last_us:
            stream.last_us = at_us
        return stream.last_us


# Watch and Unwatch on simulated stores.
#
# A watch collects its changes when a delivery arrives, not when a change is made: one event carries
# all changes since the last, as on a busy store, and a machine that was cut off receives everything
# in one batch. With the contract there are only delays, bookmarks and Expired; a raw store's watch
# may also lose, repeat and travel in time.

_BOOKMARK_US = int(BOOKMARK_EVERY_S * 1e6)
# A watch that cannot reach its machine tries again after this time.
_RETRY_US = 500_000
# The most revisions that a raw watch goes back in time.
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
        """What a watch delivers next. Watches at the same revision share one batch."""
        keyspace = watch.store.keyspace
        at = (watch.reached, keyspace.revision, keyspace.compacted)
        name = (watch.store.name, watch.prefix, at)
        if name != self._last_name:
            self._last_batch = keyspace.changes(watch.prefix, after=watch.reached)
            self._last_name = name
        return self._last_batch

    def _obstacle_until_us(self, watch: OpenWatch) -> int:
        """When to try (again) to reach the machine; now if nothing prevents it."""
        world, store = self.world, watch.store
        if not store.host.up or self._calls.lost_on_the_way(store.host, watch.cell.host):
            return world.now_us + _RETRY_US
        stalled_us = 0 if store.trouble is None else store.trouble.stalled_until_us
        return max(stalled_us, self._deliveries.held_until_us(watch.cell))

    def _deliver_raw(self, watch: OpenWatch, batch: Batch, before: int) -> None:
        cell, number = watch.cell, watch.number
        fate = self._deliveries.next_fault(cell)
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
