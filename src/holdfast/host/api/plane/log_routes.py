"""Logs of replicas: `kubectl logs`, `holdfast logs`.

This module finds the replica and its node and checks the permission. The text comes from the node's
agent (`tunnel.server_end`) and is passed on unchanged, never faster than the client reads.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from aiohttp import web

from holdfast.host.api.call import Call, bad
from holdfast.host.api.objects.core_names import CONTAINER
from holdfast.host.api.objects.reads import current
from holdfast.host.audit.accesses import READ_LOG
from holdfast.host.runtime.logs.log_files import moment
from holdfast.host.runtime.logs.reading import TAIL_MAX, LogQuery
from holdfast.host.tunnel.protocol import ReadLog, StreamClosed
from holdfast.host.tunnel.server_end import NOT_STARTED, TunnelStream
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import HoldfastError, Missing, Rejected
from holdfast.model.kinds.replica import Replica

# A reader that takes nothing for this long counts as gone.
WRITE_TIMEOUT_S = 600.0
SINCE_MAX_S = 1_000_000_000
_HEADERS = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-cache, private"}


async def read(call: Call) -> web.StreamResponse:
    """Send the log until its end, or until the client leaves."""
    call.demand("get")
    wish = _wish(call, datetime.now(UTC))
    replica, node = await bound_replica(call)
    await call.witness(READ_LOG)
    async with call.services.tunnels.open_stream(
        node, ReadLog(replica.metadata.uid, wish), replica.namespace
    ) as stream:
        response = web.StreamResponse(headers=_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        await _pass_on(response, stream)
        await response.write_eof()
        return response


async def _pass_on(response: web.StreamResponse, stream: TunnelStream) -> None:
    try:
        while not isinstance(said := await stream.next(), StreamClosed):
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await response.write(said)
        ending = said.message
    except HoldfastError as error:
        ending = error.message
    if ending:
        # The response began long ago, so the error can only be written into the text.
        await response.write(f"[holdfast: the log ends here: {ending}]\n".encode())


async def bound_replica(call: Call) -> tuple[Replica, str]:
    """The replica of the path and the node it is on. Raises Missing or Rejected."""
    container = call.query.get("container", "")
    if container not in ("", CONTAINER):
        bad(f"container {container[:63]} is not valid for pod {call.name}; use {CONTAINER}")
    entry = await current(call)
    if entry is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    replica = decode_trusted(Replica, entry.data)
    binding = replica.status.binding
    if binding is None:
        raise Rejected(
            f"replica {call.name} is {replica.status.state.value} and not bound to a node: wait "
            "until it runs",
            code=NOT_STARTED,
        )
    return replica, binding.node


def _wish(call: Call, now: datetime) -> LogQuery:
    tail, limit = call.number("tailLines"), call.number("limitBytes")
    if tail is not None and tail > TAIL_MAX:
        bad(f"tailLines: {tail} must be at most {TAIL_MAX}")
    if limit == 0:
        bad("limitBytes: 0 must be at least 1")
    return LogQuery(
        follow=call.flag("follow"),
        tail=tail,
        since=since(call.number("sinceSeconds"), call.query.get("sinceTime", ""), now),
        limit_bytes=limit,
        timestamps=call.flag("timestamps"),
        previous=call.flag("previous"),
    )


def since(seconds: int | None, at: str, now: datetime) -> str:
    """The first time to show, in the form of log records; empty for all. Raises Rejected."""
    if seconds is not None and at:
        bad("sinceTime: must not be given together with sinceSeconds")
    try:
        if seconds is not None:
            if not 0 < seconds <= SINCE_MAX_S:
                bad(f"sinceSeconds: {seconds} must be from 1 to {SINCE_MAX_S}")
            return moment(now - timedelta(seconds=seconds)).decode()
        if not at:
            return ""
        stated = datetime.fromisoformat(at)
        if stated.tzinfo is None:
            bad(f"sinceTime: {at[:40]!r} must have a time zone")
        return moment(stated).decode()
    except (ValueError, OverflowError):
        bad(f"sinceTime: {at[:40]!r} must be a time such as 2026-11-16T08:00:00Z")
