"""Scheduler, controllers and agents as real processes: one service from apply to its answer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.agent.work import is_ready
from holdfast.host.client import AsyncClient
from holdfast.host.component.options import duration
from holdfast.host.pki.component_credentials import AGENT, SCHEDULER, access_of
from holdfast.host.pki.join_tokens import create_token, parse
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.kinds.access import Token
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of_struct
from holdfast.store.sqlite import SqliteStore
from tests.live.part import ROOT
from tests.live.plane_process import workload
from tests.live.process_plane import ProcessPlane
from tests.live.whole_plane import FENCE
from tests.patience import PATIENCE_S, STORY_S

SERVE = (
    "import http.server, os\n"
    "class Hello(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'hello')\n"
    "port = int(os.environ['PORT_HTTP'])\n"
    "http.server.HTTPServer(('127.0.0.1', port), Hello).serve_forever()\n"
)


async def settled(look: Callable[[], Any], condition: Callable[[Any], Any]) -> Any:
    """What is seen, once it is as it should be."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = await look()
        if condition(seen):
            return seen
        assert time.monotonic() < deadline, f"last seen: {seen}"
        await asyncio.sleep(0.1)


class Components(ProcessPlane):
    """A server and the components around it, which nothing starts again."""

    async def brain(self, name: str = "main") -> None:
        """A scheduler and the controllers."""
        for kind in ("scheduler", "controllers"):
            trust = self.credentials(kind, name)
            await self.run(f"{kind}-{name}", kind, *self.reach, *trust, "--name", name)

    async def agent(self, node: str, *more: str) -> None:
        # Its work runs by the Python of these tests, which may lie where only their user may go.
        place = ("--single-tenant", "--region", "eu", "--zone", f"eu-{node}", "--capacity", "cpu=4")
        data = ("--data", str(self.folder / node), "--node", node)
        await self.run(node, "agent", *self.reach, *data, *place, *more)

    async def ready(self, count: int) -> list[Replica]:
        """The replicas, once this many answer and no others are left."""
        return list(
            await settled(
                self.replicas,
                lambda seen: len(seen) == count and all(map(is_ready, seen)),
            )
        )

    async def leases(self) -> dict[str, str]:
        return {it.name: it.spec.holder for it in (await self.client.list(Lease)).objects}


async def leases_in(path: Path) -> dict[str, str]:
    """Who holds what, in a store that no server has open."""
    store = await SqliteStore.open(path)
    try:
        prefix = keys.kind_prefix(kind_of_struct(Lease))
        found = (await store.range(prefix, keys.after_prefix(prefix))).records
    finally:
        await store.close()
    leases = [decode_trusted(Lease, it.value) for it in found]
    return {it.name: it.spec.holder for it in leases}


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def service(replicas: int = 1) -> Any:
    template = {
        "command": [sys.executable, "-c", SERVE],
        "ports": [{"name": "http"}],
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "graceSeconds": 1,
    }
    return workload("web", replicas=replicas, template=template)


async def answers(replica: Replica) -> bool:
    """Whether the process answers http."""
    address = replica.status.process.addresses["http"] if replica.status.process else ""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}/") as it:
            return await it.read() == b"hello"
    except aiohttp.ClientError:
        return False


async def answering(replica: Replica) -> None:
    await settled(lambda: answers(replica), bool)


@pytest.mark.long
def test_a_service_answers_and_every_part_may_be_killed_on_the_way(tmp_path: Path) -> None:
    """From an object to a process that answers http, and back to nothing. [H1, C7.4]"""

    async def story() -> None:
        async with Components(tmp_path) as plane:
            await plane.brain()
            token = await create_token(plane.client, "n1", duration("--ttl", "10m"))
            joining = tmp_path / "n1.token"
            joining.write_text(token)
            await plane.agent("n1", "--token-file", str(joining))
            await plane.client.create(service(2))
            first = await plane.ready(2)
            for replica in first:
                await answering(replica)

            # Work runs on while each of them is away, and goes on where it was.
            for name in ("n1", "scheduler-main", "controllers-main"):
                plane.parts[name].kill()
            plane.server.kill()
            assert all([await answers(replica) for replica in first])
            await plane.begin("server-1")
            await plane.brain()
            # The certificate of its first start is enough.
            await plane.agent("n1")
            await plane.client.scale(type(service()), "web", "default", 3)
            third = await plane.ready(3)
            pids = {it.name: it.status.process.id for it in third if it.status.process}
            assert all(pids[it.name] == it.status.process.id for it in first if it.status.process)
            used = await plane.client.get(Token, parse(token).name, SYSTEM_NAMESPACE)
            assert used.status.used_by == "n1"

            await plane.client.delete(type(service()), "web", "default")
            await settled(plane.replicas, lambda seen: not seen)
            assert not any([await answers(replica) for replica in third])

    play(story())


