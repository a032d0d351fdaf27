"""Sends a scheduler's records to the servers: each server gets all of them.

The scheduler's shell passes every `ArchiveRecord` to `take`, which never blocks and never fails.
One task for each server sends them in batches and retries while they are few. If there are too
many, the oldest are dropped and counted, and the next batch tells the server how many. A server
that is discovered later gets later decisions; one that is gone may be restarting, so its queue is
kept for a while.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.model.errors import HoldfastError, Rejected
from holdfast.model.machine import ArchiveRecord
from holdfast.propose.decision_rounds import DecisionRound

# How long records are collected; no caller waits for them.
GATHER_S = 0.25
# A server accepts bodies of a megabyte. A round has about a hundred bytes for each decision.
BATCH_BYTES_MAX = 700_000
# How far one server may be behind: a few minutes of a busy scheduler.
WAITING_BYTES_MAX = 16 << 20
RETRY_MIN_S = 0.5
RETRY_MAX_S = 30.0
TIMEOUT_S = 10.0
# After this long without a server its queue is dropped.
FORGET_S = 600.0

# Sends a body to one server, by its address. Raises HoldfastError.
Send = Callable[[str, bytes], Awaitable[None]]


class DecisionBatch(msgspec.Struct):
    """A batch of records, and how many decisions were dropped."""

    rounds: Sequence[msgspec.Raw] = ()
    lost: int = 0


class _Line:
    """The queue of one server."""

    def __init__(self) -> None:
        # Encoded rounds, each with its number of decisions.
        self.waiting: deque[tuple[bytes, int]] = deque()
        self.bytes = 0
        self.lost = 0
        self.arrived = asyncio.Event()

    def add(self, data: bytes, size: int) -> None:
        self.waiting.append((data, size))
        self.bytes += len(data)
        while self.bytes > WAITING_BYTES_MAX:
            self._drop()
        self.arrived.set()

    def _drop(self) -> None:
        data, size = self.waiting.popleft()
        self.bytes -= len(data)
        self.lost += size

    def batch(self) -> list[tuple[bytes, int]]:
        """Take the next batch from the queue; a record that is too large for a body is dropped."""
        found: list[tuple[bytes, int]] = []
        taken = 0
        while self.waiting and taken + len(self.waiting[0][0]) <= BATCH_BYTES_MAX:
            data, size = self.waiting.popleft()
            found.append((data, size))
            taken += len(data)
        if not found and self.waiting:
            self._drop()
            return []
        self.bytes -= taken
        return found

    def put_back(self, batch: list[tuple[bytes, int]]) -> None:
        for data, size in reversed(batch):
            self.waiting.appendleft((data, size))
            self.bytes += len(data)


class DecisionSender:
    """See the module's docstring. Call `start` and `stop` on the event loop."""

    def __init__(self, servers: Callable[[], Sequence[str]], send: Send) -> None:
        """`servers` returns the addresses of all servers, each server once."""
        self._send = send
        self._servers = servers
        self._lines: dict[str, _Line] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # When each server was last listed.
        self._seen_s: dict[str, float] = {}
        self._has_started = False
        self._encoder = msgspec.json.Encoder()

    def take(self, effect: ArchiveRecord) -> None:
        """Perform the effect."""
        decided = effect.body
        if isinstance(decided, DecisionRound) and self._has_started:
            self._look_around()
            data, size = self._encoder.encode(decided), decided.size
            for line in self._lines.values():
                line.add(data, size)

    def start(self) -> None:
        self._has_started = True
        self._look_around()

    def _look_around(self) -> None:
        """Keep a queue for each server that is listed now or was recently."""
        now, now_s = self._servers(), asyncio.get_running_loop().time()
        for server in now:
            self._seen_s[server] = now_s
        for server in [it for it, at_s in self._seen_s.items() if now_s - at_s > FORGET_S]:
            del self._seen_s[server], self._lines[server]
            self._tasks.pop(server).cancel()
        for server in now:
            if server not in self._lines:
                line = self._lines[server] = _Line()
                self._tasks[server] = asyncio.create_task(self._deliver(server, line))

    async def stop(self) -> None:
        """Send what waits once more, then end."""
        self._has_started = False
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        last = [self._once(server, line) for server, line in self._lines.items()]
        await asyncio.gather(*last, return_exceptions=True)

    async def _deliver(self, server: str, line: _Line) -> None:
        pause_s = RETRY_MIN_S
        while True:
            await line.arrived.wait()
            await asyncio.sleep(GATHER_S)
            if await self._once(server, line):
                pause_s = RETRY_MIN_S
            else:
                await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
                pause_s = min(RETRY_MAX_S, 2 * pause_s)

    async def _once(self, server: str, line: _Line) -> bool:
        """Send one batch. Return whether it arrived."""
        batch, lost = line.batch(), line.lost
        if not batch and not lost:
            line.arrived.clear()
            return True
        body = self._encoder.encode(DecisionBatch([msgspec.Raw(data) for data, _ in batch], lost))
        try:
            await self._send(server, body)
        except asyncio.CancelledError:
            line.put_back(batch)
            raise
        except Rejected:
            line.lost += sum(size for _, size in batch)
            return True
        except HoldfastError:
            # It may have arrived: a record that arrives twice is stored once.
            line.put_back(batch)
            return False
        line.lost -= lost
        if not line.waiting:
            line.arrived.clear()
        return True
