"""What a server asks of an agent for a person who waits, and how the agent answers.

An agent keeps a connection open to each server (`attending`), on which servers send summonses,
a line of JSON each (`tunnel.server_end`). For each the agent opens another connection, the visit: a
WebSocket that carries what is said. `docs/adr/0062-reaching-agents.md` says why it is the agent
who calls.

On a visit the agent first sends `StreamOpened` or `StreamRefused`, as text. Then come bytes: of a log as
they are, of a command with the number of their channel in front, in both directions. `StreamClosed`
is the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.host.runtime.logs.reading import LogQuery
from holdfast.model.errors import Unavailable

# Channels of a command, as Kubernetes numbers them.
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

# An idle connection shows in so long that it lives, and is given up after so long without a sign.
PING_S = 10.0
SILENCE_S = 30.0
# So often it is tried whether anybody is there, while a command takes no input and nobody reads.
TRY_S = 5.0
# Within this an agent that can be reached has answered.
ANSWER_S = 10.0
FRAME_BYTES_MAX = 1 << 20
LINE_BYTES_MAX = 256 << 10
WORD_BYTES_MAX = 16 << 10

# Why an agent refuses. Servers turn them into codes that stock clients know.
NOT_BEGUN, BUSY, GONE, BROKEN = "NotBegun", "Busy", "Gone", "Broken"


class ReadLog(msgspec.Struct, frozen=True, tag="log"):
    """The log of a replica."""

    uid: str
    wish: LogQuery


class RunCommand(msgspec.Struct, frozen=True, tag="run"):
    """A command beside the work of a replica."""

    uid: str
    command: tuple[str, ...]
    has_terminal: bool = False
    has_input: bool = False


class TunnelRequest(msgspec.Struct, frozen=True):
    """One thing to do; `id` is known to nobody but this server and this agent.

    `tenant` is whose replica it is about. Servers of earlier versions do not say.
    """

    id: str
    wanted: ReadLog | RunCommand
    tenant: str = ""


class RevocationNotice(msgspec.Struct, frozen=True):
    """What a server tells every agent: which servers were revoked; see `revoked_servers`.

    Agents of earlier versions take it for something that they do not know, and go on.
    """

    revoked: str


class StreamOpened(msgspec.Struct, frozen=True, tag="opened"):
    """It begins."""


class StreamRefused(msgspec.Struct, frozen=True, tag="refused"):
    """It does not."""

    reason: str
    message: str


class StreamClosed(msgspec.Struct, frozen=True, tag="closed"):
    """It is over. A command has a code unless it was never run; then the message says why."""

    code: int | None = None
    message: str = ""


AgentMessage = StreamOpened | StreamRefused | StreamClosed

_WORD = msgspec.json.Decoder(AgentMessage)
_SUMMONS = msgspec.json.Decoder(TunnelRequest)
_ANNOUNCED = msgspec.json.Decoder(RevocationNotice)


def encode_message(of: AgentMessage | TunnelRequest) -> bytes:
    """As it is sent, without the end of a line."""
    return msgspec.json.encode(of)


def decode_agent_message(text: str | bytes) -> AgentMessage:
    """What an agent said. Raises Unavailable."""
    try:
        said: AgentMessage = _WORD.decode(text)
        return said
    except msgspec.DecodeError as error:
        raise Unavailable(f"an agent said what cannot be read: {error}") from error


def decode_tunnel_request(text: bytes) -> TunnelRequest:
    """What a server asks. Raises Unavailable."""
    try:
        return _SUMMONS.decode(text)
    except msgspec.DecodeError as error:
        raise Unavailable(f"a server asks for what this agent does not know: {error}") from error


def revocation_notice(text: bytes) -> str:
    """Which servers were revoked, if a line tells that; empty for every other."""
    try:
        return _ANNOUNCED.decode(text).revoked
    except msgspec.DecodeError:
        return ""


async def until_broken(ping: Callable[[], Awaitable[None]]) -> None:
    """Until nobody is at the other end of a WebSocket.

    Where what comes is not read, since a command does not take it, the end would never be seen.
    """
    while True:
        await asyncio.sleep(TRY_S)
        try:
            await ping()
        except ConnectionError:
            return


def tunnel_path(node: str) -> str:
    """Where an agent waits to be asked."""
    return f"/apis/holdfast.dev/v1/nodes/{node}/summons"


def stream_path(node: str, number: str) -> str:
    """Where it answers."""
    return f"/apis/holdfast.dev/v1/nodes/{node}/visits/{number}"
