"""All parts of a plane on one machine, and how they are started and stopped.

`up` is the command around it. The server starts first, since the other parts need its address; they
stop before it, so that they can release their leases.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from holdfast.agent.node_facts import NodeFacts
from holdfast.cli.plane_parts import AGENTS, REGION
from holdfast.cli.processes.supervised_process import Report, SupervisedProcess
from holdfast.host.client import AsyncClient, from_kubeconfig
from holdfast.host.client.server_access import Access
from holdfast.host.component import machine_facts
from holdfast.host.pki.ca_keys import BUNDLE
from holdfast.host.pki.component_credentials import AGENT, identities, provide
from holdfast.host.pki.node_join import NodeFiles, is_refused
from holdfast.host.process.files import PRIVATE_FILE, private_directory
from holdfast.host.server.settings import ListenAddress
from holdfast.model import quantity
from holdfast.model.errors import Conflict, HoldfastError
from holdfast.model.kinds.node import Node, NodePhase

SERVER_START_S = 60.0
PART_START_S = 60.0
NODES_READY_S = 60.0
LOOK_S = 0.2
STOP_S = 6.0
LOGS_LOOK_S = 5.0
CERTIFICATES_LOOK_S = 3_600.0
# When another certificate authority signs, all certificates are renewed soon.
BUNDLE_LOOK_S = 5.0
COMPONENTS, NAME = "components", "main"
SERVER_READY = "Holdfast is ready at "


class LocalPlanePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    server: arguments of the server, except the address on which it listens.
    agents: the number of nodes on this machine, in this region.
    """

    data: Path
    listen: str
    pki: Path
    server: tuple[str, ...]
    agents: int
    region: str = REGION

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.data / "kubeconfig"

    def certificates(self, name: str) -> Path:
        """The directory with a part's certificates; it has no key of the certificate authority."""
        if name in self.nodes:
            return self.data / AGENTS / name / "pki"
        return self.data / COMPONENTS / name

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(1, self.agents + 1))


