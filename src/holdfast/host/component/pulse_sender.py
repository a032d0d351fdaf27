"""Sends a component's pulse to each server every few seconds.

`component/build` makes one for a scheduler or the controllers. A pulse that does not arrive is not
sent again: the next one replaces it. Nothing waits for it and nothing is stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.host.process import clock
from holdfast.model.errors import HoldfastError
from holdfast.model.pulse import Beat, Pulse
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache

PULSE_S = 5.0
# A new process acquires its leases one after the other; this reports them soon.
FIRST_PULSES, FIRST_PULSE_S = 10, 1.0
# A server that takes longer gets the next pulse.
TIMEOUT_S = 4.0

# Sends a body to one server, by its address. Raises HoldfastError.
Send = Callable[[str, bytes], Awaitable[None]]
Beats = Callable[[Instant], tuple[Beat, ...]]
Feel = Callable[[Instant], Pulse]


def pulse_of(process: str, cache: Cache, beats: Beats) -> Feel:
    """Return the function that makes the pulse of a process from its machine and cache."""
    began_ms = clock.monotonic_ms()

    def feel(now: Instant) -> Pulse:
        up_ms = max(0, now.monotonic_ms - began_ms)
        age_ms = max(0, cache.age_ms(now))
        return Pulse(process, beats(now), up_ms, age_ms, cache.relists, cache.missed)

    return feel


class PulseSender:
    """See the module's docstring. Call `start` and `stop` on the event loop."""

    def __init__(self, servers: Callable[[], Sequence[str]], feel: Feel, send: Send) -> None:
        """`servers` returns the addresses of all servers."""
        self._servers, self._feel, self._send = servers, feel, send
        self._task: asyncio.Task[None] | None = None
        self._encoder = msgspec.json.Encoder()

    def start(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        for number in itertools.count():
            body = self._encoder.encode(self._feel(clock.now()))
            await asyncio.gather(*(self._tell(server, body) for server in self._servers()))
            await asyncio.sleep(FIRST_PULSE_S if number < FIRST_PULSES else PULSE_S)

    async def _tell(self, server: str, body: bytes) -> None:
        try:
            await self._send(server, body)
        except HoldfastError:
            # It is away, or of another version. It shows the missing pulse itself.
            return
