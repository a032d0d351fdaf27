"""Open, Push and their kin over the simulated network.

A stream keeps its order. Losses on the way slow it down, as retransmissions do; a cut that meets an
item breaks it, and both sides learn of that only when their keep-alive gives up. What else may
befall an item is told in `delivery`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.model.errors import Unavailable, invariant
from holdfast.model.machine import End, Ended, Leave, Left, Open, Opened, Push, Pushed
from holdfast.sim.calls import Calls
from holdfast.sim.cell import Cell, Host
from holdfast.sim.delivery import LOSE, REPEAT, STALE, Deliveries
from holdfast.sim.lives import Lives

# A side that hears nothing for so long takes the other for gone.
KEEP_ALIVE_US = 15_000_000
# A lost segment comes again after so long.
_RETRANSMIT_US = 200_000
# An item from the past is at most so many items old.
_PAST_ITEMS = 8


class Stream:
    """One stream from a client to a server. It is alive while both sides know it."""

    __slots__ = ("broken", "client", "last_us", "number", "past", "server", "server_number")

    def __init__(self, client: Cell, number: int, server: Cell) -> None:
        self.client = client
        self.number = number
        self.server = server
        # Given when the request to open arrives.
        self.server_number = 0
        # Nothing comes through any more, though one side or both have yet to notice.
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
        server = self._calls.find(effect.to)
        if server is None:
            error = Unavailable(f"{effect.to} is not known")
            self.world.send(cell, Ended(effect.stream, error), 0)
            return
        stream = Stream(cell, effect.stream, server)
        cell.streams[effect.stream] = stream
        self.world.post(self._arrival(stream, cell.host, server.host), self._arrive, stream, effect)

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
            self.world.hand(server, Opened(number, client.identity, effect.body))

    def _leave(self, cell: Cell, effect: Leave) -> None:
        stream = cell.streams.pop(effect.stream, None)
        if stream is not None:
            self._tell_server(stream)

    # The server's side -------------------------------------------------------------------------

    def _push(self, cell: Cell, effect: Push) -> None:
        stream = cell.served.get(effect.stream)
        if stream is not None:
            at_us = self._arrival(stream, cell.host, stream.client.host)
            self.world.post(at_us, self._item, stream, effect.body)

    def _item(self, _number: int, stream: Stream, body: Any) -> None:
        client = stream.client
        if stream.broken or not self._known_to_client(stream):
            return
        if self._calls.lost_on_the_way(stream.server.host, client.host):
            self.break_off(stream, KEEP_ALIVE_US)
            return
        held_us = self._deliveries.held_until_us(client)
        if held_us > self.world.now_us:
            stream.last_us = max(stream.last_us, held_us)
            self.world.post(held_us, self._item, stream, body)
            return
        fate = self._deliveries.befalls(client)
        stream.past.append(body)
        if fate != LOSE:
            self.world.hand(client, Pushed(stream.number, body))
        if fate == REPEAT:
            self.world.send(client, Pushed(stream.number, body), 0)
        elif fate == STALE:
            self.world.send(client, Pushed(stream.number, stream.past[0]), 0)

    def _end(self, cell: Cell, effect: End) -> None:
        stream = cell.served.pop(effect.stream, None)
        if stream is not None:
            self._tell_client(stream, effect.body, None)

    # Ends --------------------------------------------------------------------------------------

    def break_off(self, stream: Stream, after_us: int) -> None:
        """Let both sides find out, after this time, that nothing comes through any more."""
        stream.broken = True
        if self._known_to_client(stream):
            self._tell_client(stream, Unavailable("the stream broke"), after_us)
        if stream.server_number in stream.server.served:
            del stream.server.served[stream.server_number]
            self.world.send(stream.server, Left(stream.server_number), after_us)

    def _tell_client(self, stream: Stream, body: Any, after_us: int | None) -> None:
        """End the stream for its client, after this time or behind all items under way."""
        world = self.world
        if after_us is None:
            at_us = self._arrival(stream, stream.server.host, stream.client.host)
        else:
            at_us = world.now_us + after_us
        world.post(at_us, self._ended, stream, body)

    def _ended(self, _number: int, stream: Stream, body: Any) -> None:
        if not self._known_to_client(stream):
            return
        held_us = self._deliveries.held_until_us(stream.client)
        if held_us > self.world.now_us:
            # Behind the items that are held back, or they would be lost.
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
        """A crash: the system closes its connections, or, with the power off, nobody does."""
        ours, cell.streams = cell.streams, {}
        for stream in ours.values():
            self._tell_server(stream)
        theirs, cell.served = cell.served, {}
        for stream in theirs.values():
            quiet = not cell.host.up or self.world.network.path(cell.host, stream.client.host).cut
            error = Unavailable(f"{cell.name} is gone")
            self._tell_client(stream, error, KEEP_ALIVE_US if quiet else None)

    # The way -----------------------------------------------------------------------------------

    @staticmethod
    def _known_to_client(stream: Stream) -> bool:
        return stream.client.streams.get(stream.number) is stream

    def _arrival(self, stream: Stream, source: Host, target: Host) -> int:
        path = self.world.network.path(source, target)
        delay_us = path.delay_us()
        trouble = path.trouble
        if trouble is not None:
            delay_us += trouble.delay_us + int(self._rng.random() * trouble.scatter_us)
            if self._rng.random() * 1000 < trouble.loss_permille:
                self.world.inject("loss")
                delay_us += _RETRANSMIT_US
        stream.last_us = max(stream.last_us, self.world.now_us + delay_us)
        return stream.last_us
