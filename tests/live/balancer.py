"""A TCP load balancer: each connection goes to the next server that takes it.

It passes bytes on as they are, so TLS and certificates are those of the two ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

PIECE_BYTES = 65_536


class Balancer:
    """One port in front of several. Use as an async context manager."""

    def __init__(self, port: int, to: Sequence[int]) -> None:
        self._port, self._to = port, list(to)
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._turn = 0
        # How many connections each port has taken.
        self.taken: Counter[int] = Counter()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Balancer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Be gone, with all connections."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            self._lines.discard(task)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, far = await self._connected()
        both = [asyncio.create_task(_pass(*way)) for way in ((reader, far), (back, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in both:
                way.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            far.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self._to:
            self._turn += 1
            port = self._to[self._turn % len(self._to)]
            with contextlib.suppress(OSError):
                found = await asyncio.open_connection("127.0.0.1", port)
                self.taken[port] += 1
                return found
        raise ConnectionRefusedError("no server takes connections")


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
