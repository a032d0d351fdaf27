"""One address in front of several servers over etcd: who is heard, and what becomes of servers that
are gone for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from holdfast.cli.health_report import ReportLine, report_lines, verdict
from holdfast.cli.status import gather_facts
from holdfast.host.client import AsyncClient
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.workload import Workload
from tests.etcd_cluster import EtcdCluster
from tests.free_ports import free_ports
from tests.live.balancer import Balancer
from tests.live.plane_process import PATIENT
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import WholePlane
from tests.patience import STORY_S

NODES = ("n1", "n2", "n3")
# Short, but with room for a busy machine: a server counts for 4.5 s without a renewal.
FENCE = ("--self-stop-after", "9", "--stop-grace", "1", "--ack-window", "1", "--kill-bound", "1")
AGENT = ("--capacity", "cpu=8", "--capacity", "memory=8Gi", "--gpus", "none")
# For this long no node may be taken for silent: longer than a mark would take.
STEADY_S = 14.0
GONE = (NodePhase.UNKNOWN, NodePhase.FENCED)


class Behind(NamedTuple):
    """A plane behind one address, and a client of its first server."""

    plane: WholePlane
    client: AsyncClient
    balancer: Balancer


async def phases(client: AsyncClient) -> dict[str, NodePhase]:
    return {it.name: it.status.phase for it in (await client.list(Node)).objects}


async def all_stay_ready(client: AsyncClient, seconds: float) -> None:
    """All nodes are Ready at the end, and none was ever marked."""
    await asyncio.sleep(seconds)
    nodes = (await client.list(Node)).objects
    assert {it.name: it.status.marks for it in nodes} == dict.fromkeys(NODES, 0)
    assert {it.status.phase for it in nodes} == {NodePhase.READY}


async def told(plane: WholePlane, *urls: str) -> list[ReportLine]:
    """What `holdfast status` says whose kubeconfig has these addresses."""
    return report_lines(await gather_facts(msgspec.structs.replace(plane.access, servers=urls)))


def wrong(lines: list[ReportLine]) -> list[tuple[str, str]]:
    return [(it.part, it.name) for it in lines if it.wrong]


async def dropped(plane: WholePlane, name: str, url: str) -> None:
    """Until a server that is gone no longer counts, with an alarm."""

    async def alarmed() -> bool:
        said = plane.parts["server-1"].log_path.read_text()
        return f"server {name} has not renewed its lease" in said

    await plane.until(alarmed)
    lines = await told(plane, url)
    assert ("server", name) in wrong(lines)
    assert verdict(lines) == ""


@contextlib.asynccontextmanager
async def one_address(folder: Path, cluster: EtcdCluster, servers: int) -> AsyncIterator[Behind]:
    """Work runs, and the load balancer has led to every server."""
    (port,) = free_ports(1)
    plane = WholePlane(
        folder,
        NODES,
        plane=plane_on_etcd(cluster, servers),
        fence=FENCE,
        agent=AGENT,
        given=(f"https://127.0.0.1:{port}",),
    )
    to = [urlsplit(it).port or 0 for it in plane.access_urls]
    async with Balancer(port, to) as balancer, plane:
        await plane.apply(3)
        await plane.ready(3)
        assert set(balancer.taken) == set(to), "every server was led to"
        survivor = msgspec.structs.replace(plane.access, servers=plane.access_urls[:1])
        async with AsyncClient(survivor, policy=PATIENT) as client:
            yield Behind(plane, client, balancer)


async def all_heard(plane: WholePlane) -> bool:
    """Whether each server hears from all components."""
    return not any([wrong(await told(plane, url)) for url in plane.access_urls])


async def dead_node_found(plane: WholePlane, client: AsyncClient) -> None:
    """A dead node is marked, and no other one."""
    plane.parts["n3"].kill()

    async def found() -> bool:
        now = await phases(client)
        assert now["n1"] is now["n2"] is NodePhase.READY
        return now["n3"] in GONE

    await plane.until(found)


@pytest.mark.slow
@pytest.mark.xdist_group("plane-etcd")
def test_behind_one_address_only_the_dead_are_found(tmp_path: Path) -> None:
    """The short form of the next test. Nodes heard at either of two servers stay Ready while
    a dead one is found; then a server is gone for good as well. [H3, H4, C6.4]
    """
    (tmp_path / "etcd").mkdir()

    async def story(cluster: EtcdCluster) -> None:
        async with one_address(tmp_path, cluster, 2) as (plane, client, _):
            await plane.until(lambda: all_heard(plane))
            await dead_node_found(plane, client)
            plane.parts["server-2"].kill()
            await dropped(plane, "server-2", plane.access_urls[0])
            nodes = (await client.list(Node)).objects
            assert {it.name for it in nodes if it.status.marks} == {"n3"}

    with EtcdCluster(tmp_path / "etcd") as cluster:
        asyncio.run(asyncio.wait_for(story(cluster), STORY_S))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("plane-etcd")
def test_nodes_behind_one_address_renew_and_the_dead_are_found_though_servers_are_gone(
    tmp_path: Path,
) -> None:
    """Agents and controllers are given a load balancer, which leads them to any of three servers.
    No node is taken for silent that is heard at another one. Two servers that are gone for good no
    longer count, with an alarm; a dead node is found after that as well. Without the balancer all
    go on with the server that they found by its lease. [H3, H4, C6.4, C7.5]
    """
    (tmp_path / "etcd").mkdir()

    async def story(cluster: EtcdCluster) -> None:
        async with one_address(tmp_path, cluster, 3) as (plane, client, balancer):
            await all_stay_ready(client, STEADY_S)
            assert await all_heard(plane)
            await without_servers(plane, client, plane.access_urls[0])
            await balancer.close()
            await without_balancer(plane, client)

    with EtcdCluster(tmp_path / "etcd") as cluster:
        asyncio.run(story(cluster))


async def without_servers(plane: WholePlane, client: AsyncClient, url: str) -> None:
    for name in ("server-2", "server-3"):
        plane.parts[name].kill()
        await dropped(plane, name, url)
        await all_stay_ready(client, STEADY_S)
    await dead_node_found(plane, client)
    progress = (await client.get(Workload, "web", "default")).status.progress
    assert progress.ready < 3
    assert ("nodes", "1 node") in wrong(await told(plane, url))


async def without_balancer(plane: WholePlane, client: AsyncClient) -> None:
    await client.scale(Workload, "web", "default", 6)

    async def grown() -> bool:
        progress = (await client.get(Workload, "web", "default")).status.progress
        return progress.ready >= 5

    await plane.until(grown)
