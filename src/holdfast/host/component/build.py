"""The components, put together: `scheduler`, `controllers` and `agent` each make one from settings.

`options` calls them with what a command line says; what they make is a `component.Component`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.host.client.access import Access
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.questions import PULSES_PATH
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.component.component_process import Component, Say
from holdfast.host.component.pulse_sender import TIMEOUT_S as PULSE_TIMEOUT_S
from holdfast.host.component.pulse_sender import Feel, PulseSender, pulse_of
from holdfast.host.component.time_zones import zones
from holdfast.host.component.token_fetching import token_fetcher
from holdfast.host.pki.component_credentials import (
    AGENT,
    CONTROLLERS,
    SCHEDULER,
    CertificateRenewal,
    access_of,
    checked_name,
    refuse_authority,
)
from holdfast.host.pki.node_join import join_or_load, renew_certificate
from holdfast.host.pki.trust_seen import TrustFollower
from holdfast.host.process.directory_lock import DirectoryLock
from holdfast.host.runtime.isolation_levels import offered
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.host.tunnel.agent_end import AgentTunnel
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.pulse import Beat
from holdfast.model.requests import Term
from holdfast.model.time import Instant
from holdfast.observe.watch_events import SERVERS

if TYPE_CHECKING:
    from holdfast.correct.controller import Controller


class ComponentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a component's servers are, and who it is to them.

    servers: https addresses, each of one server or of several. Others are found by their leases.
    pki: certificates of its identities.
    name: what this process is called among those of its kind, in all its lives.
    shard: of a scheduler, the part of the tenants that it takes, such as 0/3; empty means all.
    tenants: or the tenants themselves, with commas in between.
    """

    servers: tuple[str, ...]
    pki: Path
    name: str
    shard: str = ""
    tenants: str = ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent.

    data: the directory of everything that it keeps, its own alone.
    pki: its certificate, where it was issued beside the authority; otherwise the node joins with
        `token`.
    isolation: of the work; empty means the strongest that can be had.
    options: what else its operator says about running work.
    """

    servers: tuple[str, ...]
    node: str
    data: Path
    facts: NodeFacts
    pki: Path | None = None
    token: str = ""
    isolation: str = ""
    options: RuntimeOptions = RuntimeOptions()


async def scheduler(origin: ComponentSettings, say: Say = lambda text: None) -> Component:
    """A scheduler that shares the plane with any others."""
    # Each process is one component and loads no other: numbers alone would make an agent a sixth
    # larger.
    from holdfast.host.component.decision_delivery import TIMEOUT_S, DecisionSender
    from holdfast.host.component.plugins import added_filters, added_scorers
    from holdfast.propose.queue.shard import parse_share
    from holdfast.propose.scheduler import Scheduler

    share = parse_share(origin.shard, origin.tenants)
    rng = random.SystemRandom()
    identity = who.scheduler(checked_name(origin.name))
    remote, rotation, trust = await _remote(origin, SCHEDULER, (identity.name,), identity)
    machine = Scheduler(
        origin.name, rng, share=share, filters=added_filters(), scorers=added_scorers()
    )

    def terms() -> dict[str, Term]:
        term = machine.election.term
        return {identity.name: term} if term is not None else {}

    async def send(server: str, body: bytes) -> None:
        await remote.hand_in(identity, server, body, TIMEOUT_S)

    def beats(now: Instant) -> tuple[Beat, ...]:
        scope, term, waiting = machine.election.scope, machine.election.term, len(machine.queue)
        if term is None:
            return (Beat(scope, waiting=waiting),)
        return (Beat(scope, term.epoch, waiting=waiting, backlog=machine.backlog(now)),)

    title = f"scheduler {origin.name}"
    return Component(
        title,
        machine,
        identity,
        remote,
        terms=terms,
        rotation=rotation,
        outbox=DecisionSender(remote.each_server, send),
        pulsing=_pulsing(remote, identity, pulse_of(title, machine.cache, beats)),
        discovering=ServerDiscovery(remote, identity, trust, in_turn=True),
        say=say,
    )


async def controllers(
    origin: ComponentSettings, some: Sequence[Controller] = (), say: Say = lambda text: None
) -> Component:
    """All controllers, or just some; of several such processes one acts for each controller."""
    from holdfast.correct.all_controllers import all_controllers
    from holdfast.correct.controller_runner import ControllerRunner

    rng = random.SystemRandom()
    team = some or all_controllers(zones)
    acting = {it.name: it.identity for it in team}
    name = checked_name(origin.name)
    # One of them reads for all: the collector, who alone follows Secrets, where there is one.
    reader = Identity(name=acting.get("garbage", next(iter(acting.values()))))
    remote, rotation, trust = await _remote(origin, CONTROLLERS, tuple(acting.values()), reader)
    # Any server answers for all whom it hears of; where several are given each is asked as well.
    asked = (*origin.servers, SERVERS) if len(origin.servers) > 1 else (SERVERS,)
    machine = ControllerRunner(team, rng, name=name, servers=asked)

    def terms() -> dict[str, Term]:
        return {acting[name]: term for name, term in machine.terms().items()}

    title = f"controllers {name}"
    pulse = pulse_of(title, machine.cache, machine.beats)
    return Component(
        title,
        machine,
        reader,
        remote,
        terms=terms,
        rotation=rotation,
        pulsing=_pulsing(remote, reader, pulse),
        discovering=ServerDiscovery(remote, reader, trust, in_turn=True),
        say=say,
    )


async def agent(settings: AgentSettings, say: Say = lambda text: None) -> Component:
    """The agent of one node. It joins now if it never did."""
    node = checked_name(settings.node)
    for directory in filter(None, (settings.data, _own_pki(settings), settings.pki)):
        refuse_authority(
            directory,
            AGENT,
            "let the node join (--token-file, without --pki), or remove the key from here",
        )
    holding = await asyncio.to_thread(DirectoryLock, settings.data, node)
    try:
        return await _agent(settings, node, holding, say)
    except BaseException:
        holding.let_go()
        raise


async def _agent(settings: AgentSettings, node: str, holding: DirectoryLock, say: Say) -> Component:
    identity = who.agent(node)
    access = await _access(settings, node, say)
    remote = ApiClient({identity.name: access})

    async def renew(name: str, before: Access) -> Access:
        if settings.pki is None:
            return await renew_certificate(before, node, _own_pki(settings))
        return await asyncio.to_thread(access_of, settings.servers, settings.pki, name)

    runtime = NodeRuntime(
        settings.data,
        node=node,
        address=settings.facts.address or "127.0.0.1",
        isolation=settings.isolation or None,
        options=settings.options,
        fetch_token=token_fetcher(remote, identity),
    )
    rotation = CertificateRenewal({identity.name: remote.access(identity.name)}, renew, remote.take)
    pki = settings.pki if settings.pki is not None else _own_pki(settings)
    trust = TrustFollower(remote, identity, rotation, pki, runtime.refresh_tokens)
    level, notes = await asyncio.to_thread(offered, settings.data, node, settings.options)
    facts = msgspec.structs.replace(
        settings.facts,
        installation=holding.installation,
        isolation=level,
        isolation_notes=notes,
    )
    machine = Agent(node, facts, random.SystemRandom())

    def told_of_revoked(text: str) -> None:
        remote.revoked.learn(text, remote.access(identity.name).ca)

    attending = AgentTunnel(
        node,
        lambda: remote.access(identity.name),
        runtime,
        remote.each_server,
        told_of_revoked,
    )
    remote.on_revoked = attending.connect_again
    return Component(
        f"agent of {node}",
        machine,
        identity,
        remote,
        folder=settings.data / "agent",
        runtime=runtime,
        holding=holding,
        rotation=rotation,
        attending=attending,
        discovering=ServerDiscovery(remote, identity, trust),
        trouble=lambda: machine.trouble,
        say=say,
    )


def _own_pki(settings: AgentSettings) -> Path:
    return settings.data / "pki"


async def _access(settings: AgentSettings, node: str, say: Say) -> Access:
    if settings.pki is None:
        return await join_or_load(settings.servers, node, _own_pki(settings), settings.token, say)
    name = who.agent(node).name
    return await asyncio.to_thread(access_of, settings.servers, settings.pki, name)


async def _remote(
    origin: ComponentSettings, part: str, names: tuple[str, ...], asks: Identity
) -> tuple[ApiClient, CertificateRenewal, TrustFollower]:
    """The way to the servers as each of them, and what keeps it open. `asks` does so for all.
    Raises Invalid.
    """

    def accesses() -> Mapping[str, Access]:
        refuse_authority(
            origin.pki,
            part,
            f"issue its certificates (`holdfast component certificate {part} --out DIR`) and start "
            "it with --pki DIR",
        )
        return {name: access_of(origin.servers, origin.pki, name) for name in names}

    async def renew(name: str, before: Access) -> Access:
        return await asyncio.to_thread(access_of, origin.servers, origin.pki, name)

    found = await asyncio.to_thread(accesses)
    remote = ApiClient(found)
    rotation = CertificateRenewal(found, renew, remote.take)
    return remote, rotation, TrustFollower(remote, asks, rotation, origin.pki)


def _pulsing(remote: ApiClient, sender: Identity, feel: Feel) -> PulseSender:
    """Tells every server how the process is doing."""

    async def send(server: str, body: bytes) -> None:
        await remote.hand_in(sender, server, body, PULSE_TIMEOUT_S, PULSES_PATH)

    return PulseSender(remote.servers, feel, send)
