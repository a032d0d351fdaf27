"""Builds the components: `scheduler`, `controllers` and `agent` each make one from settings.

`options` calls them with the settings of a command line; they return a `Component`.
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
from holdfast.host.client.api_client import ApiClient
from holdfast.host.client.request_calls import PULSES_PATH
from holdfast.host.client.server_access import Access
from holdfast.host.client.server_discovery import ServerDiscovery
from holdfast.host.component.component_process import Component, Say
from holdfast.host.component.plane_connection import PlaneConnection
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
from holdfast.host.pki.trust_follower import TrustFollower
from holdfast.host.process.directory_lock import DirectoryLock
from holdfast.host.runtime.isolation_levels import offered_isolation
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


class OtherPlane(msgspec.Struct, frozen=True, kw_only=True):
    """Another plane with which a component works.

    plane: its name; the component's machine asks its servers at NAME/servers.
    servers: https addresses of its servers.
    pki: the certificate that it has issued to the component, and what to trust there.
    identity: who the component is in that plane.
    """

    plane: str
    servers: tuple[str, ...]
    pki: Path
    identity: str


class ComponentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a component, and its credentials.

    servers: https addresses, each of one server or of several. Others are discovered by leases.
    pki: certificates of its identities.
    name: the name of this process among those of its kind, the same after a restart.
    shard: of a scheduler, its part of the tenants, such as 0/3; empty means all.
    tenants: or the names of its tenants, separated by commas.
    planes: other planes with which it works.
    """

    servers: tuple[str, ...]
    pki: Path
    name: str
    shard: str = ""
    tenants: str = ""
    planes: tuple[OtherPlane, ...] = ()


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent.

    data: the directory of everything that it stores, not shared with others.
    pki: its certificate, if issued beside the authority; otherwise the node joins with `token`.
    isolation: of the work; empty means the strongest available.
    options: further settings of the runtime.
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
    """Build a scheduler, which may run beside others."""
    # Imported on use: a process is one component, and the numeric library alone would make an agent
    # a sixth larger.
    from holdfast.host.component.decision_delivery import TIMEOUT_S, DecisionSender
    from holdfast.host.component.plugins import added_filters, added_scorers
    from holdfast.propose.queue.shard import parse_share
    from holdfast.propose.scheduler import Scheduler

    share = parse_share(origin.shard, origin.tenants)
    rng = random.SystemRandom()
    identity = who.scheduler(checked_name(origin.name))
    api_client, rotation, trust = await _api_client(
        origin.servers, origin.pki, SCHEDULER, (identity.name,), identity
    )
    machine = Scheduler(
        origin.name, rng, share=share, filters=added_filters(), scorers=added_scorers()
    )

    def terms() -> dict[str, Term]:
        term = machine.election.term
        return {identity.name: term} if term is not None else {}

    async def send(server: str, body: bytes) -> None:
        await api_client.hand_in(identity, server, body, TIMEOUT_S)

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
        api_client,
        terms=terms,
        rotation=rotation,
        outbox=DecisionSender(api_client.each_server, send),
        pulses=_pulses(api_client, identity, pulse_of(title, machine.cache, beats)),
        discovery=ServerDiscovery(api_client, identity, trust, in_turn=True),
        say=say,
    )


async def controllers(
    origin: ComponentSettings, some: Sequence[Controller] = (), say: Say = lambda text: None
) -> Component:
    """Build all controllers, or some; of several such processes one acts for each controller."""
    from holdfast.correct.all_controllers import all_controllers
    from holdfast.correct.controller_runner import ControllerRunner

    rng = random.SystemRandom()
    own = some or all_controllers(zones)
    acting = {it.name: it.identity for it in own}
    name = checked_name(origin.name)
    # One identity reads for all: that of the collector, which alone watches Secrets, if it runs.
    reader = Identity(name=acting.get("garbage", next(iter(acting.values()))))
    api_client, rotation, trust = await _api_client(
        origin.servers, origin.pki, CONTROLLERS, tuple(acting.values()), reader
    )
    planes = [await _connection(it) for it in origin.planes]
    # Any server answers for all nodes that it knows of; with several addresses each is asked too.
    asked = (*origin.servers, SERVERS) if len(origin.servers) > 1 else (SERVERS,)
    machine = ControllerRunner(own, rng, name=name, servers=asked)

    def terms() -> dict[str, Term]:
        return {acting[name]: term for name, term in machine.terms().items()}

    title = f"controllers {name}"
    pulse = pulse_of(title, machine.cache, machine.beats)
    return Component(
        title,
        machine,
        reader,
        api_client,
        terms=terms,
        rotation=rotation,
        pulses=_pulses(api_client, reader, pulse),
        discovery=ServerDiscovery(api_client, reader, trust, in_turn=True),
        planes=planes,
        say=say,
    )


