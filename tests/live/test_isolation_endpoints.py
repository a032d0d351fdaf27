"""Endpoints of work that shares the ports of its node with other tenants, in a whole plane."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from holdfast.host.client.list_watch import Listed, follow
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Stage
from holdfast.model.meta import ObjectMeta
from holdfast.observe.watch_events import Present
from tests.free_ports import free_ports
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.patience import STORY_S

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

SERVE = """
import socket, sys, time
time.sleep({after_s})
with socket.create_server(("0.0.0.0", {port})) as server:
    while True:
        client, _ = server.accept()
        client.sendall(b"{name}")
        client.close()
"""


def service(name: str, port: int, *, after_s: float = 0, namespace: str = "default") -> Workload:
    """Work that says its name at a port, after a while, and has no probe."""
    script = SERVE.format(after_s=after_s, port=port, name=name)
    template = {
        "command": ["/usr/bin/python3", "-c", script],
        # The rival listens there without saying so.
        "ports": [{"name": "http", "port": port}] if namespace == "default" else [],
        "resources": {"cpu": "100m", "memory": "32Mi"},
        "graceSeconds": 1,
    }
    made = workload(name, replicas=1, template=template)
    metadata = msgspec.structs.replace(made.metadata, namespace=namespace)
    return msgspec.structs.replace(made, metadata=metadata)


async def replica_of(plane: WholePlane, name: str, namespace: str = "default") -> Replica | None:
    found = (await plane.client.list(Replica, namespace)).objects
    return next((it for it in found if it.spec.workload == name), None)


class Visitor:
    """Goes to every address as soon as a list names it, and writes down who answers."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane = plane
        self.answers: dict[str, list[str]] = {}

    async def go_on(self) -> None:
        async for news in follow(self._plane.client, Endpoints, "default"):
            lists = news.objects if isinstance(news, Listed) else ()
            lists = (news.object,) if isinstance(news, Present) else lists
            for it in lists:
                for endpoint in it.endpoints:
                    for address in endpoint.ports.values():
                        self.answers.setdefault(it.name, []).append(await answer(address))


async def answer(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError as error:
        return str(error)
    said = await reader.read()
    writer.close()
    return said.decode()


def test_no_list_names_a_port_before_the_work_itself_listens_there(tmp_path: Path) -> None:
    """Neither while another tenant takes the port, nor while no process listens yet: a client that
    follows the Endpoints only ever meets the work that they are of.
    """
    late, stolen = free_ports(2)

    async def story() -> None:
        async with WholePlane(
            tmp_path, ("n1",), tenants=(), fence=LONG_FENCE, agent=("--capacity", "cpu=4")
        ) as plane:
            await plane.client.create(Tenant(ObjectMeta(name="rival")))
            visitor = Visitor(plane)
            visits = asyncio.create_task(visitor.go_on())
            await plane.client.create(service("late", late, after_s=2))
            await plane.client.create(service("slow", stolen, after_s=600))

            async def runs() -> bool:
                found = await replica_of(plane, "slow")
                return found is not None and bool(found.status.process.id)

            await plane.until(runs)
            await plane.client.create(service("thief", stolen, namespace="rival"))

            async def is_ended() -> bool:
                found = await replica_of(plane, "slow")
                return found is not None and found.status.process.restarts > 0

            async def serves() -> bool:
                found = await replica_of(plane, "late")
                return found is not None and found.status.stage is Stage.SERVING

            await plane.until(is_ended)
            await plane.until(serves)
            # Nor does a restart of the agent bring anything else to light.
            plane.parts["n1"].kill()
            plane.parts["n1"].spawn()

            async def is_back() -> bool:
                return plane.parts["n1"].works

            await plane.until(is_back)
            assert await answer(f"127.0.0.1:{stolen}") == "thief"
            visits.cancel()
            # That it is named at all shows that the visitor sees what is published.
            assert set(visitor.answers) == {"late"}
            assert set(visitor.answers["late"]) == {"late"}

    asyncio.run(asyncio.wait_for(story(), STORY_S))
