"""Delivery of decisions: each server gets all of them, in batches, and losses are counted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.host.component import decision_delivery as subject
from holdfast.host.component.decision_delivery import DecisionSender
from holdfast.model.errors import Rejected, Unavailable
from holdfast.model.machine import ArchiveRecord
from tests.patience import PATIENCE_S
from tests.unit.host.server.test_decision_archive import case, decided


class Servers:
    """Servers that accept what they get, unless they are down or refuse."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = {"a": [], "b": []}
        self.lost: dict[str, int] = {"a": 0, "b": 0}
        self.faults: dict[str, Exception] = {}
        self.refused = 0
        self.asked = asyncio.Event()

    async def send(self, server: str, body: bytes) -> None:
        self.asked.set()
        if server in self.faults:
            self.refused += 1
            raise self.faults[server]
        found = msgspec.json.decode(body)
        self.got[server] += [it["sequence"] for it in found.get("rounds", ())]
        self.lost[server] += found.get("lost", 0)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    monkeypatch.setattr(subject, "GATHER_S", 0.001)
    monkeypatch.setattr(subject, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(subject, "RETRY_MAX_S", 0.002)
    return Servers()


async def until(servers: Servers, true: Any) -> None:
    """Wait until a condition holds, which may change with every request to a server."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            servers.asked.clear()
            await servers.asked.wait()


def record(sequence: int) -> ArchiveRecord:
    return ArchiveRecord(decided(sequence, case("acme", f"r{sequence}-0", f"r{sequence}-1")))


def test_each_server_gets_everything_in_order(servers: Servers) -> None:
    """[M4]"""

    async def story() -> None:
        courier = DecisionSender(lambda: ("a", "b"), servers.send)
        courier.start()
        for sequence in range(1, 30):
            courier.take(record(sequence))
        await until(servers, lambda: len(servers.got["a"]) == len(servers.got["b"]) == 29)
        assert servers.got["a"] == servers.got["b"] == list(range(1, 30))
        await courier.stop()

    asyncio.run(story())


def test_a_server_that_is_found_gets_what_comes_and_one_that_is_gone_is_forgotten(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind one address servers are discovered later; one that restarts is waited for."""

    async def story() -> None:
        known = ["a"]
        courier = DecisionSender(lambda: tuple(known), servers.send)
        courier.start()
        courier.take(record(1))
        known[:] = ["a", "b"]
        courier.take(record(2))
        await until(servers, lambda: servers.got == {"a": [1, 2], "b": [2]})
        known[:] = ["b"]
        courier.take(record(3))
        await until(servers, lambda: servers.got == {"a": [1, 2, 3], "b": [2, 3]})
        monkeypatch.setattr(subject, "FORGET_S", -1.0)
        known[:] = []
        courier.take(record(4))
        monkeypatch.setattr(subject, "FORGET_S", 600.0)
        known[:] = ["b"]
        courier.take(record(5))
        await until(servers, lambda: 5 in servers.got["b"])
        await courier.stop()
        assert servers.got == {"a": [1, 2, 3], "b": [2, 3, 5]}

    asyncio.run(story())


def test_a_server_that_is_down_gets_what_it_missed_and_delays_no_other(servers: Servers) -> None:
    """[C7.5]"""

    async def story() -> None:
        courier = DecisionSender(lambda: ("a", "b"), servers.send)
        servers.faults["b"] = Unavailable("down")
        courier.start()
        for sequence in range(1, 6):
            courier.take(record(sequence))
        await until(servers, lambda: len(servers.got["a"]) == 5)
        assert servers.got["b"] == []
        del servers.faults["b"]
        await until(servers, lambda: len(servers.got["b"]) == 5)
        await courier.stop()

    asyncio.run(story())


def test_what_is_too_much_to_wait_is_lost_and_counted(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are dropped first, and the scheduler's memory does not grow."""
    monkeypatch.setattr(subject, "WAITING_BYTES_MAX", 2_000)

    async def story() -> None:
        courier = DecisionSender(lambda: ("a", "b"), servers.send)
        servers.faults["b"] = Unavailable("down")
        courier.start()
        for sequence in range(1, 101):
            courier.take(record(sequence))
        del servers.faults["b"]
        await until(servers, lambda: servers.got["b"] and servers.got["b"][-1] == 100)
        assert servers.lost["b"] == 2 * (100 - len(servers.got["b"]))
        assert servers.lost["b"] > 0
        await courier.stop()

    asyncio.run(story())


def test_what_a_server_will_never_take_is_not_sent_for_ever(servers: Servers) -> None:
    """[E5]"""

    async def story() -> None:
        courier = DecisionSender(lambda: ("a", "b"), servers.send)
        servers.faults["a"] = Rejected("no")
        courier.start()
        courier.take(record(1))
        await until(servers, lambda: servers.got["b"] == [1])
        await until(servers, lambda: servers.refused > 0)
        del servers.faults["a"]
        courier.take(record(2))
        await until(servers, lambda: servers.got["a"] == [2])
        assert servers.lost["a"] == 2
        await courier.stop()

    asyncio.run(story())


def test_a_stop_sends_what_waits(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GATHER_S", 60.0)

    async def story() -> None:
        courier = DecisionSender(lambda: ("a", "b"), servers.send)
        courier.start()
        courier.take(record(1))
        await courier.stop()
        assert servers.got == {"a": [1], "b": [1]}

    asyncio.run(story())
