"""Which requests the load shedder refuses, with what answer, and which it lets through."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.commit.flow.fair_queues import QueueBounds
from holdfast.commit.flow.flow_control import Seats
from holdfast.commit.flow.overload import RejectionReason, overload_error
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.commit.flow.seats import FlowControllers, FlowControlSettings
from holdfast.host.api.flow.connections import Connection, HttpServer
from holdfast.host.api.flow.load_shedder import ArrivalTicket, LoadShedder, answer, is_whole
from holdfast.host.server.client_timeouts import ClientTimeouts
from tests.patience import PATIENCE_S

ANN = Flow(RequestClass.TENANT, "acme", "ann")
BOB = Flow(RequestClass.TENANT, "other", "bob")
SEATS = Seats(1, 2, 2, QueueBounds(100, 100, 100), 200)
TABLE = dict.fromkeys(RequestClass, SEATS)
GET = b"GET /apis HTTP/1.1\r\nHost: a\r\n\r\n"
# More turns of the loop than a connection takes to wait for its next request.
TURNS = 50
POST = b"POST /apis HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


def crowded(count: int = 10) -> FlowControllers:
    """Flow controllers with two requests under way and the others of acme in the queue."""
    controllers = FlowControllers(
        random.Random(1), FlowControlSettings(TABLE, TABLE, is_measured=False)
    )
    for _ in range(count):
        controllers.writes.enter(ANN, 0)
    return controllers


@pytest.mark.parametrize(
    "data, expected",
    [
        (GET, True),
        (POST, True),
        (GET[:-1], False),
        (POST[:-1], False),
        (GET + GET, False),
        (POST + b"x", False),
        (POST.replace(b"Content-Length: 2", b"content-length:  2 "), True),
        (POST.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"), False),
        (POST.replace(b"Host: a", b"Transfer-Encoding: chunked"), False),
        (POST.replace(b"Host: a", b"Content-Length: 2"), False),
        (POST.replace(b"Length: 2", b"Length: " + b"0" * 5_000 + b"2"), False),
        (GET.replace(b"Host: a", b"Transfer-Encoding: chunked"), False),
        (POST.replace(b": 2", b": -2"), False),
        (b"", False),
    ],
)
def test_only_one_whole_request_is_judged_by_its_bytes(data: bytes, expected: bool) -> None:
    """Whatever else arrives is for the parser."""
    assert is_whole(data) is expected


def test_a_refusal_in_bytes_says_what_any_other_does() -> None:
    """A stock client reads the code, Retry-After and a Status. [E6]"""
    head, _, body = answer(overload_error(ANN, RejectionReason.QUEUE_FULL, 3)).partition(
        b"\r\n\r\n"
    )
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 429 Too Many Requests"
    assert "Retry-After: 3" in lines
    assert f"Content-Length: {len(body)}" in lines
    told = msgspec.json.decode(body)
    assert (told["reason"], told["details"]["retryAfterSeconds"]) == ("TooManyRequests", 3)


def test_the_longest_queue_is_shed_and_others_are_let_in() -> None:
    """Enough stand in line that no seat stays empty; a tenant that has none there may come. [G1]"""
    keeper = LoadShedder(crowded())
    assert isinstance(keeper.refusal(ANN, POST), bytes)
    assert isinstance(keeper.refusal(BOB, POST), ArrivalTicket)
    assert isinstance(keeper.refusal(ANN, GET), ArrivalTicket), "reads have their own controller"
    assert keeper.refusal(ANN, POST[:-1]) is None
    assert keeper.refusal(ANN, b"BREW /pot HTTP/1.1\r\n\r\n") is None


def test_without_a_queue_every_client_is_let_in() -> None:
    """The door is no limit of its own."""
    assert isinstance(LoadShedder(crowded(2)).refusal(ANN, POST), ArrivalTicket)


def test_a_crowd_that_comes_at_once_is_counted_before_it_stands_in_line() -> None:
    """Between the door and the line lies a turn of the event loop."""
    keeper = LoadShedder(crowded(2))
    words = [keeper.refusal(ANN, POST) for _ in range(10)]
    passes = [it for it in words if isinstance(it, ArrivalTicket)]
    assert len(passes) == SEATS.most
    for it in passes:
        it.release()
    assert isinstance(keeper.refusal(ANN, POST), ArrivalTicket)


def test_early_refusals_are_counted_like_others() -> None:
    """Operators see them by class, tenant and reason. [M6]"""
    controllers = crowded()
    LoadShedder(controllers).refusal(ANN, POST)
    assert controllers.writes.class_loads(0)[RequestClass.TENANT].refused == {
        RejectionReason.QUEUE_FULL: 1
    }
    assert controllers.writes.tenants[RequestClass.TENANT, "acme"].refused == 1


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.arrived = asyncio.Event()

    def write(self, data: Any) -> None:
        self.sent += bytes(data)
        self.arrived.set()

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        return


async def _served(request: web.BaseRequest) -> web.StreamResponse:
    assert request.method == "GET", "a refused request is never served"
    return web.Response()


async def _ask(connection: Connection, wire: Wire, data: bytes) -> bytes:
    wire.sent = b""
    wire.arrived.clear()
    connection.data_received(data)
    await asyncio.wait_for(wire.arrived.wait(), PATIENCE_S)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return wire.sent


def test_requests_that_are_never_queued_crowd_no_one_out() -> None:
    """Idle connections whose last request was a health check keep no other from the server. [E6]"""

    async def story() -> None:
        keeper = LoadShedder(crowded(2))
        server = HttpServer(_served, patience=ClientTimeouts())
        opened = []
        for _ in range(2 * SEATS.most):
            connection = Connection(server, ClientTimeouts(), loop=asyncio.get_running_loop())
            wire = Wire()
            connection.connection_made(wire)
            await asyncio.sleep(0)
            await _ask(connection, wire, GET)
            connection.load_shedder = (keeper, ANN)
            opened.append(connection)
            assert (await _ask(connection, wire, GET)).startswith(b"HTTP/1.1 200")
        for connection in opened:
            connection.connection_lost(None)

    asyncio.run(story())


def test_a_connection_answers_a_little_later_and_in_order() -> None:
    """A client without an answer does not ask again; one that does gets its first answer."""

    async def story() -> None:
        keeper = LoadShedder(crowded())
        server = HttpServer(_served, patience=ClientTimeouts())
        connection, wire = (
            Connection(server, ClientTimeouts(), loop=asyncio.get_running_loop()),
            Wire(),
        )
        connection.connection_made(wire)
        await asyncio.sleep(0)
        # Before its first request a connection sheds no load: it still waits for a head.
        connection.data_received(GET)
        await asyncio.wait_for(wire.arrived.wait(), PATIENCE_S)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        wire.sent = b""
        wire.arrived.clear()
        connection.load_shedder = (keeper, ANN)
        began = asyncio.get_running_loop().time()
        connection.data_received(POST)
        assert wire.sent == b""
        await asyncio.wait_for(wire.arrived.wait(), PATIENCE_S)
        assert asyncio.get_running_loop().time() - began >= 0.9 * SEATS.patience_ms / 1_000
        assert wire.sent.count(b"HTTP/1.1 429") == 1
        connection.data_received(POST)
        connection.data_received(POST)
        assert wire.sent.count(b"HTTP/1.1 429") == 2
        connection.connection_lost(None)

    asyncio.run(story())
