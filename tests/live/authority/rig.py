"""Server processes over one store, and what tests do with them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.commit.ledgers.recount import excesses, recount
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.transaction import Record
from holdfast.store.contract import KEY_END, Store
from tests.live.authority.process import Config, open_store
from tests.live.authority.wire import Client

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 120.0
# The pause of a client between two tries.
RETRY_PAUSE_S = 0.05
RETRY_FOR_S = 60.0
# A server that gave no answer is left alone for so long, if there is another.
AVOID_FOR_S = 2.0


class ServerProcess:
    """One server as a process of its own, with a client to it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.client = Client(Path(config.folder) / f"{config.name}.sock")
        self.avoided_until = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, or start it again after it was killed."""
        self.client.path.unlink(missing_ok=True)
        self._process = process = self._spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.client.path.exists():
            if process.poll() is not None:
                raise RuntimeError(f"server {self.config.name} ended: {process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"server {self.config.name} did not start")
            await asyncio.sleep(0.02)

    def _spawn(self) -> subprocess.Popen[bytes]:
        config = msgspec.json.encode(self.config).decode()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.live.authority.process", config],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdin=subprocess.PIPE,
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does: nothing is finished, nothing is said."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    async def stop(self) -> None:
        """End it in order; it must end without an error."""
        await self.client.close()
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await asyncio.to_thread(self._process.wait, 20)
        self._process = None
        assert code == 0, f"server {self.config.name} ended with {code}"

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None


class Servers:
    """Several server processes over one store. Use as an async context manager."""

    def __init__(self, folder: Path, *names: str, **config: Any) -> None:
        self.folder = folder
        self._config = config
        self.all = [
            ServerProcess(Config(name, str(folder), seed=seed, **config))
            for seed, name in enumerate(names)
        ]
        self._turns = itertools.count()
        # How many requests were left without a clear answer.
        self.unclear = 0

    async def __aenter__(self) -> Servers:
        try:
            await asyncio.gather(*(process.start() for process in self.all))
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.kill()
        for process in self.all:
            await process.stop()

    def kill(self) -> None:
        for process in self.all:
            process.kill()

    async def ask(self, identity: Identity, request: Any) -> Any:
        """The answer of any of them, in calm."""
        return await self._next().client.ask(identity, request)

    def _next(self) -> ServerProcess:
        now = time.monotonic()
        process = self.all[next(self._turns) % len(self.all)]
        for _ in self.all:
            if process.avoided_until <= now:
                break
            process = self.all[next(self._turns) % len(self.all)]
        return process

    async def insist(self, identity: Identity, request: Any, timeout_s: float = 3.0) -> Any:
        """The answer of any server, asked again with the same operation id until then.

        This is how components retry: the id makes a second try safe, whatever became of the first.
        """
        assert request.operation
        deadline = time.monotonic() + RETRY_FOR_S
        while True:
            process = self._next()
            answer = await process.client.answer(identity, request, timeout_s)
            if not isinstance(answer, Unavailable | OutcomeUnknown):
                return answer
            self.unclear += isinstance(answer, OutcomeUnknown)
            process.avoided_until = time.monotonic() + AVOID_FOR_S
            assert time.monotonic() < deadline, answer
            await asyncio.sleep(RETRY_PAUSE_S)

    async def check(self) -> None:
        """Recount everything, with a store of our own."""
        store = await open_store(msgspec.structs.replace(self.all[0].config, lossy=0.0))
        try:
            assert await discrepancies(store) == []
        finally:
            await store.close()


async def discrepancies(store: Store) -> list[str]:
    """What the recount of all records of one revision says."""
    records = [record async for record in everything(store)]
    return [*recount(records), *excesses(records)]


async def everything(store: Store) -> AsyncIterator[Record]:
    """All records as of one revision."""
    start: str | None = ""
    at: int | None = None
    while start is not None:
        page = await store.range(start, KEY_END, at=at)
        at = page.revision
        for record in page.records:
            yield record
        start = page.more_from
