"""One component process: a machine, its shell, and its connections to the servers.

`build` makes one; `foreground.until_signal` runs it. Nothing here decides anything: a component may
be killed at any moment, and an orderly stop only spares others the wait for its leases. An agent's
work continues under its shims.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.agent.runtime_protocol import AgentEffect
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.plane_clients import PlaneClients
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.component.plane_connection import PlaneConnection
from holdfast.host.pki.component_credentials import CertificateRenewal
from holdfast.host.process.directory_lock import DirectoryLock
from holdfast.host.process.shell import Performer, Shell
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import ArchiveRecord, Machine, Stimulus
from holdfast.model.requests import ReleaseLease, Term
from holdfast.observe.watch_events import SERVERS

# An orderly stop takes about this long: others take over at once if the leases were released.
RELEASE_S = 1.0
TROUBLE_LOOK_S = 1.0

Say = Callable[[str], None]
Terms = Callable[[], Mapping[str, Term]]


class Outbox(Protocol):
    """Sends a machine's records to the servers; see `decision_delivery`."""

    def take(self, effect: ArchiveRecord) -> None:
        """Perform the effect, without waiting."""
        ...

    def start(self) -> None:
        """Start to send."""
        ...

    async def stop(self) -> None:
        """Send what waits once more, then end."""
        ...


class BackgroundTask(Protocol):
    """A background task of the process; see `pulse_sender`."""

    def start(self) -> None:
        """Start the task."""
        ...

    async def stop(self) -> None:
        """Stop the task."""
        ...


class Component:
    """One process. Call `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        title: str,
        machine: Machine[Stimulus, AgentEffect],
        identity: Identity,
        api_client: ApiClient,
        *,
        folder: Path | None = None,
        runtime: NodeRuntime | None = None,
        terms: Terms = dict,
        directory_lock: DirectoryLock | None = None,
        rotation: CertificateRenewal | None = None,
        tunnel: AgentTunnel | None = None,
        outbox: Outbox | None = None,
        pulses: BackgroundTask | None = None,
        discovery: ServerDiscovery | None = None,
        planes: Sequence[PlaneConnection] = (),
        trouble: Callable[[], str] = str,
        say: Say = lambda text: None,
    ) -> None:
        """`terms` are the leases of the machine, by the identity that holds them.

        `directory_lock` is released when this process has ended, `rotation` renews its
        certificates, `tunnel` serves logs and commands of its work, `outbox` sends its records to
        the servers, `pulses` sends its pulses, `discovery` finds servers that were not configured,
        `planes` are the connections to other planes.
        `trouble` returns a problem that a person must solve, which is reported once.
        """
        self.title, self.machine = title, machine
        self._api_client, self._runtime, self._terms = api_client, runtime, terms
        self._directory_lock, self._trouble, self._say = directory_lock, trouble, say
        self._rotation, self._tunnel, self._outbox = rotation, tunnel, outbox
        self._pulses, self._discovery, self._planes = pulses, discovery, planes
        self._tasks: list[asyncio.Task[None]] = []
        self._was_said = False
        clients = PlaneClients(api_client, {it.plane: it.account for it in planes})
        self.shell = Shell(
            machine,
            identity,
            folder=folder,
            peers=clients,
            sources=clients,
            performers=_performers(runtime, outbox),
        )

    async def start(self) -> None:
        """Start the machine. Raises an error with a message if this computer cannot run it."""
        try:
            if self._runtime is not None:
                await self._runtime.start(self.shell.post, self.shell.fail)
            await self.shell.start()
            self._tasks.append(asyncio.create_task(self._tell()))
            if self._rotation is not None:
                self._tasks.append(asyncio.create_task(self._rotate(self._rotation)))
            if self._tunnel is not None:
                self._tunnel.start()
            if self._outbox is not None:
                self._outbox.start()
            if self._discovery is not None:
                self._discovery.start()
            if self._pulses is not None:
                self._pulses.start()
            for connection in self._planes:
                self._tasks.append(asyncio.create_task(self._rotate(connection.rotation)))
                connection.start()
        except BaseException:
            await self._let_go()
            raise

    async def _rotate(self, rotation: CertificateRenewal) -> None:
        """Run the renewal. A silent failure would end the process months later."""
        try:
            await rotation.run()
        except Exception as bug:  # noqa: BLE001 - any bug is reported and ends the process
            self.shell.fail(bug)

    async def _tell(self) -> None:
        """Report each new problem once."""
        said = ""
        while True:
            trouble = self._trouble()
            if not trouble and self._rotation is not None:
                trouble = self._rotation.trouble
            for connection in self._planes:
                trouble = trouble or connection.trouble
            if trouble and trouble != said:
                self._say(f"{self.title}: {trouble}")
            said = trouble
            await asyncio.sleep(TROUBLE_LOOK_S)

    async def wait(self) -> str:
        """Wait until the machine has ended. Return the message that says why."""
        try:
            await self.shell.wait()
        except Exception as bug:  # noqa: BLE001 - any bug is reported and ends the process
            self._was_said = True
            return f"{self.title} has stopped because of a bug: {type(bug).__name__}: {bug}"
        return f"{self.title} has stopped by itself"

    async def stop(self) -> None:
        """End the machine, release its leases, and close its connections and its work."""
        try:
            await self.shell.stop()
        except Exception:
            # What broke the machine is raised unless `wait` has reported it.
            if not self._was_said:
                raise
        finally:
            await self._release()
            await self._let_go()

    async def _release(self) -> None:
        """Release the leases. They are not renewed any more, so a late release does no harm."""
        terms = dict(self._terms())
        await asyncio.gather(*(self._give_back(*held) for held in terms.items()))

    async def _give_back(self, holder: str, term: Term) -> None:
        with contextlib.suppress(HoldfastError):
            await self._api_client.ask(
                Identity(name=holder), SERVERS, ReleaseLease(term), RELEASE_S
            )

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tunnel is not None:
            await self._tunnel.stop()
        if self._runtime is not None:
            await self._runtime.stop()
        if self._outbox is not None:
            await self._outbox.stop()
        if self._pulses is not None:
            await self._pulses.stop()
        if self._discovery is not None:
            await self._discovery.stop()
        for connection in self._planes:
            await connection.stop()
        await self._api_client.close()
        if self._directory_lock is not None:
            self._directory_lock.release()


def _performers(runtime: NodeRuntime | None, outbox: Outbox | None) -> dict[type[Any], Performer]:
    """Return the performers of this kind of machine."""
    found: dict[type[Any], Performer] = dict(runtime.performers) if runtime is not None else {}
    if outbox is not None:
        found[ArchiveRecord] = outbox.take
    return found
