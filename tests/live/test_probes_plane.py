"""A whole plane asks real work how it is, and acts on the answer."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.agent.work import is_ready
from holdfast.host.audit.segments import FOLDER, records
from holdfast.model.audit.audit_records import mutation_of
from holdfast.model.errors import Invalid
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.secret import Secret
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.registry import KINDS
from tests.canaries import canary, forms, found_in, leaks
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane

# It answers with the code that lies in its directory, or 503 while there is none.
SERVES = """
import http.server, os, pathlib
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = pathlib.Path(self.path.strip("/"))
        self.send_response(int(path.read_text()) if path.exists() else 503)
        self.end_headers()
    def log_message(self, *words): pass
here = ("127.0.0.1", int(os.environ["PORT_HTTP"]))
http.server.ThreadingHTTPServer(here, Answers).serve_forever()
"""
CANARY = canary("secret")


def probe(path: str, **more: Any) -> dict[str, Any]:
    return {"http": {"port": "http", "path": f"/{path}"}, "periodSeconds": 1, **more}


async def only(plane: WholePlane) -> Replica | None:
    found = await plane.replicas()
    return found[-1] if found else None


async def seen(plane: WholePlane, holds: Any) -> Replica:
    """The one replica, once this holds for it."""

    async def look() -> Replica | None:
        found = await only(plane)
        return found if found is not None and holds(found) else None

    replica: Replica = await plane.until(look)
    return replica


def directory(plane: WholePlane, replica: Replica, number: int) -> Path:
    return plane.folder / "n1" / replica.metadata.uid / str(number) / "work"


def test_probes_gate_ready_restart_what_is_ill_and_let_it_say_farewell(tmp_path: Path) -> None:
    """The start-up probe, the readiness probe, the liveness probe and the pre-stop of one service,
    from its first start to its end. [A6, H1, H3, H4, E3]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE) as plane:
            farewell = tmp_path / "farewell"
            template = {
                "command": ["python3", "-c", SERVES],
                "ports": [{"name": "http"}],
                "probes": {
                    "startup": probe("started", failureThreshold=100),
                    "readiness": probe("ready", failureThreshold=1),
                    "liveness": probe("alive", failureThreshold=2),
                },
                "preStop": {
                    "exec": {"command": ["sh", "-c", f'echo "$HOLDFAST_UID" >>{farewell}']}
                },
                "graceSeconds": 5,
            }
            await plane.client.create(workload("web", replicas=1, template=template))
            slow = await seen(plane, lambda it: it.status.process.reason.startswith("NotReady"))
            assert slow.status.process.reason == "NotReady: startup probe: http: status 503"
            assert (slow.status.state, slow.status.stage) == (State.RUNNING, Stage.STARTING)
            work = directory(plane, slow, 0)
            for name in ("alive", "ready", "started"):
                (work / name).write_text("200")
            await seen(plane, is_ready)
            (work / "ready").write_text("500")
            lost = await seen(plane, lambda it: it.status.stage is Stage.STARTING)
            assert lost.status.process.reason == "NotReady: readiness probe: http: status 500"
            assert lost.status.process.restarts == 0
            (work / "ready").write_text("302")
            await seen(plane, is_ready)
            (work / "alive").write_text("500")
            again = await seen(plane, lambda it: it.status.process.restarts == 1)
            assert again.metadata.uid == slow.metadata.uid
            reasons = [step.reason for step in again.status.transitions]
            assert reasons[-1] == "LivenessProbeFailed"
            assert farewell.read_text().split() == [slow.metadata.uid]
            await seen(plane, lambda it: it.status.process.id != lost.status.process.id)
            await plane.scale(0)

            async def gone() -> bool:
                found = await only(plane)
                return found is None or found.status.state is State.RELEASED

            await plane.until(gone)
            assert farewell.read_text().split() == [slow.metadata.uid] * 2

    asyncio.run(story())


async def check_errors(plane: WholePlane) -> None:
    """What is wrong with a secret, or with who shows one, is said without it."""
    meta = ObjectMeta(name="bad", namespace="default")
    with pytest.raises(Invalid) as refused:
        await plane.client.create(Secret(meta, data={"password": f"{CANARY} is no base64!"}))
    assert not found_in(f"{refused.value.message} {refused.value.errors}".encode(), forms())
    connector = aiohttp.TCPConnector(ssl=plane.access.context())
    headers = {"Authorization": f"Bearer {CANARY}"}
    url = f"{plane.access_urls[0]}/apis/holdfast.dev/v1/namespaces/default/secrets"
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, headers=headers, json={"data": {"p": CANARY}}) as answer,
    ):
        assert answer.status in (400, 401, 403, 422)
        assert not found_in(await answer.read(), forms())


async def check_told(plane: WholePlane) -> None:
    """Nothing that the servers tell of the plane has it: no object, no event, no metric."""
    connector = aiohttp.TCPConnector(ssl=plane.access.context())
    plurals = [kind.plural for kind in KINDS if kind.plural != "secrets"]
    async with aiohttp.ClientSession(connector=connector) as session:
        for path in ("/metrics", "/audit", *(f"/apis/holdfast.dev/v1/{it}" for it in plurals)):
            async with session.get(plane.access_urls[0] + path) as answer:
                assert answer.status == 200, path
                assert not found_in(await answer.read(), forms()), path


async def check_audit(plane: WholePlane) -> None:
    """It says who made the secret and who was given it, and nothing of what is in it."""

    async def written() -> bool:
        found = [mutation_of(it) for it in records([plane.folder / "server-1" / FOLDER])]
        made = [it for it in found if (it.kind, it.name) == ("secrets", "db")]
        told = [(it.verb, it.who, it.change) for it in made]
        reads = [("Read", "admin", ""), ("Read", "system:node:n1", "")]
        return told[:1] == [("Create", "admin", "created")] and sorted(set(told[1:])) == reads

    await plane.until(written)


def test_work_waits_for_its_secret_and_no_one_prints_it(tmp_path: Path) -> None:
    """It says what it waits for, starts when that is there, and the value is nowhere else: in no
    object, no log, no record of the agent and no word of a server. [E3]"""

    async def story() -> None:
        loud = ("--refusals", "log")
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE, serve=loud, joins=True) as plane:
            reference = {"name": "db", "key": "password"}
            template = {
                "command": ["sh", "-c", '[ -n "$P" ] && cmp own copy && sleep 600'],
                "env": [{"name": "P", "secret": reference}],
                "files": [{"path": name, "secret": reference} for name in ("own", "copy")],
            }
            await plane.client.create(workload("web", replicas=1, template=template))
            waits = await seen(plane, lambda it: bool(it.status.process.reason))
            assert waits.status.process.reason == "SecretMissing: there is no secret default/db"
            assert waits.status.state is State.BOUND
            data = {"password": base64.b64encode(CANARY.encode()).decode()}
            meta = ObjectMeta(name="db", namespace="default")
            await plane.client.create(Secret(meta, data=data))
            runs = await seen(plane, is_ready)
            assert (directory(plane, runs, 0) / "own").stat().st_mode & 0o777 == 0o600
            objects = repr(await plane.replicas())
            assert CANARY not in objects
            assert data["password"] not in objects
            await check_errors(plane)
            await check_told(plane)
            await check_audit(plane)
        assert list(leaks(tmp_path)) == []

    asyncio.run(story())
