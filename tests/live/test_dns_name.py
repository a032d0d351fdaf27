"""A DNS name in front of two servers over etcd: all go on when one of its addresses dies."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from holdfast.host.client import AsyncClient
from holdfast.host.client.paths import one
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of_struct
from tests.etcd_cluster import EtcdCluster
from tests.live.names import knowing
from tests.live.part import ROOT
from tests.live.plane_process import PATIENT
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.patience import PATIENCE_S

NAME = "plane.test"
HOSTS = ("127.0.0.2", "127.0.0.3")
NODES = ("n1", "n2")
AGENT = ("--capacity", "cpu=8", "--capacity", "memory=8Gi", "--gpus", "none")


def at(plane: WholePlane, server: str) -> AsyncClient:
    return AsyncClient(msgspec.structs.replace(plane.access, servers=(server,)), policy=PATIENT)


async def command(path: str, config: Path, *words: str) -> tuple[int, str]:
    """The exit code and all words of a command."""
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast.cli", *words, "--kubeconfig", str(config)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ran.returncode, ran.stdout + ran.stderr


def config_for(plane: WholePlane, name: str, server: str) -> Path:
    """A kubeconfig that has this address."""
    document = yaml.safe_load((plane.folder / "server-1" / "kubeconfig").read_text())
    document["clusters"][0]["cluster"]["server"] = server
    path = plane.folder / name
    path.write_text(yaml.safe_dump(document))
    return path


async def looked_into(plane: WholePlane, server: str, replica: Replica) -> bool:
    """Whether this server can read the work's logs, and has decisions about it."""
    log = one(kind_of_struct(Replica), "default", replica.name, "log")
    async with at(plane, server) as client:
        answer = await client.transport.send("GET", log)
        decisions = (await client.list(Decision, "default")).objects
        return answer.code == 200 and any(it.spec.result == "Accepted" for it in decisions)


async def all_stay_ready(plane: WholePlane, server: str) -> None:
    async with at(plane, server) as client:
        nodes = (await client.list(Node)).objects
    assert {it.name: it.status.marks for it in nodes} == dict.fromkeys(NODES, 0)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("plane-etcd")
def test_a_name_for_two_servers_serves_all_clients_when_one_of_them_is_gone(tmp_path: Path) -> None:
    """Agents, a scheduler and controllers are given the name alone, and so are commands. Logs and
    decisions are found at either server. [C7.5]
    """
    (tmp_path / "etcd").mkdir()
    # The first address is the one that dies, so that no client succeeds by luck.
    path = knowing(tmp_path / "hook", NAME, *HOSTS)
    wrap = ("env", f"PYTHONPATH={path}")

    async def story(cluster: EtcdCluster) -> None:
        plane = WholePlane(
            tmp_path,
            NODES,
            plane=plane_on_etcd(cluster, len(HOSTS)),
            hosts=HOSTS,
            fence=LONG_FENCE,
            agent=AGENT,
            serve=("--cert-name", NAME),
            given=lambda port: (f"https://{NAME}:{port}",),
            wrap=dict.fromkeys(("scheduler", "controllers", *NODES), wrap),
        )
        first, second = plane.access_urls
        async with plane:
            await plane.apply(2)
            replicas = await plane.ready(2)
            for server in (first, second):
                for replica in replicas:
                    await plane.until(lambda s=server, r=replica: looked_into(plane, s, r))
            by_name = config_for(plane, "by-name", plane.given[0])
            alone = config_for(plane, "alone", first)
            await _remembered(path, by_name, first, second)
            assert (await command(path, alone, "get", "nodes"))[0] == 0
            plane.parts.pop("server-1").kill()
            await plane.scale(4)
            await plane.ready(4)
            await all_stay_ready(plane, second)
            for config in (by_name, alone):
                await _answered(plane, path, config)
                await plane.until(lambda c=config: _named_as_gone(path, c))

    with EtcdCluster(tmp_path / "etcd") as cluster:
        asyncio.run(story(cluster))


async def _remembered(path: str, config: Path, *servers: str) -> None:
    """A command that reaches the plane knows all its servers afterwards, for its user alone."""
    code, told = await command(path, config, "get", "nodes")
    assert code == 0, told
    known = config.with_name(f"{config.name}.servers")
    assert set(json.loads(known.read_text())["servers"]) == set(servers)
    assert stat.S_IMODE(known.stat().st_mode) == 0o600


async def _answered(plane: WholePlane, path: str, config: Path) -> None:
    (replica, *_) = await plane.replicas()
    for words in (("get", "nodes"), ("logs", replica.name), ("repair", "list")):
        code, told = await command(path, config, *words)
        assert code == 0, (config.name, words, told)


async def _named_as_gone(path: str, config: Path) -> bool:
    """The server that is gone is what is wrong; all the rest is seen."""
    code, told = await command(path, config, "status")
    assert "2 nodes" in told, told
    _, _, wrong = told.partition("wrong:")
    if code == 1 and "server" in wrong:
        return True
    # Each look is a process of its own.
    await asyncio.sleep(1)
    return False
