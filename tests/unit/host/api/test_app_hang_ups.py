"""A client that hangs up while the store stalls, over real TLS: what was not sent to the store by
then never takes effect, however many requests its body brought.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.server import AuthorityServer
from holdfast.host.api.app import CLIENT_WENT, Api
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.api.objects.slices import SLICE
from holdfast.host.pki.first_trust import establish
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.host.server.forwarding import LINES_MAX, PATH, encode_forward, handlers
from holdfast.host.server.settings import ServerSettings, peer_host
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.read_requests import Reach
from holdfast.model.requests import Create, Forward
from holdfast.model.transaction import Outcome, Put, Transaction
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import GROUP

ADMIN = Identity(name="admin", groups=(ADMINS,))
ONE, TWO = who.server("one"), who.server("two")
TENANTS = f"{keys.OBJECTS}tenants/"
PREFIX = "batch-"


class Stalling(MemoryStore):
    """A store that holds all transactions back while it is stalled, and says what they write."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_reached = asyncio.Event()
        self.sent: set[str] = set()

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        found = [it.key for it in transaction.writes if isinstance(it, Put)]
        names = {key.removeprefix(TENANTS) for key in found if key.startswith(TENANTS + PREFIX)}
        self.sent |= names
        if names:
            self.is_reached.set()
        await self.goes_on.wait()
        return await super().txn(transaction, token=token, timeout_s=timeout_s)

    async def names(self) -> set[str]:
        page = await self.range(TENANTS, keys.after_prefix(TENANTS))
        found = {record.key.removeprefix(TENANTS) for record in page.records}
        return {name for name in found if name.startswith(PREFIX)}


class Rig:
    """Server `one`, which decides, with its own certificate on a loopback port."""

    def __init__(self, folder: Path) -> None:
        self.store = Stalling()
        self.server = AuthorityServer("one", random.Random(1), self.store)
        self.trusts = {
            name: establish(ServerSettings(data=folder / name, name=name, pki=folder / "pki"))
            for name in ("one", "two")
        }
        self.went, self.answered = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Rig:
        hub = WatchHub(Forms())
        self.shells = [
            Shell(self.server, ONE, store=self.store),
            Shell(Renewals("one", FenceTiming()), ONE, store=self.store),
            Shell(hub, ONE, store=self.store),
        ]
        for shell in self.shells:
            await shell.start()
        self.authority, renewals, hub_shell = self.shells
        await hub_shell.ask("test", Reach(0), PATIENCE_S)
        self.api = Api(
            store=self.store,
            authority=self.authority,
            hub=hub,
            hub_shell=hub_shell,
            authenticate=lambda request: ADMIN,
            extras=handlers(self.authority, Metrics(), lambda transport: TWO),
            observer=self._observe,
            renewals=renewals,
            pulses=ComponentPulses("one"),
        )
        self.port = await self.api.start(tls=self.trusts["one"].context())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.goes_on.set()
        await self.api.stop()
        for shell in reversed(self.shells):
            await shell.stop()
        await self.store.close()

    def _observe(self, request: web.BaseRequest, code: int, took_s: float) -> None:
        (self.went if code == CLIENT_WENT else self.answered).set()

    async def send(self, path: str, body: bytes) -> asyncio.StreamWriter:
        """A connection of its own on which this was posted."""
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=self.trusts["two"].peer_context(),
            server_hostname=peer_host("one"),
        )
        head = f"POST {path} HTTP/1.1\r\nHost: one\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return writer

    async def create(self, name: str) -> None:
        """Something that stands behind all that was asked before it, and is decided."""
        tenant = Create(Tenant(ObjectMeta(name=name)))
        await self.authority.ask(ADMIN, tenant, PATIENCE_S)

    async def epoch(self) -> int:
        """The term under which it decides, once it has one."""
        for number in itertools.count():
            if self.server.term is not None:
                return self.server.term.epoch
            await self.create(f"early-{number}")
        raise AssertionError("it never leads")


def _batch(count: int, epoch: int) -> tuple[str, bytes]:
    """As a client sends it: several slices of objects."""
    items = [
        {"kind": "Tenant", "metadata": {"name": f"{PREFIX}{number}"}} for number in range(count)
    ]
    return f"{GROUP}/tenants", msgspec.json.encode(items)


def _forwards(count: int, epoch: int) -> tuple[str, bytes]:
    """As another server sends what it was asked itself."""
    wishes = [Create(Tenant(ObjectMeta(name=f"{PREFIX}{number}"))) for number in range(count)]
    return PATH, b"".join([encode_forward(Forward(ADMIN, wish, epoch)) for wish in wishes])


def play(folder: Path, story: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), Rig(folder) as rig:
            await story(rig)

    asyncio.run(run())


@pytest.mark.parametrize(
    "made, count",
    [(_batch, 2 * SLICE + 10), (_forwards, LINES_MAX)],
    ids=["batch", "forwards"],
)
def test_what_is_undecided_when_its_connection_closes_never_takes_effect(
    tmp_path: Path, made: Callable[[int, int], tuple[str, bytes]], count: int
) -> None:
    """What the store was already given may take effect, and nothing else. [E5, INV3]"""

    async def story(rig: Rig) -> None:
        path, body = made(count, await rig.epoch())
        await rig.create("first")
        rig.store.goes_on.clear()
        wire = await rig.send(path, body)
        await rig.store.is_reached.wait()
        wire.transport.abort()
        await rig.went.wait()
        sent = set(rig.store.sent)
        assert len(sent) == 1
        rig.store.goes_on.set()
        await rig.create("last")
        assert await rig.store.names() == sent
        assert rig.store.sent == sent

    play(tmp_path, story)


def test_a_client_that_stays_gets_all_of_its_batch_after_the_stall(tmp_path: Path) -> None:
    """So that the hanging up, and not the stall, is what the other test has seen."""
    count = SLICE + 10

    async def story(rig: Rig) -> None:
        path, body = _batch(count, await rig.epoch())
        await rig.create("first")
        rig.store.goes_on.clear()
        wire = await rig.send(path, body)
        await rig.store.is_reached.wait()
        rig.store.goes_on.set()
        await rig.answered.wait()
        assert len(await rig.store.names()) == count
        wire.close()

    play(tmp_path, story)
