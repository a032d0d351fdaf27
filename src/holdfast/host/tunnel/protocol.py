"""The protocol between a server, which acts for a waiting client, and an agent.

An agent keeps a connection open to each server (`agent_end`), on which the server sends requests, a
line of JSON each (`server_end`). For each the agent opens another connection, the stream: a
WebSocket that carries the data. `docs/adr/0062-reaching-agents.md` says why the agent connects.

On a stream the agent first sends `StreamOpened` or `StreamRefused`, as text. Then come bytes: of a
log unchanged, of a command after the number of their channel, in both directions. `StreamClosed` is
the last message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.host.runtime.logs.reading import LogQuery
from holdfast.model.errors import Unavailable

# Channels of a command, numbered as in Kubernetes.
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

# How often an idle connection sends a sign of life, and when it is given up without one.
PING_S = 10.0
SILENCE_S = 30.0
# How often the peer is probed while a command reads no input and the client reads no output.
TRY_S = 5.0
# Within this time a reachable agent has answered.
ANSWER_S = 10.0
FRAME_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 256 << 10
WORD_BYTES_MAX = 16 << 10

# Why an agent refuses. Servers map them to codes that stock clients know.
NOT_BEGUN, BUSY, GONE, BROKEN = "NotBegun", "Busy", "Gone", "Broken"


class ReadLog(msgspec.Struct, frozen=True, tag="log"):
    """Asks for the log of a replica."""

    uid: str
    wish: LogQuery


class RunCommand(msgspec.Struct, frozen=True, tag="run"):
    """Asks for a command beside the work of a replica."""

    uid: str
    command: tuple[str, ...]
    has_terminal: bool = False
    has_input: bool = False


class TunnelRequest(msgspec.Struct, frozen=True):
    """One request; only this server and this agent know its `id`.

    `tenant` owns the replica. Servers of earlier versions do not send it.
    """

    id: str
    wanted: ReadLog | RunCommand
    tenant: str = ""


class RevocationNotice(msgspec.Struct, frozen=True):
    """A server's statement to every agent of which servers were revoked; see `revoked_servers`.

    Agents of earlier versions do not know it and ignore it.
    """

    revoked: str


class StreamOpened(msgspec.Struct, frozen=True, tag="opened"):
    """The stream begins."""


class StreamRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The agent refuses the request."""

    reason: str
    message: str


class StreamClosed(msgspec.Struct, frozen=True, tag="closed"):
    """The stream is over. A command has a code unless it never ran; then the message says why."""

    code: int | None = None
    message: str = ""


AgentMessage = StreamOpened | StreamRefused | StreamClosed

_WORD = msgspec.json.Decoder(AgentMessage)
_SUMMONS = msgspec.json.Decoder(TunnelRequest)
_ANNOUNCED = msgspec.json.Decoder(RevocationNotice)


def encode_message(of: AgentMessage | TunnelRequest) -> bytes:
    """Encode a message, without the newline."""
    return msgspec.json.encode(of)


def decode_agent_message(text: str | bytes) -> AgentMessage:
    """Decode a message of an agent. Raises Unavailable."""
    try:
        said: AgentMessage = _WORD.decode(text)
        return said
    except msgspec.DecodeError as error:
        raise Unavailable(f"the agent's message cannot be decoded: {error}") from error


def decode_tunnel_request(text: bytes) -> TunnelRequest:
    """Decode a server's request. Raises Unavailable."""
    try:
        return _SUMMONS.decode(text)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the server's request is not known to this agent: {error}") from error


def revocation_notice(text: bytes) -> str:
    """Return the statement of revoked servers in a line; empty for every other line."""
    try:
        return _ANNOUNCED.decode(text).revoked
    except msgspec.DecodeError:
        return ""


async def until_broken(ping: Callable[[], Awaitable[None]]) -> None:
    """Wait until the other end of a WebSocket is gone.

    While input is not read, since a command does not take it, the end would never be noticed.
    """
    while True:
        await asyncio.sleep(TRY_S)
        try:
            await ping()
        except ConnectionError:
            return


# `summons` and `visits` are names on the wire: agents of the previous version use them.
def tunnel_path(node: str) -> str:
    """Return the path on which an agent waits for requests."""
    return f"/apis/holdfast.dev/v1/nodes/{node}/summons"


def stream_path(node: str, number: str) -> str:
    """Return the path of a stream."""
    return f"/apis/holdfast.dev/v1/nodes/{node}/visits/{number}"
