"""Commands inside a running replica: `kubectl exec`, `holdfast exec`.

This module joins the client's WebSocket with a tunnel stream to the node's agent; neither side
sends faster than the other reads. When either ends, so does the other, and the agent ends the
command.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from holdfast.host.api.call import Call, bad
from holdfast.host.api.plane.log_routes import bound_replica
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
from holdfast.host.tunnel.server_end import NOT_STARTED, TunnelStream
from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import Forbidden, HoldfastError, Rejected
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason

# The WebSocket on which clients of Kubernetes run commands: channels, and a status at the end.
#
# `v4.channel.k8s.io` and `v5.channel.k8s.io` differ in one thing: a v5 client can close the input.
# A Status on the error channel says how the command ended, in the form that kubectl turns into its
# own exit code.

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
UPGRADE = "websocket"
COMMAND_WORDS_MAX = 1_024


def demand_websocket(headers: Any) -> None:
    """Refuse clients without a WebSocket protocol that this server supports."""
    if headers.get("Upgrade", "").lower() != UPGRADE:
        bad(
            "exec requires a WebSocket; SPDY, which kubectl before 1.30 uses, is not supported: "
            "use kubectl 1.30 or later, or `holdfast exec`"
        )
    offered = [it.strip() for it in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if not any(it in PROTOCOLS for it in offered):
        bad(f"Sec-WebSocket-Protocol: must offer one of {', '.join(PROTOCOLS)}")
    _demand_own_origin(headers)


def _demand_own_origin(headers: Any) -> None:
    """Refuse a WebSocket that a page of another site opens in a user's browser.

    A browser presents its client certificate for any page that asks, and only states which page
    that is. Clients that are not browsers send no Origin. Raises Forbidden.
    """
    origin = headers.get("Origin", "")
    if not origin:
        return
    host = headers.get("Host", "").lower()
    if origin.lower() != f"https://{host}":
        raise Forbidden(
            f"Origin: {excerpt(origin)} must be this server: exec is not open to pages of other "
            "sites",
            code=Reason.NOT_ALLOWED,
        )


def is_for_command(frame: bytes, *, has_terminal: bool) -> bool:
    """Whether a frame from the client may go on to the command."""
    if not frame:
        return False
    if frame[0] == CLOSE:
        return frame[1:] == bytes((STDIN,))
    return frame[0] == STDIN or (frame[0] == RESIZE and has_terminal)


def end_frame(of: StreamClosed) -> bytes:
    """The last frame: how the command ended."""
    return bytes((STATUS,)) + msgspec.json.encode(_status(of))


def _status(of: StreamClosed) -> dict[str, Any]:
    if of.code == 0:
        return {"metadata": {}, "status": "Success"}
    if of.code is None:
        return failure_status(of.message)
    message = of.message or f"command terminated with non-zero exit code: {of.code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(of.code)}]},
    }


def failure_status(message: str) -> dict[str, Any]:
    """The Status of a command that never began, or whose end is unknown."""
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
    """Run the command, and pass its input and output until it ends."""
    # A WebSocket begins with a GET, but running a command is more than reading.
    call.demand("create")
    demand_websocket(call.request.headers)
    command = _command(call)
    replica, node = await bound_replica(call)
    wanted = _wanted(call, replica, command)
    # Only the program is recorded: its arguments may hold passwords.
    await call.witness(EXEC, command[0])
    async with call.services.tunnels.open_stream(node, wanted, replica.namespace) as stream:
        client = web.WebSocketResponse(
            timeout=CLOSE_S,
            protocols=PROTOCOLS,
            max_msg_size=FRAME_BYTES_MAX,
            compress=False,
        )
        await client.prepare(call.request)
        # An empty frame tells the client that the command runs.
        await client.send_bytes(bytes((STDOUT if call.flag("stdout") else STDERR,)))
        await _join(client, stream, wanted)
        return client


async def _join(client: web.WebSocketResponse, stream: TunnelStream, wanted: RunCommand) -> None:
    tasks = (
        asyncio.create_task(_to_agent(client, stream, wanted)),
        asyncio.create_task(_to_client(client, stream)),
        asyncio.create_task(until_broken(client.ping)),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_agent(
    client: web.WebSocketResponse, stream: TunnelStream, wanted: RunCommand
) -> None:
    """Pass on the client's input until the client leaves."""
    while True:
        message = await client.receive()
        if message.type is not WSMsgType.BINARY:
            return
        if is_for_command(message.data, has_terminal=wanted.has_terminal):
            await stream.send(message.data)


async def _to_client(client: web.WebSocketResponse, stream: TunnelStream) -> None:
    """Pass on the command's output, and how it ended."""
    with suppress(ConnectionError):
        try:
            while not isinstance(said := await stream.next(), StreamClosed):
                await client.send_bytes(said)
        except HoldfastError as error:
            said = StreamClosed(None, error.message)
        await client.send_bytes(end_frame(said))
        await client.close()


def _command(call: Call) -> tuple[str, ...]:
    command = call.every("command")
    if not command or not command[0]:
        bad("command: must name a program")
    if len(command) > COMMAND_WORDS_MAX or any("\x00" in it for it in command):
        bad(f"command: must have at most {COMMAND_WORDS_MAX} arguments, without U+0000")
    if not any(call.flag(name) for name in ("stdin", "stdout", "stderr")):
        bad("stdin, stdout, stderr: at least one of them must be true")
    return command


def _wanted(call: Call, replica: Replica, command: tuple[str, ...]) -> RunCommand:
    if replica.status.state not in _ALIVE:
        raise Rejected(
            f"replica {call.name} is {replica.status.state.value}: exec needs a running replica",
            code=NOT_STARTED,
        )
    return RunCommand(replica.metadata.uid, command, call.flag("tty"), call.flag("stdin"))
