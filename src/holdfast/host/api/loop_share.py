"""Long work in slices: of all that is long, one slice in each turn of the event loop.

A list may look at hundreds of thousands of objects. What it does in one piece everybody else waits
for, leases too; and ten such lists that take turns with each other make each turn ten times as
long. So whoever does something for many objects asks after each whether his slice is over, and
rests until all others that do the same have had one. Short requests are served in every turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

# About what ten requests cost: short enough for leases, long enough that resting costs little.
SLICE_S = 0.002


class LoopShare:
    """The part of the event loop that long work may have. One for each server."""

    def __init__(self) -> None:
        self._resting: deque[asyncio.Future[None]] = deque()
        # Until when long work may go on in this turn of the loop; None before any has begun.
        self._until_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether this turn's slice is used up: whoever asks has to rest."""
        now_s = time.perf_counter()
        if self._until_s is None:
            self._until_s = now_s + SLICE_S
            asyncio.get_running_loop().call_soon(self._turn)
        return now_s >= self._until_s

    async def rest(self) -> None:
        """Until there is a slice for this one, after all that rest already."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._resting.append(turn)
        if self._until_s is None:
            self._until_s = time.perf_counter()
            loop.call_soon(self._turn)
        await turn

    def _turn(self) -> None:
        """The loop has gone round: the next one has a slice."""
        self._until_s = None
        while self._resting:
            turn = self._resting.popleft()
            # One whose client went meanwhile was cancelled.
            if not turn.done():
                turn.set_result(None)
                self._until_s = time.perf_counter() + SLICE_S
                # He is woken with the next turn of the loop, in which this comes after him.
                asyncio.get_running_loop().call_soon(self._turn)
                return
