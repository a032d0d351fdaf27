"""The lines of one watch as they arrive, and how long its server may be silent.

`following` and `tidings` read watches through this. A server says with each bookmark within which
time it tells something again; one that is silent for twice as long hangs, however alive its
connection looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from holdfast.model.errors import Unavailable
from holdfast.observe.followed import SILENCE_MS, silence_ms

SILENCE_S = SILENCE_MS / 1_000
LINE_BYTES_MAX = 8 << 20


class Lines:
    """See the module's docstring."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.silence_s = SILENCE_S

    def expect_within(self, within_ms: int | None) -> None:
        """The server has said when it tells something again, or that it does not say so."""
        self.silence_s = silence_ms(within_ms) / 1_000

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """The whole lines of each piece. Raises TimeoutError when the server is silent."""
        content, rest = self._response.content, b""
        while True:
            async with asyncio.timeout(self.silence_s):
                piece = await content.readany()
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            found = [line for line in lines if line]
            if found:
                yield found
            if len(rest) > LINE_BYTES_MAX:
                raise Unavailable("the server sends a line without end")
