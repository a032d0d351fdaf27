"""An idle TLS connection keeps little memory, and a large body still comes through it."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from pathlib import Path

import pytest

from holdfast.host.api.flow.connections import RECEIVE_BYTES, receive_into_small_buffers
from holdfast.host.pki.certificates import CertificateAuthority, Purpose


def test_a_connection_receives_into_a_small_buffer_whatever_it_receives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    sizes: set[int] = set()
    get_buffer = sslproto.SSLProtocol.get_buffer

    def measured(self: sslproto.SSLProtocol, hint: int) -> memoryview:
        buffer: memoryview = get_buffer(self, hint)
        sizes.add(len(buffer))
        return buffer

    monkeypatch.setattr(sslproto.SSLProtocol, "get_buffer", measured)
    receive_into_small_buffers()
    asyncio.run(_echo(tmp_path))
    assert sizes == {RECEIVE_BYTES}


async def _echo(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path)
    files = authority.keep(tmp_path, "server", "server", Purpose(("localhost",)))
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(*files)
    sent = bytes(range(256)) * 2_048

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(sent)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=inside)
    outside = ssl.create_default_context(cadata=authority.pem.decode())
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=outside, server_hostname="localhost"
    )
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    server.close()
    await server.wait_closed()
