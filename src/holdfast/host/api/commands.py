"""Commands beside a replica's work, for whoever may run them: `kubectl exec`, `holdfast exec`.

The client's WebSocket and the visit of the node's agent are joined here; each side goes as fast
as the other takes in. When either ends, so does the other, and the agent ends the command.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import WSMsgType, web

from holdfast.host.api import channels
from holdfast.host.api.call import Call, bad
from holdfast.host.api.logs import bound
from holdfast.host.audit.accesses import EXEC
from holdfast.host.summons import FRAME_BYTES_MAX, STDERR, STDOUT, Closed, Run, until_broken
from holdfast.host.switchboard import NOT_STARTED, Visit
from holdfast.model.errors import HoldfastError, Rejected
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State

CLOSE_S = 3.0
_ALIVE = (State.RUNNING, State.STOPPING, State.UNKNOWN)


async def run(call: Call) -> web.StreamResponse:
    """Run it, and be its input and output until it ends."""
    # Also for a GET, which a WebSocket is: what it does is not reading.
    call.demand("create")
    channels.demand_websocket(call.request.headers)
    command = _command(call)
    replica, node = await bound(call)
    wanted = _wanted(call, replica, command)
    # The program and not its words: people write passwords there.
    await call.witness(EXEC, command[0])
    async with call.services.switchboard.visit(node, wanted, replica.namespace) as visit:
        client = web.WebSocketResponse(
            timeout=CLOSE_S,
            protocols=channels.PROTOCOLS,
            max_msg_size=FRAME_BYTES_MAX,
            compress=False,
        )
        await client.prepare(call.request)
        # An empty frame tells the client that the command runs.
        await client.send_bytes(bytes((STDOUT if call.flag("stdout") else STDERR,)))
        await _join(client, visit, wanted)
        return client


async def _join(client: web.WebSocketResponse, visit: Visit, wanted: Run) -> None:
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


async def _to_agent(client: web.WebSocketResponse, visit: Visit, wanted: Run) -> None:
    """What the client types. It ends when the client goes."""
    while True:
        message = await client.receive()
        if message.type is not WSMsgType.BINARY:
            return
        if channels.is_for_command(message.data, has_terminal=wanted.has_terminal):
            await visit.send(message.data)


async def _to_client(client: web.WebSocketResponse, visit: Visit) -> None:
    """What the command says, and how it ended."""
    with suppress(ConnectionError):
        try:
            while not isinstance(said := await visit.next(), Closed):
                await client.send_bytes(said)
        except HoldfastError as error:
            said = Closed(None, error.message)
        await client.send_bytes(channels.ended(said))
        await client.close()


def _command(call: Call) -> tuple[str, ...]:
    command = call.every("command")
    if not command or not command[0]:
        bad("command: must name a program")
    if len(command) > channels.COMMAND_WORDS_MAX or any("\x00" in it for it in command):
        bad(f"command: must have at most {channels.COMMAND_WORDS_MAX} words, without U+0000")
    if not any(call.flag(name) for name in ("stdin", "stdout", "stderr")):
        bad("stdin, stdout, stderr: one of them must be true")
    return command


def _wanted(call: Call, replica: Replica, command: tuple[str, ...]) -> Run:
    if replica.status.state not in _ALIVE:
        raise Rejected(
            f"replica {call.name} is {replica.status.state.value}: there is nothing to enter",
            code=NOT_STARTED,
        )
    return Run(replica.metadata.uid, command, call.flag("tty"), call.flag("stdin"))
