"""Versions over HTTP: the version of each component, and raising the plane's format.

`holdfast upgrade` asks. Neither is a Kubernetes resource. Servers are known by their leases, by
this server's own clock; schedulers and controllers by theirs, and agents by their nodes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.record_encoding import decode_or_none
from holdfast.host.api.call import Call, Route, reply
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.client.paths import GROUP
from holdfast.model import keys, plane_format
from holdfast.model.access.identity import OPERATORS
from holdfast.model.access.rights import Permission
from holdfast.model.encoding.problems import describe_error, malformed_error
from holdfast.model.errors import Conflict, Forbidden, Unavailable
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, ServerRoster
from holdfast.model.plane_format import InstalledPart, PlaneFormat, RaiseRequest, Upgrade
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import RaiseFormat
from holdfast.store.contract import Store

PAGE = 500
ANSWER_S = 5.0
# A scheduler or a controller that did not renew its lease for this long counts as gone.
GONE_AFTER_S = 60.0
_GONE_PHASES = (NodePhase.FENCED, NodePhase.LOST)
_PARTS = ("scheduler", "controller")
_ENCODER = msgspec.json.Encoder()
_RAISE = msgspec.json.Decoder(RaiseRequest)


def _demand(call: Call, verb: str) -> None:
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission(verb, "upgrade")):
        raise Forbidden(
            f'upgrade is forbidden: User "{call.identity.name}" cannot {verb} upgrade; members of '
            f"the group {OPERATORS} can",
            code=Reason.NOT_ALLOWED,
        )


async def show(call: Call) -> web.StreamResponse:
    """The format of the plane, and the version of each component."""
    _demand(call, "get")
    return reply(200, _ENCODER.encode(await _found(call)))


async def raise_format(call: Call) -> web.StreamResponse:
    """Raise the format, unless a component of an older version still runs."""
    _demand(call, "update")
    demand_json(call)
    try:
        wanted = _RAISE.decode(await call.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(
            f"is not a request to raise the format: {describe_error(error)}"
        ) from None
    found = await _found(call)
    refusal = found.refusal()
    if refusal:
        raise Conflict(refusal)
    verdict = await call.ask(RaiseFormat(wanted.to, wanted.word))
    if isinstance(verdict, Refusal):
        return call.refusal_response(verdict)
    return reply(200, _ENCODER.encode(msgspec.structs.replace(found, format=wanted.to)))


async def _found(call: Call) -> Upgrade:
    store = call.services.store
    # A plane without a format has no records yet; its first record comes with the newest format.
    formats = [it async for it in _all(store, keys.FORMATS) if isinstance(it, PlaneFormat)]
    newest = plane_format.FORMAT
    current = formats[0].format if formats else newest
    leases = [it async for it in _of(store, Lease)]
    parts = [*_servers(await _roster(call)), *_components(leases)]
    parts += [_agent(it) async for it in _of(store, Node)]
    return Upgrade(current, newest, plane_format.VERSION, tuple(parts))


async def _roster(call: Call) -> ServerRoster:
    machine = call.services.renewals
    heard: Any = None
    if machine is not None:
        heard = await machine.ask(call.identity, HeartbeatQuery(), ANSWER_S)
    if not isinstance(heard, HeartbeatReport) or heard.roster is None:
        raise Unavailable("this server does not know all servers yet; try again in a few seconds")
    return heard.roster


def _servers(roster: ServerRoster) -> Iterator[InstalledPart]:
    expired = roster.expired_servers()
    for it in roster.servers:
        yield InstalledPart("server", it.server, it.version, not it.life or it.server in expired)


def _components(leases: list[Lease]) -> list[InstalledPart]:
    """Schedulers and controllers, each process once, however many leases it holds."""
    found: dict[InstalledPart, None] = {}
    now_s = time.time()
    for spec in (it.spec for it in leases if it.spec.holder):
        part, _, name = spec.scope.partition(":")
        if part in _PARTS:
            renewed_s = spec.renewed.timestamp() if spec.renewed is not None else 0
            process = name if part == "scheduler" else spec.instance or name
            is_gone = now_s - renewed_s > GONE_AFTER_S
            found[InstalledPart(part, process, spec.version, is_gone)] = None
    return list(found)


def _agent(node: Node) -> InstalledPart:
    is_gone = node.status.phase in _GONE_PHASES
    return InstalledPart("agent", node.name, node.status.agent_version, is_gone)


async def _of(store: Store, cls: type[Any]) -> AsyncIterator[Any]:
    async for found in _all(store, keys.kind_prefix(kind_of_struct(cls))):
        yield found


async def _all(store: Store, prefix: str) -> AsyncIterator[Any]:
    """All records below a prefix that this version can decode."""
    start: str | None = prefix
    while start is not None:
        page = await store.range(start, keys.after_prefix(prefix), limit=PAGE)
        for record in page.records:
            found = decode_or_none(record)
            if found is not None:
                yield found
        start = page.more_from


ROUTES = (
    Route(f"{GROUP}/upgrade", "GET", "get", show),
    Route(f"{GROUP}/upgrade/format", "POST", "raise", raise_format),
)
