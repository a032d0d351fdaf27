"""The HTTP server: limits, identities, routing, errors, and a stop that takes at most seconds.

`host/server/server_process.py` makes one from a store, the authority's shell and the hub, and gives
it a way to authenticate callers. What holds for every request is in `_handle`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from aiohttp import web

from holdfast.commit.flow.overload import Overloaded
from holdfast.host.api import status_objects
from holdfast.host.api.call import ApiServices, Call, Route, parse_query, reply
from holdfast.host.api.flow.anonymous_limits import HEALTH_PATHS, OPEN_PATHS, AnonymousLimits
from holdfast.host.api.flow.connections import HttpServer, HttpSite, let_last
from holdfast.host.api.flow.handshakes import Handshakes
from holdfast.host.api.flow.request_admission import RequestAdmission
from holdfast.host.api.objects.freshness import Freshness
from holdfast.host.api.objects.long_streams import LongStreams, is_person, lasts
from holdfast.host.api.routes import WATCH, Router, table
from holdfast.host.audit.accesses import AccessRecorder
from holdfast.host.pki.service_tokens import ServiceTokens
from holdfast.host.process.shell import Shell
from holdfast.host.server.authentication import TokenUnknown
from holdfast.host.server.caller_rights import Rights
from holdfast.host.server.client_timeouts import ClientTimeouts
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.host.server.decision_archive import Decisions
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.model.encoding import wire
from holdfast.model.errors import Forbidden, HoldfastError, Missing, Rejected, Unavailable
from holdfast.model.kind_declaration import Kind
from holdfast.model.refusal import Reason
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store

# Impersonation by a header, as `kubectl --as` does it, is not offered.
#
# Ignoring the header would be worse than refusing it: a user who tries with `--as` what another
# user may do would do it as themselves. Access reviews answer that question (`access_reviews`).

_PREFIX = b"impersonate-"


def refuse_impersonation(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises Forbidden for a request that asks to be taken for another user's."""
    for name, _ in headers:
        if name[:12].lower() == _PREFIX:
            raise Forbidden(
                f"{name.decode('ascii', 'replace')[:63]}: impersonation (--as) is not supported; "
                "create a SubjectAccessReview to learn what another user may do",
                code=Reason.NOT_ALLOWED,
            )


Authenticate = Callable[[web.BaseRequest], Identity]
# Raises CertificateEnded for what was revoked, Unavailable where that cannot be known.
DemandCurrent = Callable[[web.BaseRequest], Awaitable[None]]
# Paths with rules of their own, such as health and metrics.
Extra = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Called when a request is over, with its code and how many seconds it took.
Observer = Callable[[web.BaseRequest, int, float], None]
# The code with which nginx counts a client that left before its answer, and what aiohttp answers
# after a bug.
CLIENT_WENT = 499
BUG = 500

_NOTHING: tuple[Kind | None, str] = (None, "")


class ApiLimits(msgspec.Struct, frozen=True):
    """How much a client may send and how long a stop may take."""

    # aiohttp bounds each body by this; it is the limit of every document as well.
    body_bytes: int = 1 << 20
    line_bytes: int = 16 << 10
    header_bytes: int = 8 << 10
    headers_max: int = 64
    patience: ClientTimeouts = ClientTimeouts()
    # A stop ends watches at once and waits this long for requests that are being served.
    stop_s: float = 3.0


DEFAULT_LIMITS = ApiLimits()


