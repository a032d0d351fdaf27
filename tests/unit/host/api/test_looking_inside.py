"""What a server makes of agents that answer, refuse, are silent or go, and of clients that do."""

from __future__ import annotations

import asyncio
import json
import socket as socket_
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.commit.records import encode as stored
from holdfast.host import summons, switchboard
from holdfast.host.api import channels, pods
from holdfast.host.runtime.log_reading import Wish
from holdfast.host.summons import Closed, Opened, ReadLog, Refused, Run, Summons, encoded
from holdfast.model import keys
from holdfast.model.errors import Rejected, Unavailable
from holdfast.model.kinds.replica import Binding, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import EnvVar, Template
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, Answer, ApiRig, play, store_of

POD = "/api/v1/namespaces/acme/pods/web-0-0"
OURS = f"{GROUP}/namespaces/acme/replicas/web-0-0"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}
Socket = aiohttp.ClientWebSocketResponse
Answering = Callable[[Summons, Socket], Awaitable[None]]


def replica(state: State = State.RUNNING, **more: Any) -> Replica:
    template = Template(command=("serve",), env=(EnvVar("KEY", "hush"),))
    binding = Binding(node="n1", node_uid="n")
    return Replica(
        ObjectMeta(name="web-0-0", namespace="acme", uid="uid-web"),
        spec=ReplicaSpec(workload="web", workload_uid="u", ordinal=0, template=template),
        status=ReplicaStatus(**{"state": state, "binding": binding, **more}),
    )


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any, found: Replica) -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await rig.tenant()
            write = Put(keys.key_of(found), stored(found))
            await rig.store.txn(Transaction((), (write,)))
            await story(rig)

    return lambda story, found=None: play(played(story, found or replica()))


class Agent:
    """An agent that answers as a test wants it to."""

    def __init__(self, rig: ApiRig, answer: Answering) -> None:
        self._rig, self._answer = rig, answer
        self.asked: list[Summons] = []
        self.is_connected, self.is_asked = asyncio.Event(), asyncio.Event()
        self.has_ended = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        headers = {"X-Test-User": "system:node:n1"}
        path = self._rig.url + summons.summons_path("n1")
        async with self._rig.http.get(path, headers=headers) as response:
            assert response.status == 200
            async for line in response.content:
                self.is_connected.set()
                if line.strip():
                    self.tasks.append(asyncio.create_task(self._visit(summons.summons(line))))
        self.has_ended.set()

    async def _visit(self, asked: Summons) -> None:
        self.asked.append(asked)
        self.is_asked.set()
        headers = {"X-Test-User": "system:node:n1"}
        path = self._rig.url + summons.visit_path("n1", asked.id)
        async with self._rig.http.ws_connect(path, headers=headers) as socket:
            await self._answer(asked, socket)


@asynccontextmanager
async def attended(rig: ApiRig, answer: Answering) -> AsyncIterator[Agent]:
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
    await socket.send_str(encoded(word).decode())


async def tell_log(asked: Summons, socket: Socket) -> None:
    await say(socket, Opened())
    await socket.send_bytes(b"hello\n")
    await say(socket, Closed(0))
    await socket.receive()


def test_a_log_is_asked_of_the_node_that_the_replica_is_on(run: Any) -> None:
    """Every wish arrives, under both names of a replica. [H1]"""

    async def story(rig: ApiRig) -> None:
        async with attended(rig, tell_log) as agent:
            for path in (f"{POD}/log", f"{OURS}/log"):
                answer = await rig.send("GET", path, user="ada")
                assert (answer.code, answer.raw) == (200, b"hello\n")
                assert answer.headers["Content-Type"].startswith("text/plain")
            query = {
                "follow": "true",
                "tailLines": "5",
                "limitBytes": "9",
                "timestamps": "true",
                "previous": "1",
                "container": "work",
                "sinceTime": "2026-11-16T09:00:00.5+01:00",
            }
            await rig.send("GET", f"{POD}/log", **query)
        wish = Wish(
            follow=True,
            tail=5,
            since="2026-11-16T08:00:00.500000000Z",
            limit_bytes=9,
            timestamps=True,
            previous=True,
        )
        assert agent.asked[-1].wanted == ReadLog("uid-web", wish)
        assert agent.asked[0].wanted == ReadLog("uid-web", Wish())
        assert len({asked.id for asked in agent.asked}) == 3

    run(story)