def test_a_node_that_falls_silent_is_fenced_and_its_work_runs_elsewhere_once(
    tmp_path: Path,
) -> None:
    """The old copy has stopped by itself before the new one exists. [H5, C6.4]"""

    async def story() -> None:
        async with Components(tmp_path, *FENCE) as plane:
            await plane.brain()
            await plane.agent("n1", *plane.credentials(AGENT, "n1"))
            await plane.client.create(service())
            (old,) = await plane.ready(1)
            await answering(old)
            await plane.agent("n2", *plane.credentials(AGENT, "n2"))
            plane.parts["n1"].kill()
            overlapped = False

            async def moved() -> list[Replica]:
                nonlocal overlapped
                seen = await plane.replicas()
                if any(it.name != old.name for it in seen):
                    overlapped = overlapped or await answers(old)
                return seen

            def is_elsewhere(seen: list[Replica]) -> bool:
                return [it.status.state for it in seen] == [State.RUNNING] and (
                    seen[0].name != old.name
                )

            (new,) = await settled(moved, is_elsewhere)
            assert new.status.binding is not None
            assert new.status.binding.node == "n2"
            assert not overlapped
            assert not await answers(old)
            await answering(new)
            assert (await plane.client.get(Node, "n1")).status.phase is NodePhase.FENCED
            # It comes back under a new life.
            await plane.agent("n1", *plane.credentials(AGENT, "n1"))
            await settled(
                lambda: plane.client.get(Node, "n1"),
                lambda node: node.status.phase is NodePhase.READY and node.status.incarnation == 2,
            )
            await plane.client.delete(type(service()), "web", "default")
            await settled(plane.replicas, lambda seen: not seen)

    play(story())


def test_a_stop_gives_leases_back_at_once(tmp_path: Path) -> None:
    """What comes next need not wait for them to run out, and no server misses one that was stopped.
    [K3]
    """

    async def story() -> None:
        async with Components(tmp_path) as plane:
            await plane.brain()
            held = await settled(
                plane.leases, lambda seen: sum(map(bool, seen.values())) >= len(seen) > 3
            )
            for name in ("scheduler-main", "controllers-main"):
                await plane.parts[name].stop()
            left = await plane.leases()
            # The server goes on: it is the usual one, and known by a lease of its own.
            (server,) = {Identity(name=it).server for it in left.values() if it}
            assert server is not None
            scopes = ("authority", server_scope(server))
            assert {name for name in held if left[name]} == {lease_name(it) for it in scopes}
            await plane.server.stop()
            assert await leases_in(plane.server.data / "store.db") == dict.fromkeys(left, "")

    play(story())


def test_what_cannot_start_says_why_and_ends_with_one(tmp_path: Path) -> None:
    def ran(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.host", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            input="x\n",
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stderr

    server = ("--server", "https://127.0.0.1:1")
    empty = ("--pki", str(tmp_path))
    place = ("--region", "eu", "--zone", "a", "--data", str(tmp_path / "agent"), "--node", "n1")
    for arguments, sentence in (
        (("scheduler", *empty), "--server: must be given"),
        (("scheduler", "--server", "http://x", *empty), "must begin with https://"),
        (("scheduler", *server, *empty), "system:scheduler:main has no certificate in"),
        (("controllers", *server, *empty, "--name", "A b"), "is not a name"),
        (("agent", *server, *place), "node n1 has no certificate in"),
        (("agent", *server, *place, "--token-file", "-"), "this is not a join token"),
        (("agent", *server, *place, "--capacity", "cpu=lots"), "--capacity: cpu=lots"),
        (("agent", *server, *place, "--label", "x"), "--label: x: must be KEY=VALUE"),
        (("agent", *server, *place[2:]), "--region: must be given"),
    ):
        code, said = ran(*arguments)
        assert (code, said.count("\n")) == (1, 1), said
        assert said.startswith("holdfast: ")
        assert sentence in said


def test_certificates_are_issued_into_a_directory_of_their_own_and_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with Components(tmp_path) as plane:
            name = "system:scheduler:main"
            pki = Path(plane.credentials(SCHEDULER, "main")[1])
            one = access_of((plane.server.url,), pki, name)
            plane.credentials(SCHEDULER, "main")
            assert access_of((plane.server.url,), pki, name) == one
            async with AsyncClient(one) as client:
                assert (await client.list(Node)).objects == ()

    play(story())