async def agent(settings: AgentSettings, say: Say = lambda text: None) -> Component:
    """Build the agent of one node. It joins now if it never did."""
    node = checked_name(settings.node)
    for directory in filter(None, (settings.data, _own_pki(settings), settings.pki)):
        refuse_authority(
            directory,
            AGENT,
            "let the node join (--token-file, without --pki), or remove the key from here",
        )
    directory_lock = await asyncio.to_thread(DirectoryLock, settings.data, node)
    try:
        return await _agent(settings, node, directory_lock, say)
    except BaseException:
        directory_lock.release()
        raise


async def _agent(
    settings: AgentSettings, node: str, directory_lock: DirectoryLock, say: Say
) -> Component:
    identity = who.agent(node)
    access = await _access(settings, node, say)
    api_client = ApiClient({identity.name: access})

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
        fetch_token=token_fetcher(api_client, identity),
    )
    rotation = CertificateRenewal(
        {identity.name: api_client.access(identity.name)}, renew, api_client.take
    )
    pki = settings.pki if settings.pki is not None else _own_pki(settings)
    trust = TrustFollower(api_client, identity, rotation, pki, runtime.refresh_tokens)
    level, notes = await asyncio.to_thread(offered_isolation, settings.data, node, settings.options)
    facts = msgspec.structs.replace(
        settings.facts,
        installation=directory_lock.installation,
        isolation=level,
        isolation_notes=notes,
    )
    machine = Agent(node, facts, random.SystemRandom())

    def learn_revoked(text: str) -> None:
        api_client.revoked.learn(text, api_client.access(identity.name).ca)

    tunnel = AgentTunnel(
        node,
        lambda: api_client.access(identity.name),
        runtime,
        api_client.each_server,
        learn_revoked,
    )
    api_client.on_revoked = tunnel.connect_again
    return Component(
        f"agent of {node}",
        machine,
        identity,
        api_client,
        folder=settings.data / "agent",
        runtime=runtime,
        directory_lock=directory_lock,
        rotation=rotation,
        tunnel=tunnel,
        discovery=ServerDiscovery(api_client, identity, trust),
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


async def _connection(of: OtherPlane) -> PlaneConnection:
    """Return a connection of the controllers to another plane. Raises Invalid."""
    identity = Identity(name=of.identity)
    client, rotation, trust = await _api_client(
        of.servers, of.pki, CONTROLLERS, (identity.name,), identity
    )
    return PlaneConnection(of.plane, client, identity, rotation, trust)


async def _api_client(
    servers: tuple[str, ...], pki: Path, part: str, names: tuple[str, ...], asks: Identity
) -> tuple[ApiClient, CertificateRenewal, TrustFollower]:
    """Return a client with the credentials of each identity, and what keeps them valid. `asks` is
    the identity for the requests of all. Raises Invalid.
    """

    def accesses() -> Mapping[str, Access]:
        refuse_authority(
            pki,
            part,
            f"issue its certificates (`holdfast component certificate {part} --out DIR`) and start "
            "it with --pki DIR",
        )
        return {name: access_of(servers, pki, name) for name in names}

    async def renew(name: str, before: Access) -> Access:
        return await asyncio.to_thread(access_of, servers, pki, name)

    found = await asyncio.to_thread(accesses)
    api_client = ApiClient(found)
    rotation = CertificateRenewal(found, renew, api_client.take)
    return api_client, rotation, TrustFollower(api_client, asks, rotation, pki)


def _pulses(api_client: ApiClient, sender: Identity, feel: Feel) -> PulseSender:
    """Return a task that sends pulses to every server."""

    async def send(server: str, body: bytes) -> None:
        await api_client.hand_in(sender, server, body, PULSE_TIMEOUT_S, PULSES_PATH)

    return PulseSender(api_client.servers, feel, send)
