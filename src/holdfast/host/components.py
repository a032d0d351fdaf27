"""One component process, put together: a machine, its shell, and its way to the servers.

`scheduler`, `controllers` and `agent` make one from settings; `running.until_signal` lets it live.
Nothing here decides anything: a component may be killed at any moment, and a stop in order only
spares others the wait for its leases. An agent's work runs on, held by its shims.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.facts import Facts
from holdfast.correct.controller import Controller
from holdfast.correct.registry import all_controllers
from holdfast.correct.team import Team
from holdfast.host.credentials import access_of
from holdfast.host.holding import Holding
from holdfast.host.joining import joined
from holdfast.host.plugins import added_filters, added_scorers
from holdfast.host.remote import Remote
from holdfast.host.runtime.runtime import Runtime
from holdfast.host.runtime.starting import Options
from holdfast.host.shell import Shell
from holdfast.model import identity as who
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.identity import Identity
from holdfast.model.machine import Machine
from holdfast.model.requests import ReleaseLease, Term
from holdfast.observe.news import SERVERS
from holdfast.propose.scheduler import Scheduler

# A stop in order takes about so long: others take over at once if the leases came back by then.
RELEASE_S = 1.0
TROUBLE_LOOK_S = 1.0

Say = Callable[[str], None]
Terms = Callable[[], Mapping[str, Term]]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a component's servers are, and who it is to them.

    servers: https addresses, each of one server.
    pki: certificates of its identities, or the authority to issue them.
    name: what this process is called among those of its kind, in all its lives.
    """

    servers: tuple[str, ...]
    pki: Path
    name: str


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent.

    data: the directory of everything that it keeps, its own alone.
    pki: the plane's authority, if it is on this machine; otherwise the node joins with `token`.
    isolation: of the work; empty means the strongest that can be had.
    options: what else its operator says about running work.
    """

    servers: tuple[str, ...]
    node: str
    data: Path
    facts: Facts
    pki: Path | None = None
    token: str = ""
    isolation: str = ""
    options: Options = Options()


class Component:
    """One process. `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        title: str,
        machine: Machine,
        identity: Identity,
        remote: Remote,
        *,
        folder: Path | None = None,
        runtime: Runtime | None = None,
        terms: Terms = dict,
        holding: Holding | None = None,
        trouble: Callable[[], str] = str,
        say: Say = lambda text: None,
    ) -> None:
        """`terms` are the leases that the machine holds, by the identity that does.

        `holding` is what others may have when this process has ended. `trouble` is what a person
        has to mend, which is said once.
        """
        self.title, self.machine = title, machine
        self._remote, self._runtime, self._terms = remote, runtime, terms
        self._holding, self._trouble, self._say = holding, trouble, say
        self._telling: asyncio.Task[None] | None = None
        self._was_said = False
        self.shell = Shell(
            machine,
            identity,
            folder=folder,
            peers=remote,
            sources=remote,
            performers=runtime.performers if runtime is not None else None,
        )

    async def start(self) -> None:
        """Let the machine live. Raises with a sentence when this computer cannot carry it."""
        try:
            if self._runtime is not None:
                await self._runtime.start(self.shell.post, self.shell.fail)
            await self.shell.start()
            self._telling = asyncio.create_task(self._tell())
        except BaseException:
            await self._let_go()
            raise

    async def _tell(self) -> None:
        """Say what trouble there is whenever it is another one."""
        said = ""
        while True:
            trouble = self._trouble()
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
        if self._telling is not None:
            self._telling.cancel()
        if self._runtime is not None:
            await self._runtime.stop()
        await self._remote.close()
        if self._holding is not None:
            self._holding.let_go()


async def scheduler(origin: Origin) -> Component:
    """A scheduler that shares the plane with any others."""
    rng = random.SystemRandom()
    identity = who.scheduler(_checked(origin.name))
    remote = await _remote(origin, (identity.name,))
    machine = Scheduler(origin.name, rng, filters=added_filters(), scorers=added_scorers())

    def terms() -> dict[str, Term]:
        term = machine.tenure.term
        return {identity.name: term} if term is not None else {}

    return Component(f"scheduler {origin.name}", machine, identity, remote, terms=terms)


async def controllers(origin: Origin, some: Sequence[Controller] = ()) -> Component:
    """All controllers, or just some; of several such processes one acts for each controller."""
    rng = random.SystemRandom()
    team = some or all_controllers()
    identities = {it.name: it.identity for it in team}
    name = _checked(origin.name)
    remote = await _remote(origin, tuple(identities.values()))
    machine = Team(team, rng, name=name, servers=origin.servers)

    def terms() -> dict[str, Term]:
        return {identities[name]: term for name, term in machine.terms().items()}

    # One of them reads for all: every controller may see everything that the others may.
    reader = Identity(name=next(iter(identities.values())))
    return Component(f"controllers {name}", machine, reader, remote, terms=terms)


async def agent(settings: AgentSettings, say: Say = lambda text: None) -> Component:
    """The agent of one node. It joins now if it never did."""
    node = _checked(settings.node)
    holding = await asyncio.to_thread(Holding, settings.data, node)
    try:
        return await _agent(settings, node, holding, say)
    except BaseException:
        holding.let_go()
        raise


async def _agent(settings: AgentSettings, node: str, holding: Holding, say: Say) -> Component:
    identity = who.agent(node)
    if settings.pki is not None:
        access = await asyncio.to_thread(access_of, settings.servers, settings.pki, identity.name)
    else:
        pki = settings.data / "pki"
        access = await joined(settings.servers, node, pki, settings.token, say)
    runtime = Runtime(
        settings.data,
        node=node,
        address=settings.facts.address or "127.0.0.1",
        isolation=settings.isolation or None,
        options=settings.options,
    )
    facts = msgspec.structs.replace(settings.facts, installation=holding.installation)
    machine = Agent(node, facts, random.SystemRandom())
    return Component(
        f"agent of {node}",
        machine,
        identity,
        Remote({identity.name: access}),
        folder=settings.data / "agent",
        runtime=runtime,
        holding=holding,
        trouble=lambda: machine.trouble,
        say=say,
    )


async def _remote(origin: Origin, identities: tuple[str, ...]) -> Remote:
    def accesses() -> dict[str, Any]:
        return {name: access_of(origin.servers, origin.pki, name) for name in identities}

    return Remote(await asyncio.to_thread(accesses))


def _checked(name: str) -> str:
    """The name, if it can be part of an identity. Raises Invalid."""
    if not who.acts_as(who.scheduler(name)):
        raise Invalid(f"{name[:63]!r} is no name: lower-case letters, digits, - and .")
    return name
