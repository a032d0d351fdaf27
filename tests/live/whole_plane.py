"""A whole plane of real processes under a supervisor, whose every part may be killed at any time.

    async with WholePlane(folder, ("n1", "n2")) as plane:
        await plane.apply(1)
        (replica,) = await plane.ready(1)
        plane.kill(replica, "work", "agent")

The parts of one replica's way are `work`, `shim`, `agent`, `server`, `scheduler`, `controllers`.
Whatever ends is started again, as an init system would. The tests and the benchmark of the
end-to-end world share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.agent.work import is_ready
from holdfast.host.client import Access, AsyncClient, from_kubeconfig
from holdfast.host.pki.component_credentials import AGENT, identities, provide
from holdfast.host.pki.join_tokens import create_token, parse
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from tests.canaries import plant
from tests.free_ports import free_ports
from tests.live.names import port_at
from tests.live.plane_process import DIE_WITH_PARENT, PATIENT, ROOT, workload
from tests.live.witness import beats, overlaps, template

PATIENCE_S = 120.0
# Whether there is time for every pair and every wait, as `make end-to-end-long` says.
IS_LONG = bool(os.environ.get("HOLDFAST_END_TO_END_LONG"))
RESTART_PAUSE_S = 0.2
LOOK_S = 0.02
# Short, so that a test is; long enough that a busy machine with two cores keeps them.
FENCE = ("--self-stop-after", "6", "--stop-grace", "1", "--ack-window", "1", "--kill-bound", "1")
# So long that no machine is too busy for it: what ends by itself then has another cause.
LONG_FENCE = ("--self-stop-after", "180")
PLACE = "web-0"
GREETINGS = ("Holdfast is ready", "The ")
_HOST = (sys.executable, "-m", "holdfast.host")


class Part:
    """One process of the plane, in all its lives."""

    def __init__(self, folder: Path, name: str, *arguments: str, wrap: Sequence[str] = ()) -> None:
        """`wrap` is what to put before the command, such as a network of its own."""
        self.name, self.arguments, self._wrap = name, arguments, tuple(wrap)
        # What its next life runs.
        self.program: tuple[str, ...] = _HOST
        self.log = folder / f"{name}.log"
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None
        self._log_from = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self._wrap, *self.program, *self.arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.lives += 1
        self._ended_at = None

    def tend(self) -> None:
        """Start it again a little after it has ended."""
        if self._process is None or self.is_alive:
            return
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        if now - self._ended_at >= RESTART_PAUSE_S:
            self.spawn()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        """For good."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def works(self) -> bool:
        """Whether its present life has said so."""
        text = self.log.read_text()[self._log_from :] if self.is_alive else ""
        return any(line.startswith(GREETINGS) for line in text.splitlines())


