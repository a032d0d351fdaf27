"""Which nodes servers have heard, exchanged between servers; and which servers there are.

The shell of `commit/heartbeat_intake` asks through `other_servers`, which calls
`decode_heartbeat_report`; `server_process` gives the handlers to the HTTP server. The first path
requires a server's certificate, as forwarded requests do. Any certificate of the plane may ask for
the list of servers (`known_servers`). `watch_server_leases` reports servers whose lease has
expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import reply
from holdfast.host.client import known_servers
from holdfast.host.client.answers import UNREADABLE
from holdfast.host.process import clock
from holdfast.host.process.shell import Shell
from holdfast.host.server.forwarding import Handler, Shown, refusal_reason
from holdfast.model.errors import Forbidden, HoldfastError, Unavailable
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, ServerRoster
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant

PATH = "/peers/heard"
ANSWER_S = 2.0
ALARM_LOOK_S = 1.0
_ENCODER = msgspec.json.Encoder()
_HEARD = msgspec.json.Decoder(HeartbeatReport)


Read = Callable[[Instant], ServerRoster | None]


def handlers(
    renewals: Shell,
    read: Read,
    shown: Shown,
    generation: Callable[[], int] = lambda: 0,
    revoked: Callable[[], str] = lambda: "",
) -> dict[str, Handler]:
    """Return the handlers by path. `read` gives the servers by their leases, `generation` that of
    the trust bundle here, `revoked` the revoked servers.
    """

    async def tell(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = shown(request.transport)
            if peer is None or peer.server is None:
                raise Forbidden(
                    "only servers may read the heartbeat report", code=refusal_reason(peer)
                )
            answer: Any = await renewals.ask(peer, HeartbeatQuery(), ANSWER_S)
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        if isinstance(answer, Refusal):
            return reply(*status_objects.of(answer))
        return reply(200, _ENCODER.encode(answer))

    async def tell_servers(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = shown(request.transport)
            if refusal_reason(peer) is Reason.UNAUTHENTICATED:
                raise Forbidden(
                    "present a client certificate of this plane to list its servers",
                    code=Reason.UNAUTHENTICATED,
                )
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        live = known_servers.live_servers(read(clock.now()), generation(), revoked())
        return reply(200, _ENCODER.encode(live))

    return {PATH: tell, known_servers.PATH: tell_servers}


def expired_servers(read: Read) -> dict[str, int]:
    """Return the servers whose lease has expired, and for how long they have not renewed it."""
    roster = read(clock.now())
    return roster.expired_servers() if roster is not None else {}


class ServerLeaseAlarm:
    """Reports once that a server's lease has expired, and once when that is over."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def messages(self, gone: dict[str, int]) -> list[str]:
        """Return the messages for an operator, given the expired servers and for how many ms."""
        lost = [
            f"server {name} has not renewed its lease for {gone[name] / 1_000:.0f} s and no longer "
            "counts: nodes that only it heard are considered silent. Start it again; if it is gone "
            "for good, its lease is removed after a day."
            for name in sorted(gone.keys() - self._known)
        ]
        back = [
            f"server {name} is back, or its lease was released or removed."
            for name in sorted(self._known - gone.keys())
        ]
        self._known = set(gone)
        return [*lost, *back]


async def watch_server_leases(read: Read, say: Callable[[str], None]) -> None:
    """Report expired server leases until cancelled."""
    alarm = ServerLeaseAlarm()
    while True:
        for sentence in alarm.messages(expired_servers(read)):
            say(sentence)
        await asyncio.sleep(ALARM_LOOK_S)


def decode_heartbeat_report(server: str, body: bytes) -> HeartbeatReport:
    """Return which nodes another server has heard. Raises Unavailable."""
    try:
        return _HEARD.decode(body)
    except UNREADABLE as error:
        raise Unavailable(f"server {server}: its heartbeat report: {error}") from error
