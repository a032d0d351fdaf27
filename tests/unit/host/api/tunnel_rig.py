"""A server with one replica, and an agent of its node that answers as a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from holdfast.commit.record_encoding import encode as stored
from holdfast.host.tunnel import protocol
from holdfast.host.tunnel.protocol import StreamClosed, StreamOpened, TunnelRequest, encode_message
from holdfast.model import keys
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import EnvVar, Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.transaction import Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.unit.host.api.api_rig import ApiRig, play

POD = "/api/v1/namespaces/acme/pods/web-0-0"
Socket = aiohttp.ClientWebSocketResponse
Answering = Callable[[TunnelRequest, Socket], Awaitable[None]]


def replica(state: State = State.RUNNING, **more: Any) -> Replica:
    template = Template(command=("serve",), env=(EnvVar("KEY", "hush"),))
    binding = Binding(node="n1", node_uid="n")
    return Replica(
        ObjectMeta(name="web-0-0", namespace="acme", uid="uid-web"),
        spec=ReplicaSpec(workload="web", workload_uid="u", ordinal=0, template=template),
        status=ReplicaStatus(**{"state": state, "binding": binding, **more}),
    )


def with_replica(story: Callable[[ApiRig], Awaitable[None]], found: Replica | None = None) -> None:
    """Play a story on a server that has one replica, the usual one unless it is given."""
    made = found or replica()

    async def played() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await rig.store.txn(Transaction((), (Put(keys.key_of(made), stored(made)),)))
            await story(rig)

    play(played())


class Agent:
    """An agent that answers as a test wants it to."""

    def __init__(self, rig: ApiRig, answer: Answering) -> None:
        self._rig, self._answer = rig, answer
        self.asked: list[TunnelRequest] = []
        self.is_connected, self.is_asked = asyncio.Event(), asyncio.Event()
        self.has_ended = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        headers = {"X-Test-User": "system:node:n1"}
        path = self._rig.url + protocol.tunnel_path("n1")
        async with self._rig.http.get(path, headers=headers) as response:
            assert response.status == 200
            async for line in response.content:
                self.is_connected.set()
                if line.strip():
                    self.tasks.append(
                        asyncio.create_task(self._visit(protocol.decode_tunnel_request(line)))
                    )
        self.has_ended.set()

    async def _visit(self, asked: TunnelRequest) -> None:
        self.asked.append(asked)
        self.is_asked.set()
        headers = {"X-Test-User": "system:node:n1"}
        path = self._rig.url + protocol.stream_path("n1", asked.id)
        async with self._rig.http.ws_connect(path, headers=headers) as socket:
            await self._answer(asked, socket)


@asynccontextmanager
async def connected_agent(rig: ApiRig, answer: Answering) -> AsyncIterator[Agent]:
    """An agent that is connected to the server, and ends with this context."""
    agent = Agent(rig, answer)
    living = asyncio.create_task(agent.live())
    await agent.is_connected.wait()
    try:
        yield agent
    finally:
        for task in (living, *agent.tasks):
            task.cancel()
        await asyncio.gather(living, *agent.tasks, return_exceptions=True)


async def say(socket: Socket, word: Any) -> None:
    await socket.send_str(encode_message(word).decode())


async def tell_log(asked: TunnelRequest, socket: Socket) -> None:
    await say(socket, StreamOpened())
    await socket.send_bytes(b"hello\n")
    await say(socket, StreamClosed(0))
    await socket.receive()
