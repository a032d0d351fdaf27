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
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import aiohttp

from holdfast.agent.runtime_protocol import Attempt
from holdfast.agent.work import is_ready
from holdfast.host.pki.component_credentials import AGENT
from holdfast.host.pki.join_tokens import create_token, parse
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.plane import Plane
from tests.canaries import plant
from tests.live.part import LOOK_S, START_TIMEOUT_S
from tests.live.plane_process import workload
from tests.live.process_plane import MAIN, ProcessPlane
from tests.live.witness import beats, overlaps, template

# Whether there is time for every pair and every wait, as `make end-to-end-long` says.
IS_LONG = bool(os.environ.get("HOLDFAST_END_TO_END_LONG"))
# Short, so that a test is; long enough that a busy machine with two cores keeps them.
FENCE = ("--self-stop-after", "6", "--stop-grace", "1", "--ack-window", "1", "--kill-bound", "1")
# So long that no machine is too busy for it: what ends by itself then has another cause.
LONG_FENCE = ("--self-stop-after", "180")
PLACE = "web-0"


class WholePlane(ProcessPlane):
    """See the module's docstring. Several servers need a `plane` with a store that they share."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        *,
        plane: Plane = MAIN,
        fence: Sequence[str] = FENCE,
        serve: Sequence[str] = (),
        agent: Sequence[str] = ("--capacity", "cpu=1"),
        tenants: Sequence[str] = ("--single-tenant",),
        joins: bool = False,
        wrap: Mapping[str, Sequence[str]] = MappingProxyType({}),
        given: Sequence[str] | Callable[[int], Sequence[str]] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        """`serve` and `agent` are further options of servers and agents.

        `given` are the addresses that components are started with, or what makes them of the first
        server's port; without them, those of all servers.

        Nodes that join do so with a token each; others are given a certificate.
        """
        super().__init__(folder, *fence, *serve, plane=plane, hosts=hosts, wrap=wrap)
        self.nodes, self._joins = tuple(nodes), joins
        self.witness = folder / "witness"
        self._given = (given(self.server.port) if callable(given) else given) or self.access_urls
        for name in ("scheduler", "controllers"):
            self.add(name, name, *self.reach, *self.credentials(name))
        for node in self.nodes:
            # Work of these tests writes into files of the test, which only the agent's user may.
            where = ("--region", plane.region or "eu", "--zone", f"eu-{node}")
            token = ("--token-file", str(self._token(node)))
            trust = token if joins else self.credentials(AGENT, node)
            data = ("--data", str(folder / node), "--node", node, *trust)
            self.add(node, "agent", *self.reach, *data, *tenants, *where, *agent)
        self._session: aiohttp.ClientSession | None = None
        self._care: asyncio.Task[None] | None = None

    @property
    def reach(self) -> tuple[str, ...]:
        return tuple(word for url in self._given for word in ("--server", url))

    def _token(self, node: str) -> Path:
        return self.folder / f"{node}.token"

    # Its life ------------------------------------------------------------------------------------

    async def open(self) -> None:
        await super().open()
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2.0))
        for node in self.nodes if self._joins else ():
            token = await create_token(self.client, node, timedelta(hours=1))
            plant(parse(token).secret)
            self._token(node).write_text(token)
        await self.begin("scheduler", "controllers", *self.nodes)
        self._care = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        while True:
            for part in self.parts.values():
                part.tend()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        if self._care is not None:
            self._care.cancel()
        # What runs is given up before its agents, so that no test leaves anything behind.
        for node in self.nodes:
            self.parts[node].kill()
            for number in self.shims(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        if self._session is not None:
            await self._session.close()
        await super().close()

    # Looking -------------------------------------------------------------------------------------

    async def replicas(self) -> list[Replica]:
        return [it for it in await super().replicas() if it.spec.workload == "web"]

    async def answer(self, replica: Replica) -> str:
        """What its process says over http; nothing when it does not answer."""
        assert self._session is not None
        address = replica.status.process.addresses.get("http", "")
        try:
            async with self._session.get(f"http://{address}/") as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return ""

    async def ready(self, count: int, timeout_s: float = START_TIMEOUT_S) -> list[Replica]:
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
