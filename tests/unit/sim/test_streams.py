"""Streams from a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.model.errors import Unavailable
from holdfast.model.machine import (
    End,
    Ended,
    Leave,
    Left,
    Open,
    Opened,
    Push,
    Pushed,
    Started,
    Wake,
    Woken,
)
from holdfast.model.time import Instant
from holdfast.sim.plan import Fault
from holdfast.sim.streams import KEEP_ALIVE_US
from holdfast.sim.world import World
from tests.unit.sim.machines import Seen, on_start

ITEMS = 50
PERIOD_MS = 100


class _Feed:
    """Pushes 0, 1, 2, … to every open stream."""

    def __init__(self) -> None:
        self.count = 0
        self.streams: list[int] = []

    def __call__(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Opened):
            self.streams.append(stimulus.stream)
        if isinstance(stimulus, (Started, Woken)):
            number, self.count = self.count, self.count + 1
            pushes = [Push(stream, number) for stream in self.streams]
            return (*pushes, Wake("push", now.monotonic_ms + PERIOD_MS))
        return ()


def _world(*faults: Fault, react: Any = None, feed: Any = None) -> tuple[World, Seen, Seen]:
    world = World(0)
    server = Seen(world, feed or _Feed())
    client = Seen(world, react or on_start(Open(1, "server", "all")))
    world.add("server", server)
    world.add("client", client)
    for fault in faults:
        world.faults.schedule(fault)
    return world, client, server


def _items(client: Seen) -> list[int]:
    return [pushed.body for pushed in client.of(Pushed)]


def test_items_arrive_in_order_on_a_path_with_faults() -> None:
    """Losses and scatter slow a stream down, they do not reorder it. [N6]"""
    world, client, _ = _world(
        Fault(0, "loss", "client", "*", for_ms=5_000, amount=400),
        Fault(0, "scatter", "client", "*", for_ms=5_000, amount=700),
    )
    world.run_until(8_000_000)
    items = _items(client)
    assert items == list(range(items[0], items[0] + len(items)))
    assert len(items) > ITEMS
    assert world.injected["loss"] > 5


def test_a_cut_breaks_a_stream_and_both_sides_learn_it_late() -> None:
    """A half-open connection looks healthy until the keep-alive gives up. [N6]"""
    world, client, server = _world(Fault(1_000, "partition", "client", "*", for_ms=3_000))
    world.run_until(30_000_000)
    assert max(client.times_of(Pushed)) < 1_010
    (ended_ms,) = client.times_of(Ended)
    assert ended_ms == pytest.approx(1_000 + KEEP_ALIVE_US / 1000, abs=150)
    assert isinstance(client.of(Ended)[0].body, Unavailable)
    assert len(server.of(Left)) == 1


def test_items_under_way_are_lost_with_a_broken_stream() -> None:
    """An item after a lost one would be a gap that the client cannot notice. [N6]"""
    world, client, _ = _world(
        Fault(0, "delay", "client", "*", for_ms=60_000, amount=2_000),
        Fault(5_000, "partition", "client", "*", for_ms=300),
    )
    world.run_until(15_000_000)
    assert 4_800 < max(client.times_of(Pushed)) < 5_001


def test_a_held_view_sees_the_end_behind_the_items() -> None:
    """The end of a stream does not drop items that are held back. [N6]"""

    def feed(stimulus: Any, _now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Opened):
            return (*(Push(stimulus.stream, n) for n in range(5)), End(stimulus.stream))
        return ()

    world, client, _ = _world(Fault(0, "watch_hold", "client", for_ms=900, nth=3), feed=feed)
    world.run_until(5_000_000)
    assert _items(client) == [0, 1, 2, 3, 4]
    times = client.times_of(Pushed)
    assert times[2] - times[1] >= 900
    assert isinstance(client.log[-1][1], Ended)


def test_a_crashed_server_ends_its_streams_at_once() -> None:
    """The system closes a dead process's connections. [N6]"""
    world, client, _ = _world(Fault(1_000, "crash", "server", for_ms=100))
    world.run_until(5_000_000)
    assert client.times_of(Ended)[0] < 1_020


def test_a_switched_off_server_is_missed_only_by_the_keep_alive() -> None:
    """A computer without power does not close its connections. [N6]"""
    world, client, _ = _world(Fault(1_000, "reboot", "server", for_ms=100))
    world.run_until(30_000_000)
    assert client.times_of(Ended)[0] == pytest.approx(1_000 + KEEP_ALIVE_US / 1000, abs=150)


def test_a_crashed_client_is_left_by_its_server() -> None:
    """The server learns that the client is gone. [N6]"""
    world, _, server = _world(Fault(1_000, "crash", "client", for_ms=100))
    world.run_until(5_000_000)
    assert 1_000 < server.times_of(Left)[0] < 1_020


def test_leaving_stops_the_items() -> None:
    """Nothing of a stream arrives after Leave. [N6]"""

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            return Open(1, "server", "all"), Wake("leave", now.monotonic_ms + 1_000)
        return (Leave(1),) if isinstance(stimulus, Woken) else ()

    world, client, server = _world(react=react)
    world.run_until(5_000_000)
    assert max(client.times_of(Pushed)) < 1_001
    assert len(server.of(Left)) == 1
    assert client.of(Ended) == []


def test_a_server_ends_a_stream_behind_what_it_pushed() -> None:
    """The last item is not overtaken by the end. [N6]"""

    def feed(stimulus: Any, _now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Opened):
            return (*(Push(stimulus.stream, n) for n in range(20)), End(stimulus.stream, "bye"))
        return ()

    world, client, _ = _world(feed=feed)
    world.run_until(5_000_000)
    assert _items(client) == list(range(20))
    assert client.of(Ended) == [Ended(1, "bye")]
    assert isinstance(client.log[-1][1], Ended)


def test_a_stream_to_an_unreachable_server_ends() -> None:
    """The client learns that the address is refused or unknown. [N6]"""
    world, client, _ = _world(react=on_start(Open(1, "nobody", "x"), Open(2, "client", "x")))
    world.run_until(5_000_000)
    assert [ended.stream for ended in client.of(Ended)] == [1]


@pytest.mark.parametrize(
    "kind, expected",
    [("lose", [0, 1, 3, 4]), ("repeat", [0, 1, 2, 2, 3, 4]), ("stale", [0, 1, 2, 0, 3, 4])],
)
def test_the_nth_delivery_is_lost_repeated_or_followed_by_an_old_one(
    kind: str, expected: list[int]
) -> None:
    """A sweep strikes each delivery in turn. [N6]"""
    world, client, _ = _world(Fault(0, f"delivery_{kind}", "client", nth=3))
    world.run_until(5_000_000)
    items = _items(client)
    assert [item - items[0] for item in items][: len(expected)] == expected
    assert world.injected == {f"delivery_{kind}": 1}


def test_a_held_view_gets_everything_later_and_in_order() -> None:
    """A stale view is late, not wrong. [N6]"""
    world, client, _ = _world(Fault(1_000, "watch_hold", "client", for_ms=2_000))
    world.run_until(5_000_000)
    assert [at for at in client.times_of(Pushed) if 1_000 < at < 2_990] == []
    items = _items(client)
    assert items == list(range(items[0], items[0] + len(items)))
