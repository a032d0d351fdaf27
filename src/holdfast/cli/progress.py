"""Tells how far something has come that takes longer than a second, on the error output."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# What is over sooner needs no word; on something that is no terminal a line now and then is enough.
FIRST_S = 1.0
TERMINAL_S, LINES_S = 0.2, 5.0
LOOK_S = 0.2
Result = TypeVar("Result")


class Progress:
    """Is told what is being done, from any thread, and tells the person who waits for it."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + FIRST_S
        self._width = 0
        self._now: tuple[str, float] = ("", 0.0)

    def tell(self, what: str, share: float = 0.0) -> None:
        """What is being done, and which share of it is done; 0 where that is not known."""
        self._now = what, share

    async def during(self, work: Awaitable[Result]) -> Result:
        """Wait for it, and show how far it is."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=LOOK_S)
                self._show()
        finally:
            if self._width:
                sys.stderr.write(f"\r{'':<{self._width}}\r")
                sys.stderr.flush()
        return task.result()

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        return await self.during(asyncio.to_thread(work))

    def _show(self) -> None:
        now_s = time.monotonic()
        what, share = self._now
        if now_s < self._next_s or not what:
            return
        self._next_s = now_s + (TERMINAL_S if self._is_terminal else LINES_S)
        far = f"{share:.0%}" if share else f"{now_s - self._began_s:.0f} s"
        text = f"{what} … {far}"
        if self._is_terminal:
            sys.stderr.write(f"\r{text:<{self._width}}")
            self._width = len(text)
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
