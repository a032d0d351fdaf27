"""Connections by themselves: what is cut off, what is let last, and what is said to noise."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from holdfast.host.api.flow.connections import HttpServer, HttpSite, let_last, read_body
from holdfast.host.api.status_objects import of
from holdfast.host.server.client_timeouts import ClientTimeouts
from holdfast.model.errors import Rejected

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
PATIENCE_S = 60.0
# More than all buffers between a server and a client that reads nothing.
MUCH = 64 << 20


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    """Says how long the body is, or what is wrong with it."""
    try:
        return web.Response(text=str(len(await read_body(request, 1_000))))
    except Rejected as error:
        code, body, _ = of(error)
        return web.Response(status=code, body=body)


def served(
    handler: Handler,
    story: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]],
    **patience: float,
) -> Any:
    """What comes of talking to a server that serves every request by this handler."""

    async def run() -> Any:
        times = ClientTimeouts(**patience)
        server = HttpServer(handler, patience=times, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        await HttpSite(runner, "127.0.0.1", 0, None, times).start()
        host, port = runner.addresses[0][:2]
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 16)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await story(reader, writer)
        finally:
            writer.transport.abort()
            await runner.cleanup()

    return asyncio.run(run())


def said(*pieces: bytes) -> Callable[..., Awaitable[bytes]]:
    """Send these and read until the server has nothing more to say."""

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"".join(pieces))
        return await reader.read()

    return story


def test_noise_is_answered_with_a_status_and_logged_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that sends noise must not fill a disk with log lines."""
    answer = served(echo, said(b"\x00\x01 noise\r\n\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head
    assert json.loads(body)["reason"] == "BadRequest"
    assert caplog.records == []


def test_a_bug_is_logged_and_not_shown_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: web.BaseRequest) -> web.StreamResponse:
        raise ValueError("it is hunter2")

    with caplog.at_level(logging.ERROR):
        answer = served(broken, said(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (body["code"], body["reason"]) == (500, "InternalError")
    assert b"hunter2" not in answer
    assert "it is hunter2" in caplog.text


@pytest.mark.parametrize(
    "head, body, code",
    [
        (b"Content-Length: 3", b"abc", 200),
        (b"Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n", 200),
        (b"Content-Length: 3\r\nContent-Encoding: identity", b"abc", 200),
        (b"Content-Length: 3\r\nContent-Encoding: gzip", b"abc", 415),
        (b"Content-Length: 1001", b"", 413),
        (b"Transfer-Encoding: chunked", b"3e9\r\n" + b"a" * 1_001, 413),
        (b"Content-Length: 3", b"", 408),
        (b"Transfer-Encoding: chunked", b"3\r\nab", 408),
    ],
    ids=lambda it: ascii(it)[:40],
)
def test_a_body_is_taken_whole_in_time_or_refused(head: bytes, body: bytes, code: int) -> None:
    request = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%b\r\n\r\n%b" % (head, body)
    answer = served(echo, said(request), body_s=0.2)
    assert int(answer.split()[1]) == code, answer
    if code == 200:
        assert answer.endswith(b"\r\n\r\n3")


async def _for_ever(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)


def test_after_an_answer_to_a_client_that_goes_on_sending_the_connection_ends() -> None:
    """What the client sends is not read for ever, and is never taken for another request."""

    async def at_once(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="no")

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\nno")
        with pytest.raises(ConnectionError):
            await _for_ever(writer, b"GET / HTTP/1.1\r\n\r\n" * 1_000)
        return answer

    assert b"Connection: close" in served(at_once, story)


async def _until_held_back(request: web.BaseRequest) -> None:
    """Write until the client's failure to read holds the writer back."""
    response = web.StreamResponse()
    await response.prepare(request)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await response.write(b"x" * MUCH)
    assert request.protocol.writing_paused


def test_a_client_that_reads_nothing_of_an_answer_is_cut_off() -> None:
    cut = asyncio.Event()

    async def much(request: web.BaseRequest) -> web.StreamResponse:
        try:
            await _until_held_back(request)
            await asyncio.Event().wait()
        finally:
            cut.set()
        raise AssertionError

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await cut.wait()

    served(much, story, write_s=0.1)


def test_a_client_that_pauses_in_a_long_stream_is_not_cut_off() -> None:
    """A log in a pager goes on when its reader turns the page."""
    is_paused, other_is_cut, is_checked = (asyncio.Event() for _ in range(3))

    async def much(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/log":
            let_last(request)
            await _until_held_back(request)
            is_paused.set()
            # The other began later: a timer of this connection would have ended before its timer.
            await other_is_cut.wait()
            assert request.transport is not None
            assert not request.transport.is_closing()
            is_checked.set()
            return web.Response(text="over")
        try:
            await _until_held_back(request)
            await asyncio.Event().wait()
        finally:
            other_is_cut.set()
        raise AssertionError

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /log HTTP/1.1\r\nHost: a\r\n\r\n")
        await is_paused.wait()
        host, port = writer.get_extra_info("peername")
        _, other = await asyncio.open_connection(host, port, limit=1 << 16)
        other.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await is_checked.wait()
        other.transport.abort()

    served(much, story, write_s=0.1)
