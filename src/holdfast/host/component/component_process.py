"""One component process: a machine, its shell, and its way to the servers, for as long as it lives.

`components` puts one together; `running.until_signal` lets it live. Nothing here decides anything:
a component may be killed at any moment, and a stop in order only spares others the wait for its
leases. An agent's work runs on, held by its shims.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.pki.component_credentials import CertificateRenewal
from holdfast.host.process.directory_lock import DirectoryLock
from holdfast.host.process.shell import Performer, Shell
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.machine import ArchiveRecord, Machine
from holdfast.model.requests import ReleaseLease, Term
from holdfast.observe.watch_events import SERVERS

# A stop in order takes about so long: others take over at once if the leases came back by then.
RELEASE_S = 1.0
TROUBLE_LOOK_S = 1.0

Say = Callable[[str], None]
Terms = Callable[[], Mapping[str, Term]]


class Outbox(Protocol):
    """What brings a machine's records to the servers; see `courier`."""

    def take(self, effect: ArchiveRecord) -> None:
        """Perform the effect, without waiting."""
        ...

    def start(self) -> None:
        """Begin to send."""
        ...

    async def stop(self) -> None:
        """Send what waits once more, then end."""
        ...


class BackgroundTask(Protocol):
    """What tells the servers how a machine is doing; see `pulsing`."""

    def start(self) -> None:
        """Begin to tell."""
        ...

    async def stop(self) -> None:
        """Say no more."""
        ...


class Component:
    """One process. `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        title: str,
        machine: Machine,
        identity: Identity,
        remote: ApiClient,
        *,
        folder: Path | None = None,
        runtime: NodeRuntime | None = None,
        terms: Terms = dict,
        holding: DirectoryLock | None = None,
        rotation: CertificateRenewal | None = None,
        attending: AgentTunnel | None = None,
        outbox: Outbox | None = None,
        pulsing: BackgroundTask | None = None,
        discovering: ServerDiscovery | None = None,
        trouble: Callable[[], str] = str,
        say: Say = lambda text: None,
    ) -> None:
        """`terms` are the leases that the machine holds, by the identity that does.

        `holding` is what others may have when this process has ended, `rotation` renews its
        certificates, `attending` lets people look into its work, `outbox` brings its records to the
        servers, `pulsing` tells them how it is doing, `discovering` finds those that it was not
        given. `trouble` is what a person has to mend, which is said once.
        """
        self.title, self.machine = title, machine
        self._remote, self._runtime, self._terms = remote, runtime, terms
        self._holding, self._trouble, self._say = holding, trouble, say
        self._rotation, self._attending, self._outbox = rotation, attending, outbox
        self._pulsing, self._discovering = pulsing, discovering
        self._tasks: list[asyncio.Task[None]] = []
        self._was_said = False
        self.shell = Shell(
            machine,
            identity,
            folder=folder,
            peers=remote,
            sources=remote,
            performers=_performers(runtime, outbox),
        )

    async def start(self) -> None:
        """Let the machine live. Raises with a sentence when this computer cannot carry it."""
        try:
            if self._runtime is not None:
                await self._runtime.start(self.shell.post, self.shell.fail)
            await self.shell.start()
            self._tasks.append(asyncio.create_task(self._tell()))
            if self._rotation is not None:
                self._tasks.append(asyncio.create_task(self._rotate(self._rotation)))
            if self._attending is not None:
                self._attending.start()
            if self._outbox is not None:
                self._outbox.start()
            if self._discovering is not None:
                self._discovering.start()
            if self._pulsing is not None:
                self._pulsing.start()
        except BaseException:
            await self._let_go()
            raise

    async def _rotate(self, rotation: CertificateRenewal) -> None:
        """Without this the process would end months later, and nobody would know of what."""
        try:
            await rotation.run()
        except Exception as bug:  # noqa: BLE001 - whatever it is, it is said and ends the process
            self.shell.fail(bug)

    async def _tell(self) -> None:
        """Say what trouble there is whenever it is another one."""
        said = ""
        while True:
            trouble = self._trouble()
            if not trouble and self._rotation is not None:
                trouble = self._rotation.trouble
            if trouble and trouble != said:
                self._say(f"{self.title}: {trouble}")
            said = trouble
            await asyncio.sleep(TROUBLE_LOOK_S)

    async def wait(self) -> str:
        """Until the machine has ended: the sentence that says why it did."""
        try:
            await self.shell.wait()
        except Exception as bug:  # noqa: BLE001 - whatever it is, it is said and ends the process
            self._was_said = True
            return f"{self.title} has stopped on a bug: {type(bug).__name__}: {bug}"
        return f"{self.title} has stopped by itself"

    async def stop(self) -> None:
        """End the machine, give back its leases, let go of its connections and its work."""
        try:
            await self.shell.stop()
        except Exception:
            # What broke the machine is raised unless `wait` has said it.
            if not self._was_said:
                raise
        finally:
            await self._release()
            await self._let_go()

    async def _release(self) -> None:
        """Nobody renews any more, so nobody is harmed when these come too late."""
        terms = dict(self._terms())
        await asyncio.gather(*(self._give_back(*held) for held in terms.items()))

    async def _give_back(self, holder: str, term: Term) -> None:
        with contextlib.suppress(HoldfastError):
            await self._remote.ask(Identity(name=holder), SERVERS, ReleaseLease(term), RELEASE_S)

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._attending is not None:
            await self._attending.stop()
        if self._runtime is not None:
            await self._runtime.stop()
        if self._outbox is not None:
            await self._outbox.stop()
        if self._pulsing is not None:
            await self._pulsing.stop()
        if self._discovering is not None:
            await self._discovering.stop()
        await self._remote.close()
        if self._holding is not None:
            self._holding.let_go()


def _performers(runtime: NodeRuntime | None, outbox: Outbox | None) -> dict[type[Any], Performer]:
    """What only this kind of machine asks for."""
    found: dict[type[Any], Performer] = dict(runtime.performers) if runtime is not None else {}
    if outbox is not None:
        found[ArchiveRecord] = outbox.take
    return found
