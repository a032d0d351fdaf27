"""TLS handshakes under way are few at once, by address and in all."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from holdfast.host.api.flow import handshakes as module
from holdfast.host.api.flow.connections import HttpServer, HttpSite
from holdfast.host.api.flow.handshakes import Handshakes, Ticket
from holdfast.host.pki.certificates import CertificateAuthority, Purpose
from holdfast.host.server.client_timeouts import ClientTimeouts
from tests.patience import PATIENCE_S


async def hello(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="hello")


class Counted(Handshakes):
    """Says when one begins or ends."""

    def __init__(self, most: int, of_address: int) -> None:
        super().__init__(most, of_address)
        self.changed = asyncio.Event()

    def begin(self, address: str) -> Ticket:
        self.changed.set()
        return super().begin(address)

    def end(self, ticket: Ticket) -> None:
        self.changed.set()
        super().end(ticket)


class Listening:
    """A server with caps of its own, and clients that say nothing."""

    def __init__(self, folder: Path, handshakes: Counted) -> None:
        self.handshakes = handshakes
        self._folder, self._silent = folder, list[socket.socket]()

    async def __aenter__(self) -> Listening:
        authority = CertificateAuthority.open(self._folder)
        files = authority.keep(self._folder, "server", "server", Purpose(("localhost",)))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*files)
        patience = ClientTimeouts(tls_s=PATIENCE_S)
        server = HttpServer(hello, patience=patience, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await HttpSite(self._runner, "127.0.0.1", 0, tls, patience, self.handshakes).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._silent:
            client.close()
        await self._runner.cleanup()

    async def silent(self, address: str = "127.0.0.1") -> socket.socket:
        """A client that connects from this address and never begins."""
        client = socket.socket()
        client.setblocking(False)
        client.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        self._silent.append(client)
        return client

    async def ask(self, address: str = "127.0.0.1") -> bytes:
        """What a client hears that does nothing wrong."""
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=trust, local_addr=(address, 0)
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()

    async def until(self, under_way: int) -> None:
        while self.handshakes.under_way != under_way:
            self.handshakes.changed.clear()
            await self.handshakes.changed.wait()


async def is_closed(client: socket.socket) -> bool:
    """Whether the server ends it; waits until it does."""
    try:
        return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionError:
        return True


def test_holding_all_places_of_an_address_keeps_no_client_there_out(tmp_path: Path) -> None:
    """Work on a node has its agent's address: the oldest makes way for the newest."""

    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            Listening(tmp_path, Counted(most=10, of_address=3)) as it,
        ):
            held = [await it.silent() for _ in range(3)]
            await it.until(3)
            assert (await it.ask()).endswith(b"hello")
            assert await is_closed(held[0])
            assert it.handshakes.displaced == 1
            assert it.handshakes.under_way == 2
            assert (await it.ask("127.0.0.2")).endswith(b"hello")
            assert it.handshakes.displaced == 1
            # It goes on without end, and still ends none but its own.
            for _ in range(20):
                await it.silent()
                assert (await it.ask()).endswith(b"hello")
            assert it.handshakes.under_way <= 3

    asyncio.run(story())


def test_the_total_is_bounded_and_the_largest_gives_way(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            Listening(tmp_path, Counted(most=4, of_address=3)) as it,
        ):
            held = [await it.silent(f"127.0.0.{number}") for number in (1, 2, 2, 3)]
            await it.until(4)
            assert (await it.ask("127.0.0.9")).endswith(b"hello")
            assert await is_closed(held[1])
            assert it.handshakes.under_way == 3

    asyncio.run(story())


def test_an_address_with_many_has_less_time_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond half of its places slow ones end long before `--tls-timeout`."""
    monkeypatch.setattr(module, "CROWDED_S", 0.05)

    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S / 2),
            Listening(tmp_path, Counted(most=10, of_address=4)) as it,
        ):
            for _ in range(4):
                await it.silent()
            # Two have all the time that there is; those after them were ended.
            await it.until(4)
            await it.until(2)

    asyncio.run(story())


def test_a_client_that_speaks_no_tls_gives_its_place_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            Listening(tmp_path, Counted(most=1, of_address=1)) as it,
        ):
            client = await it.silent()
            await it.until(1)
            await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\n\r\n")
            await it.until(0)
            assert (await it.ask()).endswith(b"hello")

    asyncio.run(story())