@contextmanager
def data_directory_lock(data: Path) -> Iterator[None]:
    """Lock the data directory for this process. Raises Conflict when another process holds it."""
    private_directory(data)
    path = data / "up.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise Conflict(
                f"another `holdfast up` (process {holder}) runs on {data}; stop it, or use another "
                "--data and --listen"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def share(agents: int, data: Path) -> tuple[str, ...]:
    """The options that give one of `agents` agents its share of this machine and of this disk."""
    whole = machine_facts.complete_facts(NodeFacts(), data).capacity
    parts = {name: quantity.capacity(name, amount) // agents for name, amount in whole.items()}
    pairs = (f"{name}={quantity.render(name, units)}" for name, units in parts.items())
    return tuple(argument for pair in pairs for argument in ("--capacity", pair))


class LocalPlane:
    """The parts. `start_server`, `start_others`, then `stop`."""

    def __init__(self, plan: LocalPlanePlan, report: Report) -> None:
        self.plan, self.url, self._report = plan, "", report
        logs = private_directory(plan.logs)
        self.server = SupervisedProcess("server", SERVER_READY, logs, report)
        self.others = [
            SupervisedProcess(name, "The ", logs, report)
            for name in ("scheduler", "controllers", *plan.nodes)
        ]

    @property
    def all(self) -> list[SupervisedProcess]:
        return [self.server, *self.others]

    async def start_server(self) -> None:
        """Start the server and wait until it is ready. Raises Unavailable with its last output."""
        server = self.server
        server.arguments = ("serve", "--listen", self.plan.listen, *self.plan.server)
        await server.start()
        line = await server.wait_ready(SERVER_START_S)
        self.url = line.removeprefix(SERVER_READY).strip()
        # A restarted server must keep its port, also where port 0 let the system choose one.
        host = ListenAddress.parse(self.plan.listen).host
        port = self.url.rpartition(":")[2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        server.arguments = ("serve", "--listen", where, *self.plan.server)

    async def start_others(self) -> None:
        """Start the other parts at once and wait until each is ready. Raises Unavailable."""
        for part in self.others:
            part.arguments = self.arguments_of(part.name)
            part.prepare = partial(self.provide, part.name)
            await part.start()
        await asyncio.gather(*(part.wait_ready(PART_START_S) for part in self.others))

    def arguments_of(self, name: str) -> tuple[str, ...]:
        """The arguments of a part other than the server."""
        where = ("--server", self.url)
        if name not in self.plan.nodes:
            return (name, *where, "--pki", str(self.plan.certificates(name)), "--name", NAME)
        number = self.plan.nodes.index(name) + 1
        return (
            "agent",
            *where,
            *("--node", name),
            *("--data", str(self.plan.data / AGENTS / name)),
            # The store, the authority and the administrator's kubeconfig are beside the agents.
            *("--hide", str(self.plan.data)),
            *("--region", self.plan.region),
            *("--zone", f"{self.plan.region}-{number}"),
            *share(self.plan.agents, self.plan.data),
            # All nodes share one network, in which a fixed port is available once.
            *("--port-share", f"{number}/{self.plan.agents}"),
            # Nodes cannot share a GPU; the first node offers it.
            *(("--gpus", "none") if number > 1 else ()),
        )

    async def provide(self, name: str) -> None:
        """Put a part's certificates where it reads them. Raises OSError."""
        plan, into = self.plan, self.plan.certificates(name)
        private_directory(into.parent)
        if name not in plan.nodes:
            await asyncio.to_thread(provide, plan.pki, into, identities(name, NAME))
            return
        files, known = NodeFiles(into), identities(AGENT, name)
        if files.certificate.exists() and await is_refused(_access(self.url, files)):
            # The node was deleted, or its certificate revoked. The user of `up` wants it back.
            files.certificate.unlink()
        # The node renews its certificate itself, as every node does.
        await asyncio.to_thread(provide, plan.pki, into, known, files.certificate.stem)

    async def keep_certificates(self) -> None:
        """Renew the certificates of scheduler and controllers while they run; never returns."""
        bundle, looks = self._bundle(), 0
        while True:
            await asyncio.sleep(BUNDLE_LOOK_S)
            before, bundle, looks = bundle, self._bundle(), looks + 1
            if bundle == before and looks < CERTIFICATES_LOOK_S / BUNDLE_LOOK_S:
                continue
            looks = 0
            for part in self.others:
                if part.name not in self.plan.nodes:
                    try:
                        await self.provide(part.name)
                    except (HoldfastError, OSError) as error:
                        self._report(f"cannot renew the certificates of the {part.name}: {error}")

    def _bundle(self) -> int:
        """A number that changes whenever the server has taken another trust bundle."""
        path = self.plan.pki / BUNDLE
        return path.stat().st_mtime_ns if path.exists() else 0

    async def nodes_ready(self) -> int:
        """The number of ready nodes, once all are ready or the time is over."""
        count, deadline = 0, asyncio.get_running_loop().time() + NODES_READY_S
        async with AsyncClient(from_kubeconfig(self.plan.kubeconfig)) as client:
            while count < self.plan.agents and asyncio.get_running_loop().time() < deadline:
                try:
                    found = (await client.list(Node)).objects
                except HoldfastError:
                    found = ()
                ready = {it.name for it in found if it.status.phase is NodePhase.READY}
                count = len(ready & set(self.plan.nodes))
                await asyncio.sleep(LOOK_S)
        return count

    async def bound_logs(self) -> None:
        """Keep the logs within their bounds; never returns."""
        while True:
            for part in self.all:
                await asyncio.to_thread(part.log.bound)
            await asyncio.sleep(LOGS_LOOK_S)

    async def stop(self) -> None:
        """Stop the server last: the other parts need it to release their leases."""
        await asyncio.gather(*(part.stop(STOP_S) for part in self.others))
        await self.server.stop(STOP_S)


def _access(url: str, files: NodeFiles) -> Access:
    return Access(
        servers=(url,),
        ca=files.authority.read_bytes(),
        certificate=files.certificate.read_bytes(),
        key=files.key.read_bytes(),
    )