class WholePlane:
    """See the module's docstring. Several servers need `store`, the options of one they share."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        *,
        servers: int = 1,
        store: Sequence[str] = (),
        fence: Sequence[str] = FENCE,
        host: str = "127.0.0.1",
        serve: Sequence[str] = (),
        agent: Sequence[str] = ("--capacity", "cpu=1"),
        tenants: Sequence[str] = ("--single-tenant",),
        joins: bool = False,
        wrap: Mapping[str, Sequence[str]] | None = None,
        given: Sequence[str] | Callable[[int], Sequence[str]] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        """`host` is where servers listen, `serve` and `agent` are further options of theirs. With
        `hosts` each server listens at its own, all at the same port.

        `given` are the addresses that components are started with, or what makes them of the first
        server's port; without them, those of all servers.

        Nodes that join do so with a token each; others are given a certificate. `wrap` is
        what to put before the command of a part.
        """
        self.folder, self.nodes, self._joins = folder, tuple(nodes), joins
        self.witness = folder / "witness"
        pki = folder / "pki"
        self.parts: dict[str, Part] = {}
        self._wrap = wrap or {}
        ports = free_ports(servers) if not hosts else [port_at(hosts)] * len(hosts)
        where = hosts or [host] * servers
        urls = [f"https://{it}:{port}" for it, port in zip(where, ports, strict=True)]
        names = [f"server-{n}" for n in range(1, servers + 1)]
        for name, url in zip(names, urls, strict=True):
            at = ("--data", str(folder / name), "--listen", url.removeprefix("https://"))
            made = ("--pki", str(pki), "--name", name, *store, *fence, *serve)
            self.add(name, "serve", *at, *made)
        self.given = tuple((given(ports[0]) if callable(given) else given) or urls)
        reach = tuple(word for url in self.given for word in ("--server", url))
        for name in ("scheduler", "controllers"):
            provide(pki, folder / f"{name}-pki", identities(name, "main"))
            self.add(name, name, *reach, "--pki", str(folder / f"{name}-pki"))
        for node in self.nodes:
            # Work of these tests writes into files of the test, which only the agent's user may.
            place = (*tenants, "--region", "eu", "--zone", f"eu-{node}", *agent)
            if joins:
                trust = ("--token-file", str(self._token(node)))
            else:
                trust = ("--pki", str(folder / f"{node}-pki"))
                provide(pki, folder / f"{node}-pki", identities(AGENT, node))
            data = ("--data", str(folder / node), "--node", node, *trust)
            self.add(node, "agent", *reach, *data, *place)
        self.servers, self.access_urls = names, tuple(urls)
        self._client: AsyncClient | None = None
        self._session: aiohttp.ClientSession | None = None
        self._care: asyncio.Task[None] | None = None

    def add(self, name: str, *arguments: str) -> None:
        wrap = self._wrap.get(name, ())
        self.parts[name] = Part(self.folder, name, *arguments, wrap=wrap)

    def _token(self, node: str) -> Path:
        return self.folder / f"{node}.token"

    # Its life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> WholePlane:
        try:
            # The first one makes the authority that all others need.
            first, *others = self.servers
            await self._begin(first)
            await self._begin(*others)
            self._client = AsyncClient(self.access, policy=PATIENT)
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2.0))
            for node in self.nodes if self._joins else ():
                token = await create_token(self._client, node, timedelta(hours=1))
                plant(parse(token).secret)
                self._token(node).write_text(token)
            await self._begin("scheduler", "controllers", *self.nodes)
            self._care = asyncio.create_task(self._tend())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _begin(self, *names: str) -> None:
        for name in names:
            self.parts[name].spawn()

        async def work() -> bool:
            for name in names:
                assert self.parts[name].is_alive, await self.snapshot()
            return all(self.parts[name].works for name in names)

        await self.until(work)

    async def _tend(self) -> None:
        while True:
            for part in self.parts.values():
                part.tend()
            await asyncio.sleep(LOOK_S)

    async def _close(self) -> None:
        if self._care is not None:
            self._care.cancel()
        # What runs is given up before its agents, so that no test leaves anything behind.
        for node in self.nodes:
            self.parts[node].end()
            for number in self.shims(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        for part in self.parts.values():
            part.end()
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            await self._client.close()

    # Looking -------------------------------------------------------------------------------------

    @property
    def access(self) -> Access:
        """The administrator's, to all servers."""
        found = from_kubeconfig(self.folder / self.servers[0] / "kubeconfig")
        return msgspec.structs.replace(found, servers=self.access_urls)

    @property
    def client(self) -> AsyncClient:
        assert self._client is not None
        return self._client

    async def until(
        self, holds: Callable[[], Awaitable[Any]], timeout_s: float = PATIENCE_S
    ) -> Any:
        """What is seen, once there is something to see."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = await holds()
            if seen:
                return seen
            assert time.monotonic() < deadline, await self.snapshot()
            await asyncio.sleep(LOOK_S)

    async def snapshot(self) -> str:
        """All that helps to understand why something did not come true."""
        told = []
        if self._client is not None:
            with contextlib.suppress(HoldfastError):
                told += [f"{it.name}: {it.status}" for it in await self.replicas()]
        for part in self.parts.values():
            text = part.log.read_text() if part.log.exists() else ""
            told.append(f"{part.name}, life {part.lives}: {text[-400:]}")
        return "\n".join(told)

    async def replicas(self) -> list[Replica]:
        found = (await self.client.list(Replica, "default")).objects
        return sorted((it for it in found if it.spec.workload == "web"), key=lambda it: it.name)

    async def answer(self, replica: Replica) -> str:
        """What its process says over http; nothing when it does not answer."""
        assert self._session is not None
        address = replica.status.process.addresses.get("http", "")
        try:
            async with self._session.get(f"http://{address}/") as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return ""

    async def ready(self, count: int, timeout_s: float = PATIENCE_S) -> list[Replica]:
        """The replicas, once this many are there, and ready, and answer, and every part works."""

        async def look() -> list[Replica]:
            seen = await self.replicas()
            is_so = len(seen) == count and all(map(is_ready, seen))
            is_so = is_so and all(part.works for part in self.parts.values())
            answered = [await self.answer(it) for it in seen] if is_so else []
            return seen if is_so and all(answered) else []

        return list(await self.until(look, timeout_s))

    def check_witness(self) -> None:
        """No two processes of one place ever lived at once."""
        found = overlaps(beats(self.witness))
        assert not found, found[:5]

    # Acting --------------------------------------------------------------------------------------

    async def apply(self, count: int, manner: str = "") -> Workload:
        spec = template(self.witness, manner)
        return await self.client.create(workload("web", replicas=count, template=spec))

    async def scale(self, count: int) -> None:
        await self.client.scale(Workload, "web", "default", count)

    def shims(self, node: str) -> list[int]:
        """The shims of all work that runs on a node."""
        attempts = AttemptFolders(self.folder / node)
        if not attempts.root.exists():
            return []
        found = []
        for uid in attempts.uids():
            for number in attempts.numbers(uid):
                with contextlib.suppress(FileNotFoundError):
                    seen = attempts.look(Attempt(uid, number))
                    found += [seen.state.shim.pid] if seen.is_alive and seen.state else []
        return found

    def pid_of(self, role: str, replica: Replica) -> int:
        """The process of a role on the way of this replica."""
        binding = replica.status.binding
        assert binding is not None
        match role:
            case "work":
                return int(replica.status.process.id.split("/")[1])
            case "shim":
                attempts, uid = AttemptFolders(self.folder / binding.node), replica.metadata.uid
                seen = attempts.look(Attempt(uid, attempts.numbers(uid)[0]))
                assert seen.state is not None
                return seen.state.shim.pid
            case "agent":
                return self.parts[binding.node].pid
            case "server":
                return self.parts[self.servers[0]].pid
        return self.parts[role].pid

    def kill(self, replica: Replica, *roles: str) -> None:
        """As kill -9 does, all at once."""
        for pid in [self.pid_of(role, replica) for role in roles]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
