"""One server process, put together: store, authority, hub, HTTP over TLS, and what keeps them well.

`python -m holdfast.host serve` runs one; the `holdfast` command and tests use the same class. Parts
are started from the store upwards and stopped from the socket downwards, so that nobody ever speaks
to a part that is not there. A stop takes at most `STOP_S`.

Of several servers over one etcd the holder of the lease `authority` decides and the others forward
to it (`neighbours`, `forwards`); whoever cannot reach it decides by itself, which compares keep
safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.commit.context import Settings as Rules
from holdfast.commit.renewals import Renewals
from holdfast.commit.server import SCOPE, Server
from holdfast.commit.shaping import CRITICAL
from holdfast.host import plane_counted
from holdfast.host.admitting import Admitting
from holdfast.host.api.app import Api, ApiLimits, Observer
from holdfast.host.api.freshness import Freshness
from holdfast.host.api.presentation import Forms
from holdfast.host.audit.keeping import Keeping
from holdfast.host.audit.refusals import Refusals, both
from holdfast.host.audit.segments import FOLDER
from holdfast.host.audit.standing import handlers as audit_handlers
from holdfast.host.buffers import receive_into_small_buffers
from holdfast.host.certificates import LEAF_LIFE
from holdfast.host.decisions import Decisions
from holdfast.host.door import Door
from holdfast.host.first_roles import show_built_in
from holdfast.host.forwards import handlers as forward_handlers
from holdfast.host.health import Health
from holdfast.host.metered import MeteredStore, counted
from holdfast.host.metrics import Metrics
from holdfast.host.neighbours import Neighbours
from holdfast.host.opening import limits_for, open_store
from holdfast.host.pulses import PulseBook
from holdfast.host.settings import LOG, Settings
from holdfast.host.shell import Shell
from holdfast.host.showing import handlers
from holdfast.host.tidying import tidy_for_ever
from holdfast.host.trust import Trust, establish, write_kubeconfig
from holdfast.host.trust_upkeep import renew_for_ever
from holdfast.host.upkeep import Horizon, compact_for_ever
from holdfast.model import identity as who
from holdfast.model.errors import HoldfastError, Unavailable, invariant
from holdfast.model.identity import Identity
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.priorityclass import PriorityClass, PriorityClassSpec
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import Create, ReleaseLease
from holdfast.model.wire import decode_trusted
from holdfast.observe.hub import Hub, Reach
from holdfast.store.contract import Store

DEFAULT_TENANT = "default"
CRITICAL_VALUE = 1_000_000
# How long the first list of the store may take before the server says that it cannot start.
LOAD_S = 300.0
# A stop in order: the HTTP server takes the most of it, for requests that are being served.
STOP_S = 4.5
RELEASE_S = 0.5
TIDY_S = 10.0
DRAIN_S = 0.5
_MILLISECOND = timedelta(milliseconds=1)

Say = Callable[[str], None]


class Plane:
    """One server. `start`, then `wait`, then `stop`."""

    def __init__(self, settings: Settings, say: Say = lambda text: None) -> None:
        """`say` gets sentences that an operator should read."""
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
        self._health: Health | None = None

    # The life of a server ------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, read it, listen. Raises with a sentence when it cannot."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def wait(self) -> str:
        """Until something has failed for good: the sentence that says what."""
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
        store = await open_store(settings, self._fail, self._say)
        self._stack.push_async_callback(store.close)
        metered = MeteredStore(store, self.metrics)
        name = settings.server_name
        rules = Rules(
            fence=settings.fence,
            certificate_life_ms=max(settings.certificate_life, LEAF_LIFE) // _MILLISECOND,
        )
        machine = Server(name, _luck(), metered, rules, limits_for(store))
        audit = Keeping(name, settings.data / FOLDER, when_behind=settings.audit_behind)
        machine.closed = audit.refusal
        hub = Hub(Forms())
        tls, peer_tls = trust.context(), trust.peer_context()
        peers = Neighbours(lambda name: _address(hub, name), peer_tls, self.metrics)
        self._stack.push_async_callback(peers.close)
        authority = Shell(machine, self._identity, store=metered, peers=peers)
        hub_shell = Shell(hub, self._identity, store=metered)
        renewals = Shell(Renewals(name, settings.fence), self._identity, store=metered)
        await self._run(authority, "the authority")
        self._stack.push_async_callback(self._release, authority, machine)
        await self._run(hub_shell, "the watch hub")
        await hub_shell.ask(self._identity, Reach(0), LOAD_S)
        if not hub.count(kind_of_struct(Tenant)):
            await self._furnish(authority)
        await self._show_roles(authority, hub)
        await self._run(renewals, "the hearing of agents")
        await self._begin_audit(audit, store)
        port, api = await self._listen(
            store, authority, hub, hub_shell, renewals, audit, trust, tls
        )
        self._keep(renew_for_ever(settings, trust, tls, peer_tls, self._introduce(port)))
        machine.address = settings.advertise or settings.listen.url_for_others(port)
        plane_counted.count(self.metrics, hub, machine, api)

        self._keep(
            compact_for_ever(
                store,
                lambda: _is_ours(store, machine),
                Horizon(),
                waits_for=lambda upto: audit.horizon(store, upto),
            )
        )

        async def ask(request: Any) -> Any:
            return await authority.ask(self._identity, request, TIDY_S)

        self._keep(tidy_for_ever(store, lambda: _is_ours(store, machine), ask))

    async def _begin_audit(self, audit: Keeping, store: Store) -> None:
        shell = Shell(audit.scribe, self._identity, store=store, performers=audit.performers())
        audit.attach(shell)
        audit.count(self.metrics)
        self._stack.callback(audit.close)
        await self._run(shell, "the scribe of the audit")

    async def _run(self, shell: Shell, name: str) -> None:
        await shell.start()
        self._stack.push_async_callback(self._end, shell, name)
        self._keep(self._mourn(shell, name))

    async def _end(self, shell: Shell, name: str) -> None:
        try:
            await shell.stop(DRAIN_S)
        except Exception as bug:  # noqa: BLE001 - whatever it is, it is said
            self._broken(name, bug)

    async def _mourn(self, shell: Shell, name: str) -> None:
        """A machine that ends by itself has found a bug of ours; the server must not go on."""
        try:
            await shell.wait()
        except Exception as bug:  # noqa: BLE001 - whatever it is, it is said and ends the server
            self._broken(name, bug)

    def _broken(self, name: str, bug: Exception) -> None:
        self._fail(f"{name} has stopped on a bug: {type(bug).__name__}: {bug}")

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
        hub: Hub,
        hub_shell: Shell,
        renewals: Shell,
        audit: Keeping,
        trust: Trust,
        tls: ssl.SSLContext,
    ) -> tuple[int, Api]:
        receive_into_small_buffers()
        door, freshness = Door(hub), Freshness(store, hub, hub_shell)
        self._health = Health(store, freshness)
        decisions = Decisions(self.settings.data, self.metrics)
        self._stack.callback(decisions.close)
        pulses = PulseBook(self.settings.server_name)
        pulses.count(self.metrics)

        def may_path(identity: Identity, verb: str, path: str) -> bool:
            return api.services.rights.may_path(identity, verb, path)

        api = Api(
            store=store,
            authority=authority,
            hub=hub,
            hub_shell=hub_shell,
            authenticate=door,
            extras={
                **self._health.handlers(),
                **handlers(self.metrics, door, may_path),
                **audit_handlers(audit.standing, door, may_path),
                **forward_handlers(authority, self.metrics, door.shown),
                **self._admitting(authority, store, trust, door).handlers(),
            },
            limits=ApiLimits(patience=self.settings.patience),
            observer=self._observer(door),
            renewals=renewals,
            decisions=decisions,
            pulses=pulses,
        )
        listen = self.settings.listen
        try:
            port = await api.start(listen.host, listen.port, tls)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}"
            ) from error
        self._stack.push_async_callback(api.stop)
        self._keep(api.guests.sweep_for_ever())
        self.url = self.settings.advertise or listen.url(port)
        self.kubeconfig = await asyncio.to_thread(self._introduce(port), trust)
        return port, api

    def _observer(self, door: Door) -> Observer:
        """Is told of every request when it is over."""
        metered = counted(self.metrics)
        return both(metered, Refusals(door).observe) if self.settings.refusals == LOG else metered

    def _admitting(self, authority: Shell, store: Store, trust: Trust, door: Door) -> Admitting:
        life = self.settings.certificate_life
        return Admitting(self._identity, authority, store, trust.authority, door.shown, life)

    def _introduce(self, port: int) -> Callable[[Trust], Path]:
        """Writes the administrator's way in, at the start and when his certificate is renewed."""
        url = self.settings.listen.url(port)
        return lambda trust: write_kubeconfig(self.settings, trust, url)

    async def _furnish(self, authority: Shell) -> None:
        """What a new plane needs so that somebody can work in it: a tenant, and the class of work
        that must come back when a region is lost.
        """
        tenant = Tenant(metadata=ObjectMeta(name=DEFAULT_TENANT))
        # It goes before others, so it is for those whom an operator names.
        critical = PriorityClassSpec(
            value=CRITICAL_VALUE,
            urgent=True,
            allowed_tenants=(DEFAULT_TENANT,),
            description="Work that must come back when a region is lost.",
        )
        # Servers have no tenants to give; this is an operator's doing, at the first start.
        operator = Identity(name="bootstrap", groups=(who.ADMINS,))
        for obj in (PriorityClass(metadata=ObjectMeta(name=CRITICAL), spec=critical), tenant):
            verdict = await authority.ask(operator, Create(obj, manager="holdfast"), 30.0)
            if isinstance(verdict, Refusal):
                invariant(verdict.reason is Reason.EXISTS, f"no {obj.name}: {verdict.message}")

    async def _show_roles(self, authority: Shell, hub: Hub) -> None:
        async def ask(request: Any) -> Any:
            return await authority.ask(self._identity, request, TIDY_S)

        trouble = await show_built_in(hub, ask)
        if trouble:
            self._say(trouble)

    async def _release(self, authority: Shell, machine: Server) -> None:
        """Let another server be the usual one at once, instead of after the lease."""
        if machine.term is None:
            return
        with contextlib.suppress(HoldfastError):
            await authority.ask(self._identity, ReleaseLease(machine.term), RELEASE_S)


def _luck() -> random.Random:
    """For uids and names, which must differ but need not be secret.

    Asking the system for each would cost as much as a read of the view; it is asked once.
    """
    return random.Random(random.SystemRandom().getrandbits(256))


def _address(hub: Hub, name: str) -> str:
    """Where the server is reached that holds the lease; nothing if that is another one."""
    entry = hub.get(kind_of_struct(Lease), "", lease_name(SCOPE))
    spec = decode_trusted(Lease, entry.data).spec if entry is not None else None
    return spec.address if spec is not None and spec.holder == who.server(name).name else ""


def _is_ours(store: Store, machine: Server) -> bool:
    """Whether this server looks after the store: the only one, or the usual one of several."""
    return not hasattr(store, "max_ops") or machine.term is not None
