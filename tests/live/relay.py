"""A wire between a client and a server that loses answers on demand.

It passes bytes on as they are, so TLS and certificates are those of the two ends. When told to lose
an answer it lets the request through, waits until the server has answered, and cuts the line: what
was asked for has happened, and the client cannot know.
"""

from __future__ import annotations

import asyncio
import contextlib

PIECE_BYTES = 65_536


class Relay:
    """One port in front of one server. Use as an async context manager."""

    def __init__(self, port: int, at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """`port` is the server's, on the loopback; `at` is where to listen."""
        self._to, self._at = port, at
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        # How many of the next answers get lost, and how many were.
        self.losing = 0
        self.lost = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"https://{self._at[0]}:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, *self._at)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        near, far = writer, None
        try:
            back, far = await asyncio.open_connection("127.0.0.1", self._to)
            there = asyncio.create_task(self._pass(reader, far))
            here = asyncio.create_task(self._answer(back, near))
            await asyncio.wait((there, here), return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            here.cancel()
            await asyncio.gather(there, here, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # The other end learns of it by the closed line.
            pass
        finally:
            for end in (near, far):
                if end is not None:
                    end.transport.abort()
            self._lines.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                writer.write(piece)
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass answers on, until one is to be lost."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self.losing:
                    self.losing -= 1
                    self.lost += 1
                    return
                writer.write(piece)
                await writer.drain()