@pytest.mark.parametrize(
    "query, word",
    [
        ({"tailLines": "-1"}, "tailLines"),
        ({"tailLines": "x"}, "tailLines"),
        ({"tailLines": "99999999999"}, "tailLines"),
        ({"limitBytes": "0"}, "limitBytes"),
        ({"sinceSeconds": "0"}, "sinceSeconds"),
        ({"sinceSeconds": "99999999999999"}, "sinceSeconds"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "2026-11-16T09:00:00"}, "sinceTime"),
        ({"sinceTime": "2026-11-16T09:00:00Z", "sinceSeconds": "5"}, "sinceTime"),
        ({"follow": "perhaps"}, "follow"),
        ({"container": "sidecar"}, "sidecar"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_by_its_name(
    run: Any, query: dict[str, str], word: str
) -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", f"{POD}/log", **query)
        assert answer.code == 400
        assert word in answer.body["message"]

    run(story)


async def _refusal(rig: ApiRig) -> Answer:
    answer = await rig.send("GET", f"{POD}/log")
    # Stock clients try again, ten times, whatever has this header.
    assert "Retry-After" not in answer.headers
    return answer


def test_a_node_without_a_connection_is_named_with_how_long_it_has_had_none(run: Any) -> None:
    """[H3]"""

    async def story(rig: ApiRig) -> None:
        answer = await _refusal(rig)
        assert answer.code == 502
        assert "node n1 has had no connection to this server since" in answer.body["message"]
        async with attended(rig, tell_log):
            assert (await rig.send("GET", f"{POD}/log")).code == 200
        # It may take the server a moment to notice.
        while (answer := await rig.send("GET", f"{POD}/log")).code == 200:
            continue
        assert "node n1 has had no connection to this server for 0 s" in answer.body["message"]

    run(story)


def test_a_node_that_does_not_answer_is_not_waited_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[H3]"""
    monkeypatch.setattr(switchboard, "ANSWER_S", 0.05)

    async def silent(asked: Summons, socket: Socket) -> None:
        await socket.receive()

    async def story(rig: ApiRig) -> None:
        async with attended(rig, silent):
            answer = await _refusal(rig)
        assert answer.code == 502
        assert "node n1 did not answer within" in answer.body["message"]

    run(story)


@pytest.mark.parametrize(
    "reason, code",
    [(summons.NOT_BEGUN, 400), (summons.GONE, 400), (summons.BUSY, 429), (summons.BROKEN, 502)],
)
def test_what_an_agent_refuses_is_passed_on_with_its_sentence(
    run: Any, reason: str, code: int
) -> None:
    async def refuse(asked: Summons, socket: Socket) -> None:
        await say(socket, Refused(reason, "for a reason"))

    async def story(rig: ApiRig) -> None:
        async with attended(rig, refuse):
            answer = await rig.send("GET", f"{POD}/log")
        assert (answer.code, answer.body["message"]) == (code, "for a reason")

    run(story)


def test_a_log_that_breaks_off_says_so_where_it_does(run: Any) -> None:
    async def vanish(asked: Summons, socket: Socket) -> None:
        await say(socket, Opened())
        await socket.send_bytes(b"half\n")

    async def story(rig: ApiRig) -> None:
        async with attended(rig, vanish):
            answer = await rig.send("GET", f"{POD}/log", follow="true")
        assert answer.raw.startswith(
            b"half\n[holdfast: the log ends here: the connection to node n1"
        )

    run(story)


def test_a_client_that_does_not_read_holds_the_agent_back(run: Any) -> None:
    """What is in between stays bounded, and when the client goes, the agent is told. [H1]"""
    sent, is_held, is_gone = 0, asyncio.Event(), asyncio.Event()
    piece = b"x" * 65_536

    async def flood(asked: Summons, socket: Socket) -> None:
        nonlocal sent
        await say(socket, Opened())
        try:
            while True:
                async with asyncio.timeout(0.5):
                    await socket.send_bytes(piece)
                sent += len(piece)
        except TimeoutError:
            is_held.set()
        await socket.receive()
        is_gone.set()

    async def story(rig: ApiRig) -> None:
        async with attended(rig, flood):
            response = await rig.http.get(f"{rig.url}{POD}/log", headers={"X-Test-User": "ada"})
            await is_held.wait()
            assert 0 < sent < 32 << 20
            assert not is_gone.is_set()
            response.close()
            await is_gone.wait()

    run(story)


def test_a_later_connection_of_a_node_takes_the_place_of_the_earlier(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        async with attended(rig, tell_log) as first, attended(rig, tell_log) as second:
            await first.has_ended.wait()
            assert (await rig.send("GET", f"{POD}/log")).code == 200
            assert len(second.asked) == 1

    run(story)


def test_what_a_lost_node_was_saying_ends(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own connection may look alive for long when a machine is gone. [H3]"""
    monkeypatch.setattr(switchboard, "LINE_LOST_S", 0.01)

    async def hang(asked: Summons, socket: Socket) -> None:
        await say(socket, Opened())
        await asyncio.Event().wait()

    async def story(rig: ApiRig) -> None:
        async with attended(rig, hang) as agent:
            reading = asyncio.create_task(rig.send("GET", f"{POD}/log", follow="true"))
            await agent.is_asked.wait()
            board = rig.api.services.switchboard
            board.disconnect(board._lines["n1"])
            answer = await reading
        assert b"[holdfast: the log ends here" in answer.raw

    run(story)


def test_only_the_nodes_own_agent_waits_and_visits(run: Any) -> None:
    """[H1]"""

    async def story(rig: ApiRig) -> None:
        for user in ("admin", "ada", "system:node:n2", "system:server:one"):
            for path in (summons.summons_path("n1"), summons.visit_path("n1", "0" * 32)):
                assert (await rig.send("GET", path, user=user)).code == 403
        missing = await rig.send("GET", summons.visit_path("n1", "0" * 32), user="system:node:n1")
        assert missing.code == 404

    run(story)


def test_another_nodes_agent_cannot_make_a_visit_that_it_was_not_asked_for(run: Any) -> None:
    """Not even with the number, and nobody makes one twice. [H1]"""

    async def story(rig: ApiRig) -> None:
        async def steal(asked: Summons, socket: Socket) -> None:
            for node, code in (("n2", 404), ("n1", 404)):
                path = summons.visit_path(node, asked.id)
                answer = await rig.send("GET", path, user=f"system:node:{node}")
                assert answer.code == code
            await tell_log(asked, socket)

        async with attended(rig, steal):
            assert (await rig.send("GET", f"{POD}/log")).raw == b"hello\n"

    run(story)


# Commands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", channels.PROTOCOLS)
def test_a_command_and_its_client_speak_in_channels(run: Any, protocol: str) -> None:
    """What is typed arrives, nothing else does, and the code comes back as a Status. [H1]"""
    heard: list[bytes] = []

    async def echo(asked: Summons, socket: Socket) -> None:
        await say(socket, Opened())
        while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            heard.append(message.data)
            if message.data[0] == summons.CLOSE:
                break
            await socket.send_bytes(bytes((summons.STDOUT,)) + message.data[1:])
        await say(socket, Closed(3))
        await socket.receive()

    async def story(rig: ApiRig) -> None:
        async with attended(rig, echo) as agent:
            query = "command=sh&command=-c&command=a%20b&stdin=true&stdout=true&stderr=true"
            async with rig.http.ws_connect(
                f"{rig.url}{POD}/exec?{query}",
                protocols=(protocol,),
                headers={"X-Test-User": "ada"},
            ) as client:
                assert client.protocol == protocol
                assert (await client.receive_bytes()) == b"\x01"
                await client.send_bytes(b"\x03not for you")
                await client.send_bytes(b'\x04{"Width":80,"Height":24}')
                await client.send_bytes(b"")
                await client.send_bytes(b"\x00typed")
                assert (await client.receive_bytes()) == b"\x01typed"
                await client.send_bytes(b"\xff\x00")
                end = await client.receive_bytes()
                assert end[0] == summons.STATUS
                status = json.loads(end[1:])
                assert status["reason"] == "NonZeroExitCode"
                assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
                assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE
        assert heard == [b"\x00typed", b"\xff\x00"]
        assert agent.asked[0].wanted == Run("uid-web", ("sh", "-c", "a b"), False, True)

    run(story)


def test_a_client_that_goes_ends_the_visit(run: Any) -> None:
    is_gone = asyncio.Event()

    async def wait(asked: Summons, socket: Socket) -> None:
        await say(socket, Opened())
        await socket.receive()
        is_gone.set()

    async def story(rig: ApiRig) -> None:
        async with attended(rig, wait):
            async with rig.http.ws_connect(
                f"{rig.url}{POD}/exec?command=cat&stdout=true", protocols=channels.PROTOCOLS
            ) as client:
                await client.receive_bytes()
            await is_gone.wait()

    run(story)


async def _type_for_ever(client: Socket) -> None:
    while True:
        async with asyncio.timeout(0.5):
            await client.send_bytes(bytes(65_536))


def test_a_client_that_vanishes_while_its_command_reads_nothing_is_missed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from it then, so its end is found by trying whether it is there. [H1]"""
    monkeypatch.setattr(summons, "TRY_S", 0.05)

    async def deaf(asked: Summons, socket: Socket) -> None:
        await say(socket, Opened())
        await asyncio.Event().wait()

    async def story(rig: ApiRig) -> None:
        visits = rig.api.services.switchboard._visits
        async with attended(rig, deaf), aiohttp.ClientSession() as session:
            client = await session.ws_connect(
                f"{rig.url}{POD}/exec?command=sleep&stdin=1&stdout=1", protocols=channels.PROTOCOLS
            )
            with pytest.raises(TimeoutError):
                await _type_for_ever(client)
            assert len(visits) == 1
            client.get_extra_info("socket").shutdown(socket_.SHUT_RDWR)
            while visits:
                await rig.send("GET", "/version")

    run(story)


@pytest.mark.parametrize(
    "query, headers, state, word",
    [
        ("command=true&stdout=1", {}, State.RUNNING, "1.30"),
        ("command=true&stdout=1", {"Upgrade": "SPDY/3.1"}, State.RUNNING, "SPDY"),
        ("command=true&stdout=1", UPGRADE, State.RUNNING, "Sec-WebSocket-Protocol"),
        ("stdout=1", None, State.RUNNING, "command"),
        ("command=&stdout=1", None, State.RUNNING, "command"),
        ("command=a%00b&stdout=1", None, State.RUNNING, "command"),
        ("&".join(["command=a"] * 1_050) + "&stdout=1", None, State.RUNNING, "command"),
        ("command=true", None, State.RUNNING, "stdout"),
        ("command=true&stdout=1&container=other", None, State.RUNNING, "other"),
        ("command=true&stdout=1", None, State.SUCCEEDED, "Succeeded"),
        ("command=true&stdout=1", None, State.RELEASED, "Released"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_in_a_sentence(
    run: Any, query: str, headers: dict[str, str] | None, state: State, word: str
) -> None:
    whole = {**UPGRADE, "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}

    async def story(rig: ApiRig) -> None:
        sent = {"X-Test-User": "admin", **(whole if headers is None else headers)}
        async with rig.http.get(f"{rig.url}{POD}/exec?{query}", headers=sent) as response:
            assert response.status == 400
            assert word in (await response.json())["message"]

    run(story, replica(state))


def test_work_that_has_no_node_has_nothing_to_look_into(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", f"{POD}/log")
        assert answer.code == 400
        assert "on no node" in answer.body["message"]

    run(story, replica(State.PENDING, binding=None))


@pytest.mark.parametrize(
    "frame, has_terminal, goes_on",
    [
        (b"", True, False),
        (b"\x00", False, True),
        (b"\x01x", True, False),
        (b"\x03x", True, False),
        (b"\x04{}", True, True),
        (b"\x04{}", False, False),
        (b"\xff\x00", False, True),
        (b"\xff\x01", False, False),
        (b"\xff", False, False),
    ],
)
def test_only_input_and_sizes_go_to_a_command(
    frame: bytes, has_terminal: bool, goes_on: bool
) -> None:
    assert channels.is_for_command(frame, has_terminal=has_terminal) is goes_on


def test_how_a_command_ended_is_said_in_the_words_of_kubernetes() -> None:
    assert json.loads(channels.ended(Closed(0))[1:])["status"] == "Success"
    never = json.loads(channels.ended(Closed(None, "it cannot be run"))[1:])
    assert (never["status"], never["reason"]) == ("Failure", "InternalError")
    assert never["message"] == "it cannot be run"


def test_words_that_nobody_knows_are_refused() -> None:
    for text in (b"", b"{}", b'{"type":"what"}', b"[1]"):
        with pytest.raises(Unavailable):
            summons.word(text)
        with pytest.raises(Unavailable):
            summons.summons(text)
    with pytest.raises(Rejected):
        channels.demand_websocket({})


# Pods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state, more, phase, part",
    [
        (State.PENDING, {"binding": None}, "Pending", "waiting"),
        (State.BOUND, {}, "Pending", "waiting"),
        (State.RUNNING, {"stage": Stage.READY}, "Running", "running"),
        (State.STOPPING, {}, "Running", "running"),
        (State.UNKNOWN, {}, "Unknown", "running"),
        (State.SUCCEEDED, {"process": Process(exit_code=0)}, "Succeeded", "terminated"),
        (State.FAILED, {"process": Process(exit_code=4)}, "Failed", "terminated"),
        (State.RELEASED, {"process": Process(exit_code=0)}, "Succeeded", "terminated"),
        (State.RELEASED, {"process": Process(signal=9)}, "Failed", "terminated"),
        (State.RELEASED, {"binding": None}, "Failed", "terminated"),
    ],
)
def test_a_replica_in_any_state_is_a_pod(
    state: State, more: dict[str, Any], phase: str, part: str
) -> None:
    """[A5]"""
    pod = pods.pod(replica(state, **more))
    assert pod["status"]["phase"] == phase
    (container,) = pod["status"]["containerStatuses"]
    assert list(container["state"]) == [part]
    assert container["ready"] is (more.get("stage") is Stage.READY)


def test_pods_are_read_and_never_written_and_show_no_variables(run: Any) -> None:
    """[A1]"""

    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", POD, user="ada")
        assert (answer.code, answer.body["kind"]) == (200, "Pod")
        assert b"hush" not in answer.raw
        listed = await rig.send("GET", "/api/v1/pods")
        assert (listed.body["kind"], len(listed.body["items"])) == ("PodList", 1)
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await rig.send(method, POD, {})).code == 405
        assert (await rig.send("GET", POD, user="eve")).code == 403

    run(story)