class Api:
    """One server. `start` returns the port that it listens on."""

    def __init__(
        self,
        *,
        store: Store,
        authority: Shell,
        hub: WatchHub,
        hub_shell: Shell,
        authenticate: Authenticate,
        extras: Mapping[str, Extra] | None = None,
        limits: ApiLimits = DEFAULT_LIMITS,
        observer: Observer | None = None,
        renewals: Shell | None = None,
        decisions: Decisions | None = None,
        pulses: ComponentPulses | None = None,
        admission: RequestAdmission | None = None,
        service_tokens: ServiceTokens | None = None,
        accesses: AccessRecorder | None = None,
        credential: Callable[[web.BaseRequest], str] = lambda request: "",
        demand_current: DemandCurrent | None = None,
    ) -> None:
        freshness = Freshness(store, hub, hub_shell)
        self._services = ApiServices(
            store,
            authority,
            hub,
            hub_shell,
            freshness,
            Rights(hub, freshness),
            set(),
            renewals,
            decisions=decisions,
            pulses=pulses,
            service_tokens=service_tokens,
            accesses=accesses,
            credential=credential,
        )
        self._authenticate, self._demand_current = authenticate, demand_current
        self.long_streams = LongStreams(authenticate)
        self.anonymous_limits = AnonymousLimits()
        self.admission = admission if admission is not None else RequestAdmission(hub)
        self.extras = dict(extras or {})
        self._limits = limits
        self._observer = observer
        self._router = Router(table())
        # How many connections were cut, by what they took too long for. Set once it listens.
        self.cut: dict[str, int] = {}
        self._runner: web.ServerRunner | None = None
        self._confirming: asyncio.Task[None] | None = None

    @property
    def services(self) -> ApiServices:
        """What requests are served with."""
        return self._services

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> int:
        """Listen."""
        wire.prepare()
        server = HttpServer(
            self._handle,
            request_factory=self._request,
            # A client that leaves is noticed at once; otherwise an idle watch would stay for ever.
            handler_cancellation=True,
            access_log=None,
            patience=self._limits.patience,
            max_line_size=self._limits.line_bytes,
            max_field_size=self._limits.header_bytes,
            max_headers=self._limits.headers_max,
        )
        self.cut = server.cut
        self._runner = web.ServerRunner(server, shutdown_timeout=self._limits.stop_s)
        await self._runner.setup()
        handshakes = Handshakes(on_refused=self._record_refused_certificate)
        await HttpSite(self._runner, host, port, tls, self._limits.patience, handshakes).start()
        self._confirming = asyncio.create_task(self._services.rights.confirm_for_ever())
        return int(self._runner.addresses[0][1])

    def _record_refused_certificate(self, source: str, why: str) -> None:
        """Record that a client presented a certificate that TLS did not accept."""
        if self._services.accesses is not None:
            self._services.accesses.failed(source, f"certificate refused: {why}")

    async def stop(self) -> None:
        """Accept nothing new, end all watches, let the rest finish, and return within seconds."""
        for stream in list(self._services.streams):
            stream.end(None)
        self._services.tunnels.close()
        if self._confirming is not None:
            self._confirming.cancel()
        if self._runner is not None:
            try:
                async with asyncio.timeout(self._limits.stop_s + 1.0):
                    await self._runner.cleanup()
            except TimeoutError:
                # Connections that do not close by themselves are closed with the process.
                return

    def _request(
        self, message: object, payload: object, protocol: object, writer: object, task: object
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message,  # type: ignore[arg-type]
            payload,  # type: ignore[arg-type]
            protocol,  # type: ignore[arg-type]
            writer,  # type: ignore[arg-type]
            task,  # type: ignore[arg-type]
            asyncio.get_running_loop(),
            client_max_size=self._limits.body_bytes,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began, code = time.perf_counter(), BUG
        about = _NOTHING
        path, _, query = request.raw_path.partition("?")
        try:
            extra = self.extras.get(path)
            if extra is not None:
                self._count_early(request, path)
                response = await extra(request)
            else:
                identity = self._known(request) or await self._identity(request)
                refuse_impersonation(request.raw_headers)
                route, variables = self._found(request, path, query)
                call = Call(request, route, variables, query, identity, self._services)
                about = (route.kind, call.name)
                serve = self._last if lasts(route) else self.admission.serve
                response = await serve(call)
            code = response.status
            return response
        except HoldfastError as error:
            response = reply(*status_objects.of(error, *about))
            code = response.status
            if isinstance(error, Overloaded) and about is _NOTHING:
                # A client that asks too often must not keep a connection for it.
                response.force_close()
            return response
        except asyncio.CancelledError:
            code = CLIENT_WENT
            raise
        finally:
            if self._observer is not None:
                self._observer(request, code, time.perf_counter() - began)

    async def _last(self, call: Call) -> web.StreamResponse:
        """Serve a request whose answer may go on for long."""
        let_last(call.request)
        return await self.admission.stay(call, self._stream)

    async def _stream(self, call: Call) -> web.StreamResponse:
        # A request that still waits for a seat is not checked again: it has no stream to lose, and
        # its handler refuses it with an answer.
        with self.long_streams.stay(call):
            return await call.route.handler(call)

    def _count_early(self, request: web.BaseRequest, path: str) -> None:
        """Count a request to a path that needs no authentication. Raises Overloaded."""
        if path in OPEN_PATHS:
            self.anonymous_limits.demand(request)
        elif path in HEALTH_PATHS:
            self.anonymous_limits.demand_health(request)

    def _known(self, request: web.BaseRequest) -> Identity | None:
        """The caller's identity where it is known without waiting, which is nearly always."""
        try:
            identity = self._authenticate(request)
        except TokenUnknown:
            return None
        is_believed = self._services.rights.is_trusted
        return identity if is_believed and identity.name != ANONYMOUS else None

    async def _identity(self, request: web.BaseRequest) -> Identity:
        """The caller's identity. Anonymous callers learn nothing, not even which paths exist."""
        try:
            identity = self._authenticate(request)
        except TokenUnknown:
            # It may have been created just now, at this server or at another one. Finding out costs
            # a read of the store, and anyone can send an unknown token: so it is counted.
            self.anonymous_limits.demand(request)
            await self._services.freshness.is_hub_fresh()
            identity = self._authenticate(request)
        if identity.name == ANONYMOUS:
            self.anonymous_limits.demand(request)
            raise Forbidden(
                "authentication required: present a client certificate or bearer token",
                code=Reason.UNAUTHENTICATED,
            )
        if not is_person(identity):
            await self.demand_unrevoked(request)
        elif not await self._services.rights.is_current():
            raise Unavailable(
                "this server cannot reach its store and cannot tell whether your credentials are "
                "still valid; try another server"
            )
        return identity

    async def demand_unrevoked(self, request: web.BaseRequest) -> None:
        """Ask the store about a component whose revocation may not have reached this server.
        Raises CertificateEnded, and Unavailable for a change while the store cannot be asked.
        """
        if self._demand_current is None or self._services.rights.is_trusted:
            return
        try:
            await self._demand_current(request)
        except Unavailable:
            # What this server shows is older than any revocation that it has missed.
            if request.method != "GET":
                raise

    def _found(
        self, request: web.BaseRequest, path: str, query: str
    ) -> tuple[Route, dict[str, str]]:
        found = self._router.find(path)
        if found is None:
            raise Missing("the server could not find the requested resource")
        routes, variables = found
        method = request.method
        if method == "GET" and "watch=" in query and WATCH in routes and _wants_watch(query):
            method = WATCH
        route = routes.get(method)
        if route is None:
            raise Rejected(
                "the server does not allow this method on the requested resource",
                code=status_objects.METHOD_NOT_ALLOWED,
            )
        return route, variables


def _wants_watch(query: str) -> bool:
    return parse_query(query).get("watch", "") in ("1", "true", "True")
