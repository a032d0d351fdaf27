"""One server process: store, authority, hub, HTTP over TLS, and their maintenance.

`python -m holdfast.host serve` runs one; the `holdfast` command and tests use the same class. Parts
start from the store upwards and stop from the socket downwards, so that no part calls one that is
not running. A stop takes at most `STOP_S`.

Of several servers over one etcd, the holder of the lease `authority` decides and the others forward
to it (`other_servers`, `forwarding`). A server that cannot reach it decides by itself; the compares
of its transactions keep that safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from holdfast.commit.context import PlaneSettings as Rules
from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.objects.object_defaults import CRITICAL
from holdfast.commit.server import PRESENCE, SCOPE, AuthorityServer
from holdfast.host.api.app import Api, ApiLimits, Observer
from holdfast.host.api.flow.connections import receive_into_small_buffers
from holdfast.host.api.objects.freshness import Freshness
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.audit.accesses import AccessRecorder
from holdfast.host.audit.export import target_of
from holdfast.host.audit.journal import JournalLimits
from holdfast.host.audit.records_route import handlers as record_handlers
from holdfast.host.audit.refusals import RefusalLog, both, failure_observer
from holdfast.host.audit.segments import FOLDER
from holdfast.host.audit.status_route import handlers as audit_handlers
from holdfast.host.audit.writer_host import AuditKeeper
from holdfast.host.client import known_servers
from holdfast.host.oidc import fetching as oidc_counted
from holdfast.host.oidc.fetching import key_fetchers
from holdfast.host.oidc.issuer_config import read as read_issuers
from holdfast.host.oidc.issuers import Issuers
from holdfast.host.pki.first_trust import establish
from holdfast.host.pki.join_admission import JoinAdmission
from holdfast.host.pki.server_trust import ServerTrust
from holdfast.host.pki.service_tokens import ServiceTokens
from holdfast.host.process import clock
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.host.server import digest_exchange, server_metrics
from holdfast.host.server.authenticator import Authenticator, CredentialLives
from holdfast.host.server.caller_rights import publish_built_in_roles
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.host.server.decision_archive import Decisions
from holdfast.host.server.encryption import Reencryption, open_encrypted
from holdfast.host.server.forwarding import handlers as forward_handlers
from holdfast.host.server.health import HealthChecks
from holdfast.host.server.housekeeping import Horizon, compact_for_ever, tidy_for_ever
from holdfast.host.server.other_servers import OtherServers
from holdfast.host.server.quarantine_watch import QuarantineWatch
from holdfast.host.server.revocation_checks import RevocationAnnouncer, StoredRevocations
from holdfast.host.server.server_metrics import MeteredStore, handlers, request_observer
from holdfast.host.server.settings import LOG, ServerSettings
from holdfast.host.server.store_opening import (
    demand_format,
    demand_plane,
    limits_for,
    open_store,
    take_over_store,
)
from holdfast.host.server.store_space import StoreSpace, space_of
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import Permission
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Unavailable, invariant
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Tenant
from holdfast.model.machine import Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.read_requests import Reach
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import Create, ReleaseLease
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store
from holdfast.store.encryption import EncryptedStore

DEFAULT_TENANT = "default"
CRITICAL_VALUE = 1_000_000
# How long the first list of the store may take before the start fails.
LOAD_S = 300.0
# An orderly stop: the HTTP server takes most of it, for requests in progress.
STOP_S = 4.5
RELEASE_S = 0.5
TIDY_S = 10.0
DRAIN_S = 0.5
_MILLISECOND = timedelta(milliseconds=1)

Say = Callable[[str], None]


class ServerProcess:
    """One server. `start`, then `wait`, then `stop`."""

    def __init__(self, settings: ServerSettings, say: Say = lambda text: None) -> None:
        """`say` gets messages for the operator."""
        settings.check()
        self.settings = settings
        self.url = ""
        self.kubeconfig: Path | None = None
        self.metrics = Metrics()
        self._say = say
        self._identity = who.server(settings.server_name)
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._health: HealthChecks | None = None
        self._roster: digest_exchange.Read = lambda _now: None

    # Start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, read it, listen. Raises an error with a message if it cannot."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def wait(self) -> str:
        """Wait until something has failed for good. Return the message that says what."""
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Stop in order, within seconds."""
        if self._health is not None:
            self._health.is_stopping = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._stack.aclose()
        except TimeoutError:
            self._say("Some connections did not end in time and were cut.")

    async def _start(self) -> None:
        settings = self.settings
        trust = await asyncio.to_thread(establish, settings)
        bare = await open_store(settings, self._fail, self._say)
        self._stack.push_async_callback(bare.close)
        await demand_format(bare)
        await demand_plane(bare, settings.plane)
        store = await open_encrypted(bare, settings, self._say)
        metered = MeteredStore(store, self.metrics)
        name = settings.server_name
        rules = Rules(
            plane=settings.plane,
            fence=settings.fence,
            observation_age_max_ms=settings.observation_age_max_ms,
            zone_silence_max_ms=settings.zone_silence_max_ms,
            certificate_life_ms=settings.certificate_life_max // _MILLISECOND,
            token_life_ms=settings.token_life_max // _MILLISECOND,
            default_resources=settings.work.default,
            minimum_resources=settings.work.minimum,
        )
        life = secrets.token_hex(8)
        machine = AuthorityServer(name, _luck(), metered, rules, limits_for(bare), life=life)
        hub = WatchHub(Forms())
        folder = settings.data / FOLDER
        kept = settings.audit
        audit = AuditKeeper(
            name,
            folder,
            hub.history,
            when_behind=settings.audit_behind,
            limits=JournalLimits(keep_bytes=kept.bytes, keep_ms=kept.life // _MILLISECOND),
            export=target_of(kept.export, name, kept.token_file) if kept.export else None,
        )
        accesses = AccessRecorder(store, audit.refusal)
        space = self._watch_space(bare, audit)
        machine.closed = lambda: audit.refusal() or space.write_refusal()
        machine.full = space.full
        peers = OtherServers(lambda name: _address(hub, name), trust.peer_context(), self.metrics)
        self._stack.push_async_callback(peers.close)
        trusted = ServerTrust(
            settings, trust, metered, hub, peers, self._live, accesses, self._fail
        )
        await trusted.start()
        # Only now: a server without the keys of the plane must not give the store another name.
        await take_over_store(metered, settings.plane)
        authority = Shell(machine, self._identity, store=metered, peers=peers)
        hub_shell = Shell(hub, self._identity, store=metered)
        zone_silence_max_ms = settings.zone_silence_max_ms
        ear = Renewals(name, settings.fence, life=life, zone_silence_max_ms=zone_silence_max_ms)
        ear.unready = machine.unready
        self._roster = ear.roster
        renewals = Shell(ear, self._identity, store=metered, peers=peers)
        await self._run(authority, "the authority")
        self._stack.push_async_callback(self._release, authority, machine)
        await self._run(hub_shell, "the watch hub")
        await hub_shell.ask(self._identity, Reach(0), LOAD_S)
        if not hub.count(kind_of_struct(Tenant)):
            await self._furnish(authority)
        await self._show_roles(authority, hub)
        await self._run(renewals, "the heartbeat receiver")
        await self._begin_audit(audit, store)
        port, api = await self._listen(
            store, authority, hub, hub_shell, renewals, audit, trusted, accesses
        )
        self._keep(accesses.run())
        self.metrics.gauge(
            "audit_accesses_lost",
            "Accesses that were lost to the audit; alarm above 0.",
            lambda: accesses.lost,
        )
        self._keep(trusted.upkeep.run())
        machine.address = settings.advertise or settings.listen.url_for_others(port)
        # Others learn at once where to ask which nodes we hear, not with the next renewal.
        authority.post(Woken(PRESENCE))
        server_metrics.count(self.metrics, hub, machine, api)
        quarantine = QuarantineWatch(store, hub, self._say)
        quarantine.count(self.metrics, machine)
        self._keep(quarantine.look_for_ever())
        server_metrics.count_servers(self.metrics, self._roster)
        self._keep(digest_exchange.watch_server_leases(self._roster, self._say))

        self._keep(
            compact_for_ever(
                store,
                lambda: _is_ours(bare, machine),
                Horizon(history=hub.history),
                waits_for=lambda upto: audit.horizon(store, upto),
            )
        )

        async def ask(request: Any) -> Any:
            return await authority.ask(self._identity, request, TIDY_S)

        self._keep(tidy_for_ever(store, lambda: _is_ours(bare, machine), ask))
        if isinstance(store, EncryptedStore):
            reencrypting = Reencryption(store, lambda: _is_ours(bare, machine), self._say)
            reencrypting.count(self.metrics)
            self._keep(reencrypting.run())

    def _watch_space(self, store: Store, audit: AuditKeeper) -> StoreSpace:
        """Watch how full a bounded store is, and make room."""
        space = space_of(store, self._say, lambda upto: audit.horizon(store, upto))
        space.count(self.metrics)
        self._keep(space.look_for_ever())
        return space

    async def _begin_audit(self, audit: AuditKeeper, store: Store) -> None:
        shell = Shell(audit.writer, self._identity, store=store, performers=audit.performers())
        audit.attach(shell)
        audit.count(self.metrics)
        self._stack.callback(audit.close)
        await self._run(shell, "the audit writer")
        if audit.exporting is not None:
            self._keep(audit.exporting.run())

    async def _run(self, shell: Shell, name: str) -> None:
        await shell.start()
        self._stack.push_async_callback(self._end, shell, name)
        self._keep(self._mourn(shell, name))

    async def _end(self, shell: Shell, name: str) -> None:
        try:
            await shell.stop(DRAIN_S)
        except Exception as bug:  # noqa: BLE001 - any bug is reported
            self._broken(name, bug)

    async def _mourn(self, shell: Shell, name: str) -> None:
        """End the server when a machine ends by itself: that is a bug."""
        try:
            await shell.wait()
        except Exception as bug:  # noqa: BLE001 - any bug is reported and ends the server
            self._broken(name, bug)

    def _broken(self, name: str, bug: Exception) -> None:
        self._fail(f"{name} has stopped because of a bug: {type(bug).__name__}: {bug}")

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._stack.callback(task.cancel)

    def _fail(self, sentence: str) -> None:
        if not self._failed.done():
            self._failed.set_result(sentence)

    # Parts ---------------------------------------------------------------------------------------

    async def _listen(
        self,
        store: Store,
        authority: Shell,
        hub: WatchHub,
        hub_shell: Shell,
        renewals: Shell,
        audit: AuditKeeper,
        trusted: ServerTrust,
        accesses: AccessRecorder,
    ) -> tuple[int, Api]:
        receive_into_small_buffers()
        tokens = ServiceTokens(trusted.authorities, seen=trusted.seen.token_shown)
        lives = CredentialLives(
            certificate_ms=self.settings.certificate_life_max // _MILLISECOND,
            token_ms=self.settings.token_life_max // _MILLISECOND,
        )
        authenticator = Authenticator(hub, self._issuers(), tokens, lives, trusted.authorities)
        freshness = Freshness(store, hub, hub_shell)
        self._health = HealthChecks(store, freshness)
        decisions = Decisions(self.settings.data, self.metrics)
        self._stack.callback(decisions.close)
        pulses = ComponentPulses(self.settings.server_name, self.settings.plane)
        pulses.count(self.metrics)

        def may_path(identity: Identity, verb: str, path: str) -> bool:
            return api.services.rights.may_path(identity, verb, path)

        def may(identity: Identity, permission: Permission) -> bool:
            return api.services.rights.may(identity, permission)

        async def is_current() -> bool:
            return await api.services.rights.is_current()

        async def demand_unrevoked(request: web.BaseRequest) -> None:
            await api.demand_unrevoked(request)

        api = Api(
            store=store,
            authority=authority,
            hub=hub,
            hub_shell=hub_shell,
            authenticate=authenticator,
            extras={
                **self._health.handlers(),
                **handlers(self.metrics, authenticator, may_path),
                **audit_handlers(audit.standing, authenticator, may_path),
                **record_handlers(
                    self.settings.data / FOLDER,
                    self.settings.server_name,
                    lambda: audit.writer.head,
                    authenticator,
                    may_path,
                    may,
                ),
                **forward_handlers(
                    authority, self.metrics, authenticator.peer_identity, demand_unrevoked
                ),
                **digest_exchange.handlers(
                    renewals,
                    self._roster,
                    authenticator.peer_identity,
                    trusted.generation,
                    lambda: revoked.text,
                ),
                **trusted.handlers(authenticator, may_path, is_current),
                **self._admitting(authority, store, trusted, authenticator, accesses).handlers(),
            },
            limits=ApiLimits(patience=self.settings.patience),
            observer=both(self._observer(authenticator, accesses), trusted.seen.observe),
            renewals=renewals,
            decisions=decisions,
            pulses=pulses,
            service_tokens=tokens,
            accesses=accesses,
            credential=authenticator.credential,
            demand_current=StoredRevocations(authenticator, store).demand_current,
        )
        revoked = RevocationAnnouncer(hub, trusted.authorities, api.services.tunnels.announce)
        self._keep(revoked.run())
        listen = self.settings.listen
        try:
            port = await api.start(listen.host, listen.port, trusted.tls.context)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}"
            ) from error
        self._stack.push_async_callback(api.stop)
        self._keep(api.long_streams.sweep_for_ever())
        self.url = self.settings.advertise or listen.url(port)
        self.kubeconfig = await trusted.introduce(listen.url(port))
        return port, api

    def _issuers(self) -> Issuers:
        """Return the configured OpenID Connect issuers, with tasks that keep their keys current."""
        file = self.settings.oidc
        issuers = Issuers(read_issuers(file).issuers if file is not None else ())
        tasks = key_fetchers(issuers)
        oidc_counted.count(self.metrics, issuers, tasks)
        for task in tasks:
            self._keep(task.run())
        return issuers

    def _observer(self, authenticator: Authenticator, accesses: AccessRecorder) -> Observer:
        """Return the observer of every completed request."""
        metered = both(
            request_observer(self.metrics), failure_observer(accesses, authenticator.credential)
        )
        return (
            both(metered, RefusalLog(authenticator).observe)
            if self.settings.refusals == LOG
            else metered
        )

    def _admitting(
        self,
        authority: Shell,
        store: Store,
        trusted: ServerTrust,
        authenticator: Authenticator,
        accesses: AccessRecorder,
    ) -> JoinAdmission:
        life = self.settings.certificate_life
        issuers, shown = trusted.authorities, authenticator.certificate
        return JoinAdmission(self._identity, authority, store, issuers, shown, life, accesses)

    def _live(self) -> tuple[known_servers.KnownServer, ...]:
        """Return the servers that renew their leases."""
        return known_servers.live_servers(self._roster(clock.now()))

    async def _furnish(self, authority: Shell) -> None:
        """Create what a new plane needs before anyone can work in it: a tenant, and the priority
        class of work that must come back when a region is lost.
        """
        tenant = Tenant(metadata=ObjectMeta(name=DEFAULT_TENANT))
        # It takes precedence over other work, so only tenants that an operator names may use it.
        critical = PriorityClassSpec(
            value=CRITICAL_VALUE,
            urgent=True,
            allowed_tenants=(DEFAULT_TENANT,),
            description="Work that must come back when a region is lost.",
        )
        # Servers may not create these; they act for the operator here, at the first start.
        operator = Identity(name="bootstrap", groups=(who.ADMINS,))
        for obj in (PriorityClass(metadata=ObjectMeta(name=CRITICAL), spec=critical), tenant):
            verdict = await authority.ask(operator, Create(obj, manager="holdfast"), 30.0)
            if isinstance(verdict, Refusal):
                invariant(verdict.reason is Reason.EXISTS, f"no {obj.name}: {verdict.message}")

    async def _show_roles(self, authority: Shell, hub: WatchHub) -> None:
        async def ask(request: Any) -> Any:
            return await authority.ask(self._identity, request, TIDY_S)

        trouble = await publish_built_in_roles(hub, ask)
        if trouble:
            self._say(trouble)

    async def _release(self, authority: Shell, machine: AuthorityServer) -> None:
        """Release the leases, so that another server becomes the authority at once and none waits
        for ours to expire."""
        held = [term for term in (machine.presence, machine.term) if term is not None]
        given = (authority.ask(self._identity, ReleaseLease(it), RELEASE_S) for it in held)
        await asyncio.gather(*given, return_exceptions=True)


def _luck() -> random.Random:
    """Return a generator for uids and names, which must differ but need not be secret.

    Asking the system for each would cost as much as a read of the view, so it is asked once.
    """
    return random.Random(random.SystemRandom().getrandbits(256))


def _address(hub: WatchHub, name: str) -> str:
    """Return a server's address by the authority's lease, or else by its own lease."""
    for scope in (SCOPE, server_scope(name)):
        entry = hub.get(kind_of_struct(Lease), "", lease_name(scope))
        lease = readable(Lease, entry.data) if entry is not None else None
        spec = lease.spec if lease is not None else None
        if spec is not None and spec.holder == who.server(name).name and spec.address:
            return spec.address
    return ""


def _is_ours(store: Store, machine: AuthorityServer) -> bool:
    """Return whether this server maintains the store: the only one, or the authority of several."""
    return not hasattr(store, "max_ops") or machine.term is not None
