"""One request on its way through the server: who asks for what, and what serves it.

`app` makes a `Call` for each request once the caller is authenticated and the route is found;
handlers get nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from holdfast.commit.flow.flow_control import QueuedRequest
from holdfast.commit.flow.request_classes import RequestPurpose
from holdfast.commit.objects.audit_entries import recorded_groups
from holdfast.host.api import status_objects
from holdfast.host.api.flow.connections import read_body
from holdfast.host.api.flow.loop_share import LoopShare, TenantLocks
from holdfast.host.api.objects import core_names, negotiation
from holdfast.host.api.objects.freshness import Freshness
from holdfast.host.api.plain import JSON_HEADERS, PlainResponse
from holdfast.host.audit.accesses import AccessRecorder, printable
from holdfast.host.client.paths import OPERATION_HEADER, TERM_HEADER
from holdfast.host.pki.service_tokens import ServiceTokens
from holdfast.host.process.served_streams import ServedStream
from holdfast.host.process.shell import Shell
from holdfast.host.server.caller_rights import Rights, concerns_rights
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.host.server.decision_archive import Decisions
from holdfast.host.server.heartbeat_times import HeartbeatTimes
from holdfast.host.tunnel.server_end import Tunnels
from holdfast.model.access.identity import ANONYMOUS, Identity, acts_as
from holdfast.model.access.rights import Permission
from holdfast.model.audit.audit_records import Mutation
from holdfast.model.encoding.resource_versions import Version, parse_version
from holdfast.model.errors import Forbidden, Invalid, Rejected
from holdfast.model.kind_declaration import Kind
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Term
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store

if TYPE_CHECKING:
    from holdfast.host.api.flow.request_admission import RequestAdmission

# An exec request has one field for each argument of its command. The server bounds the line itself.
QUERY_FIELDS_MAX = 1_100
TIMEOUT_S = 10.0
_TRUE = ("1", "true", "True", "t", "T", "TRUE")
_FALSE = ("", "0", "false", "False", "f", "F", "FALSE")


class ApiServices(msgspec.Struct):
    """What requests are served with.

    `authority` runs the commit machine and `hub_shell` the hub. `renewals` receives the agents'
    heartbeats, `tunnels` reaches the agents. `decisions` keeps what schedulers decided,
    `pulses` the health that components report, and `service_tokens` issues tokens of replicas.
    """

    store: Store
    authority: Shell
    hub: WatchHub
    hub_shell: Shell
    freshness: Freshness
    rights: Rights
    # Open watches, so that a stop can end them.
    streams: set[ServedStream]
    renewals: Shell | None = None
    tunnels: Tunnels = msgspec.field(default_factory=Tunnels)
    decisions: Decisions | None = None
    pulses: ComponentPulses | None = None
    service_tokens: ServiceTokens | None = None
    # An explanation reads a good part of the store: few at a time, and one for each tenant.
    explaining: TenantLocks = msgspec.field(default_factory=TenantLocks)
    heartbeat_times: HeartbeatTimes = msgspec.field(default_factory=HeartbeatTimes)
    loop_share: LoopShare = msgspec.field(default_factory=LoopShare)
    # Where accesses that change nothing are recorded, and which credential a sender presented.
    accesses: AccessRecorder | None = None
    credential: Callable[[web.BaseRequest], str] = lambda request: ""


# Serves one request.
Handler: TypeAlias = "Callable[[Call], Awaitable[web.StreamResponse]]"


class Route(msgspec.Struct, frozen=True):
    """One row of the routing table, declared beside its handler if it belongs to no kind.

    `purpose` decides its order under overload; by default the verb says whether it reads. `lasts`
    is whether the response may go on long after the request was authorized.
    """

    path: str
    method: str
    verb: str
    handler: Handler
    kind: Kind | None = None
    subresource: str = ""
    facade: str = core_names.OURS
    purpose: RequestPurpose | None = None
    lasts: bool = False


class Call:
    """See the module's docstring."""

    __slots__ = (
        "_body",
        "_query",
        "_text",
        "admission",
        "end_gracefully",
        "identity",
        "name",
        "namespace",
        "part",
        "request",
        "route",
        "seat",
        "services",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        route: Route,
        variables: dict[str, str],
        query: str,
        identity: Identity,
        services: ApiServices,
    ) -> None:
        self.request, self.route, self.services = request, route, services
        self.identity = identity
        self.namespace = variables.get("namespace", "")
        self.name = variables.get("name", "")
        self.part = variables.get("part", "")
        self._text = query
        self._query: dict[str, str] | None = None
        self._body: bytes | None = None
        # The seat that it has, and what gave it; see `admission`.
        self.seat: QueuedRequest | None = None
        self.admission: RequestAdmission | None = None
        # Ends the stream in order, where the protocol has a way; see `long_streams`.
        self.end_gracefully: Callable[[], None] | None = None

    @property
    def kind(self) -> Kind:
        """The kind that the route is about."""
        if self.route.kind is None:
            raise Rejected("the path names no kind of object", code=status_objects.BAD_REQUEST)
        return self.route.kind

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query. If one is given twice, the last value counts."""
        if self._query is None:
            self._query = parse_query(self._text)
        return self._query

    def every(self, name: str) -> tuple[str, ...]:
        """All values of a parameter, in the order they were given."""
        pairs = _pairs(self._text) if self._text else []
        return tuple(value for key, value in pairs if key == name)

    def flag(self, name: str) -> bool:
        """A parameter that is true or false."""
        text = self.query.get(name, "")
        if text not in _TRUE and text not in _FALSE:
            bad(f"{name}: {text[:40]!r} must be true or false")
        return text in _TRUE

    def number(self, name: str, default: int | None = None) -> int | None:
        """A parameter that is a number of at least zero."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            bad(f"{name}: {text[:40]!r} must be a whole number")
        return int(text)

    @property
    def version(self) -> Version | None:
        """The resourceVersion that the caller names; None without one."""
        text = self.query.get("resourceVersion", "")
        if not text:
            return None
        try:
            return parse_version(text)
        except Invalid as error:
            bad(error.message)

    @property
    def shape(self) -> str:
        """The shape of the answer that the client asks for."""
        accept = self.request.headers.get("Accept", "")
        return negotiation.shape_of(accept, self.query.get("includeObject", ""))

    @property
    def media_type(self) -> str:
        """The media type of the body, as its header states it."""
        return self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def take_in(self) -> None:
        """Wait for a body that is still on its way. Raises Rejected.

        This happens before the request gets a seat: a slow sender must not hold one.
        """
        if not self.request.content.is_eof():
            self._body = await self.body()

    async def body(self) -> bytes:
        """The whole body, bounded in bytes and in time. Raises Rejected."""
        if self._body is not None:
            return self._body
        return await read_body(self.request, self.request.client_max_size)

    def demand_authenticated(self) -> None:
        """Let only authenticated callers through. Raises Forbidden."""
        if self.identity.name in ("", ANONYMOUS) or not acts_as(self.identity):
            raise Forbidden(
                "authentication required: present a client certificate or bearer token",
                code=Reason.UNAUTHENTICATED,
            )

    def demand(self, verb: str) -> None:
        """Let only callers through who may use this verb here. Raises Forbidden."""
        self.demand_authenticated()
        identity, kind = self.identity, self.kind
        if self.services.rights.may(identity, self.permission(verb)):
            return
        where = f' in the namespace "{self.namespace}"' if self.namespace else ""
        raise Forbidden(
            f'{kind.plural}.holdfast.dev is forbidden: User "{identity.name}" cannot {verb} '
            f"resource {kind.plural!r}{where}",
            code=Reason.NOT_ALLOWED,
        )

    def permission(self, verb: str) -> Permission:
        """The permission to use this verb on what the path names."""
        kind = self.kind
        where = self.namespace if kind.namespaced else ""
        name = self.name or selected_name(self.query.get("fieldSelector", ""))
        return Permission(verb, kind.plural, self.route.subresource, where, name)

    @property
    def operation(self) -> str:
        """The caller's own id for this operation."""
        return self.request.headers.get(OPERATION_HEADER, "")

    @property
    def term(self) -> Term | None:
        """The term that a component acts under, as `EPOCH SCOPE`. Raises Rejected."""
        text = self.request.headers.get(TERM_HEADER, "")
        if not text:
            return None
        epoch, _, scope = text.partition(" ")
        if not (epoch.isascii() and epoch.isdigit() and len(epoch) <= 16 and scope):
            bad(f"{TERM_HEADER}: {text[:40]!r} must be the epoch of a lease, a space and its scope")
        return Term(scope, int(epoch))

    async def ask(self, request: Any) -> Accepted | Refusal:
        """The authority's verdict. Raises Unavailable or OutcomeUnknown."""
        verdict: Accepted | Refusal = await self.services.authority.ask(
            self.identity, request, TIMEOUT_S
        )
        await self.wait_for_rights(verdict)
        return verdict

    async def more(self, cost: int) -> None:
        """Wait for further seats: the request costs as much as this many. Raises Overloaded."""
        if self.admission is not None:
            await self.admission.more(self, cost)

    async def wait_for_rights(self, *verdicts: Any) -> None:
        """Wait until accepted changes of roles and bindings have effect at this server."""
        for verdict in verdicts:
            if isinstance(verdict, Accepted) and concerns_rights(verdict.objects):
                await self.services.rights.reached(verdict.revision)

    async def witness(self, verb: str, reason: str = "", *, waits: bool = True) -> None:
        """Record this access in the audit log before the data is given. Raises Unavailable.

        A node does not wait: it gets what its work refers to even while the store is unreachable.
        With `waits` false the access has happened already, and there is nothing to wait for.
        """
        accesses = self.services.accesses
        if accesses is None:
            return
        said = Mutation(
            who=self.identity.name,
            groups=recorded_groups(self.identity),
            verb=verb,
            kind=self.kind.plural,
            namespace=self.namespace,
            name=self.name,
            reason=printable(reason),
            source=source_of(self.request),
            credential=printable(self.services.credential(self.request)),
        )
        if self.identity.node is not None or not waits:
            accesses.note(said)
        else:
            await accesses.record(said)

    def refusal_response(self, refusal: Refusal) -> web.Response:
        """The answer to a request that the authority refused."""
        return reply(*status_objects.of(refusal, self.route.kind, self.name))


def source_of(request: web.BaseRequest) -> str:
    """The address at the other end of the connection."""
    found = request.transport.get_extra_info("peername") if request.transport else None
    return str(found[0]) if found else ""


def selected_name(fields: str) -> str:
    """The one name that a field selector asks for, as `kubectl get NAME --watch` does."""
    for term in fields.split(","):
        path, _, name = term.partition("=")
        if path.strip() == "metadata.name":
            return name.removeprefix("=").strip()
    return ""


def parse_query(text: str) -> dict[str, str]:
    return dict(_pairs(text)) if text else {}


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        bad(f"the query string is malformed or has more than {QUERY_FIELDS_MAX} parameters")


def bad(message: str) -> NoReturn:
    """Raise Rejected with 400 Bad Request."""
    raise Rejected(message, code=status_objects.BAD_REQUEST)


def code_of(verdict: Accepted) -> int:
    """The HTTP code of an accepted request: 201 if it created an object, also by an apply."""
    return 201 if verdict.created else 200


def reply(code: int, body: bytes, headers: dict[str, str] | None = None) -> web.Response:
    """An answer in JSON."""
    if not headers:
        return PlainResponse(code, body)
    return web.Response(body=body, status=code, headers={**JSON_HEADERS, **headers})
