"""Commands beside a replica's work, for whoever may run them: `kubectl exec`, `holdfast exec`.

The client's WebSocket and the visit of the node's agent are joined here; each side goes as fast
as the other takes in. When either ends, so does the other, and the agent ends the command.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from holdfast.host.api.call import Call, bad
from holdfast.host.api.plane.logs import bound
from holdfast.host.audit.accesses import EXEC
from holdfast.host.tunnel.protocol import (
    CLOSE,
    FRAME_BYTES_MAX,
    RESIZE,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    RunCommand,
    StreamClosed,
    until_broken,
)
from holdfast.host.tunnel.switchboard import NOT_STARTED, TunnelStream
from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import Forbidden, HoldfastError, Rejected
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason

# The WebSocket on which clients of Kubernetes run commands: channels, and a status at the end.
#
# `api.commands` uses it. `v4.channel.k8s.io` and `v5.channel.k8s.io` differ in one thing: a
# client of the fifth can say that there is no more input. How a command ended is a Status on the
# channel for errors, in the words that kubectl turns into its own exit code.

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
UPGRADE = "websocket"
COMMAND_WORDS_MAX = 1_024


def demand_websocket(headers: Any) -> None:
    """Refuse, in a sentence, clients that cannot speak as we do."""
    if headers.get("Upgrade", "").lower() != UPGRADE:
        bad(
            "commands are run over a WebSocket; kubectl does so from 1.30 on, earlier ones speak "
            "SPDY, which this server does not: use a newer kubectl, or `holdfast exec`"
        )
    offered = [it.strip() for it in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if not any(it in PROTOCOLS for it in offered):
        bad(f"Sec-WebSocket-Protocol: must offer one of {', '.join(PROTOCOLS)}")
    _demand_own_origin(headers)


def _demand_own_origin(headers: Any) -> None:
    """Refuse a WebSocket that a page of another site opens in somebody's browser.

    A browser shows its client certificate to whatever page asks, and only says which page that is.
    Clients that are no browser say nothing. Raises Forbidden.
    """
    origin = headers.get("Origin", "")
    if not origin:
        return
    host = headers.get("Host", "").lower()
    if origin.lower() != f"https://{host}":
        raise Forbidden(
            "Origin: commands are run only from pages of this server itself, not from "
            f"{excerpt(origin)}",
            code=Reason.NOT_ALLOWED,
        )


def is_for_command(frame: bytes, *, has_terminal: bool) -> bool:
    """Whether what a client sent may go on to the command."""
    if not frame:
        return False
    if frame[0] == CLOSE:
        return frame[1:] == bytes((STDIN,))
    return frame[0] == STDIN or (frame[0] == RESIZE and has_terminal)


def ended(of: StreamClosed) -> bytes:
    """The last frame: how it ended."""
    return bytes((STATUS,)) + msgspec.json.encode(_status(of))


def _status(of: StreamClosed) -> dict[str, Any]:
    if of.code == 0:
        return {"metadata": {}, "status": "Success"}
    if of.code is None:
        return failed(of.message)
    message = of.message or f"command terminated with non-zero exit code: {of.code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(of.code)}]},
    }


def failed(message: str) -> dict[str, Any]:
    """The Status of a command of which nobody knows how it ended, or that never began."""
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "code": 500,
    }


CLOSE_S = 3.0
_ALIVE = (State.RUNNING, State.STOPPING, State.UNKNOWN)


async def run(call: Call) -> web.StreamResponse:
    """Run it, and be its input and output until it ends."""
    # Also for a GET, which a WebSocket is: what it does is not reading.
    call.demand("create")
    demand_websocket(call.request.headers)
    command = _command(call)
    replica, node = await bound(call)
    wanted = _wanted(call, replica, command)
    # The program and not its words: people write passwords there.
    await call.witness(EXEC, command[0])
    async with call.services.switchboard.visit(node, wanted, replica.namespace) as visit:
        client = web.WebSocketResponse(
            timeout=CLOSE_S,
            protocols=PROTOCOLS,
            max_msg_size=FRAME_BYTES_MAX,
            compress=False,
        )
        await client.prepare(call.request)
        # An empty frame tells the client that the command runs.
        await client.send_bytes(bytes((STDOUT if call.flag("stdout") else STDERR,)))
        await _join(client, visit, wanted)
        return client


async def _join(client: web.WebSocketResponse, visit: TunnelStream, wanted: RunCommand) -> None:
    tasks = (
        asyncio.create_task(_to_agent(client, visit, wanted)),
        asyncio.create_task(_to_client(client, visit)),
        asyncio.create_task(until_broken(client.ping)),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_agent(client: web.WebSocketResponse, visit: TunnelStream, wanted: RunCommand) -> None:
    """What the client types. It ends when the client goes."""
    while True:
        message = await client.receive()
        if message.type is not WSMsgType.BINARY:
            return
        if is_for_command(message.data, has_terminal=wanted.has_terminal):
            await visit.send(message.data)


async def _to_client(client: web.WebSocketResponse, visit: TunnelStream) -> None:
    """What the command says, and how it ended."""
    with suppress(ConnectionError):
        try:
            while not isinstance(said := await visit.next(), StreamClosed):
                await client.send_bytes(said)
        except HoldfastError as error:
            said = StreamClosed(None, error.message)
        await client.send_bytes(ended(said))
        await client.close()


def _command(call: Call) -> tuple[str, ...]:
    command = call.every("command")
    if not command or not command[0]:
        bad("command: must name a program")
    if len(command) > COMMAND_WORDS_MAX or any("\x00" in it for it in command):
        bad(f"command: must have at most {COMMAND_WORDS_MAX} words, without U+0000")
    if not any(call.flag(name) for name in ("stdin", "stdout", "stderr")):
        bad("stdin, stdout, stderr: one of them must be true")
    return command


def _wanted(call: Call, replica: Replica, command: tuple[str, ...]) -> RunCommand:
    if replica.status.state not in _ALIVE:
        raise Rejected(
            f"replica {call.name} is {replica.status.state.value}: there is nothing to enter",
            code=NOT_STARTED,
        )
    return RunCommand(replica.metadata.uid, command, call.flag("tty"), call.flag("stdin"))
