"""What a node is to the servers, over real TLS: what its agent says of it, sees and may change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.host.client import AsyncClient
from holdfast.host.client.list_watch import Listed, follow
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model import quantity
from holdfast.model.errors import Forbidden, HoldfastError, Missing
from holdfast.model.kinds.access import Token
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import (
    AcquireLease,
    Bind,
    Evict,
    JudgeNode,
    Move,
    NodeAction,
    RegisterNode,
    ReportStage,
    Target,
    Term,
)
from tests.live.plane_process import PATIENT, workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.live.witness import template

TOLD = (
    *("--label", "rack=r7", "--pool", "edge"),
    *("--device", "class=fpga,id=fpga0,model=x1", "--gpus", "none"),
)


@asynccontextmanager
async def node_client(plane: WholePlane, node: str) -> AsyncIterator[AsyncClient]:
    """What an agent of this node that was taken over could ask."""
    issued = CertificateAuthority.open(plane.folder / "pki").issue(f"system:node:{node}")
    access = msgspec.structs.replace(plane.access, certificate=issued.certificate, key=issued.key)
    async with AsyncClient(access, policy=PATIENT) as client:
        yield client


def node_of(replica: Replica) -> str:
    assert replica.status.binding is not None
    return replica.status.binding.node


def target(of: Replica) -> Target:
    return Target(of.namespace, of.name, of.metadata.uid, of.status.transition_number)


def test_an_agent_says_what_its_machine_is_and_sees_and_changes_its_own_alone(
    tmp_path: Path,
) -> None:
    """[A4, A9, A10]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), fence=LONG_FENCE, agent=TOLD) as plane:
            spread = {"maxSkew": 1, "over": "zone"}
            spec = template(plane.witness) | {
                "resources": {"cpu": "100m", "memory": "16Mi"},
                "placement": {"spread": [spread]},
            }
            await plane.client.create(workload("web", replicas=2, template=spec))
            found = {node_of(it): it for it in await plane.ready(2)}
            assert set(found) == {"n1", "n2"}
            check_facts(await plane.client.get(Node, "n1"))
            async with node_client(plane, "n1") as agent:
                await check_sight(agent, found)
                await check_writes(agent, await plane.client.get(Node, "n1"))
                await check_requests(plane, agent, found)
            after = await plane.client.get(Node, "n1")
            assert (after.spec.region, after.spec.cordoned) == ("eu", False)
            # Nothing of all that has disturbed other nodes.
            assert {it.name for it in await plane.ready(2)} == {it.name for it in found.values()}

    asyncio.run(story())


def check_facts(node: Node) -> None:
    """Measured by the agent, or said on its command line."""
    capacity = {name: quantity.capacity(name, it) for name, it in node.spec.capacity.items()}
    assert 0 < capacity["cpu"] <= 1_000 * len(os.sched_getaffinity(0))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert whole / 100 < capacity["memory"] <= whole
    assert capacity["disk"] > 0
    (device,) = node.spec.devices
    assert (device.id, device.device_class, device.model) == ("fpga0", "fpga", "x1")
    assert node.metadata.labels["rack"] == "r7"
    assert (node.spec.region, node.spec.zone, node.spec.pool) == ("eu", "eu-n1", "edge")
    assert node.status.incarnation == 1
    assert node.status.boot_id
    assert node.status.agent_version


async def check_sight(agent: AsyncClient, found: dict[str, Replica]) -> None:
    """Its node, what is bound to it, and nothing else, in whatever way it asks."""
    assert [it.name for it in (await agent.list(Node)).objects] == ["n1"]
    own, other = found["n1"], found["n2"]
    assert [it.name for it in (await agent.list(Replica)).objects] == [own.name]
    assert (await agent.get(Replica, own.name, "default")).metadata.uid == own.metadata.uid
    for cls, name, namespace in ((Replica, other.name, "default"), (Node, "n2", "")):
        with pytest.raises(Missing):
            await agent.get(cls, name, namespace)
    async for news in follow(agent, Replica, "default"):
        assert isinstance(news, Listed)
        assert [it.name for it in news.objects] == [own.name]
        break
    for kind in (Workload, Secret, Token, Lease, Tenant):
        with pytest.raises(Forbidden):
            await agent.list(kind)
    with pytest.raises((Forbidden, Missing)):
        await agent.get(Secret, "any", "default")
    with pytest.raises(Forbidden):
        await agent.get(Token, "any", SYSTEM_NAMESPACE)


async def check_writes(agent: AsyncClient, node: Node) -> None:
    """Of its own node one condition, of anything else nothing."""
    replace, seen = msgspec.structs.replace, node.metadata.resource_version
    stated = {"metadata": {"resourceVersion": seen}}
    label = {"metadata": {"resourceVersion": seen, "labels": {"rack": "r8"}}}
    tries: tuple[Any, ...] = (
        agent.create(workload("mine", replicas=1)),
        agent.create(Tenant(ObjectMeta(name="mine"))),
        agent.create(Node(ObjectMeta(name="n3"))),
        agent.update(replace(node, spec=replace(node.spec, cordoned=True))),
        agent.update(replace(node, spec=replace(node.spec, capacity={"cpu": "999"}))),
        agent.patch(Node, "n1", "", label),
        agent.patch(Node, "n1", "", stated | {"status": {"phase": "Fenced"}}, subresource="status"),
        agent.patch(Node, "n2", "", stated | pressure(), subresource="status"),
        agent.delete(Node, "n1", uid=node.metadata.uid),
        agent.delete(Node, "n2", uid=node.metadata.uid),
    )
    for one in tries:
        with pytest.raises((Forbidden, Missing)):
            await one
    said = await agent.patch(Node, "n1", "", stated | pressure(), subresource="status")
    assert [it.type for it in said.status.conditions if it.type == "Pressure"] == ["Pressure"]


def pressure() -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Pressure", "status": "True", "reason": "Disk"}]}}


async def check_requests(plane: WholePlane, agent: AsyncClient, found: dict[str, Replica]) -> None:
    """It speaks for its own node and its own work, and is no scheduler and no controller."""
    other, own = found["n2"], found["n1"]
    stranger = await plane.client.get(Node, "n2")
    term = Term("scheduler:main", 1)
    tries = (
        RegisterNode(stranger),
        Move(target(other), State.FAILED, "Exited", incarnation=1),
        Move(target(own), State.FAILED, "Exited", incarnation=7),
        Move(target(own), State.PENDING, "Again", incarnation=1),
        ReportStage(target(other), Stage.STARTING, 1, version=other.metadata.resource_version),
        ReportStage(target(own), Stage.SERVING, 1, version=own.metadata.resource_version),
        Bind(target(own), "n1", stranger.metadata.uid, term),
        Evict(target(other), Cause.USER_DELETE),
        JudgeNode("n1", stranger.metadata.uid, NodeAction.FENCE, term),
        AcquireLease("scheduler:main", 1_000),
        AcquireLease("controller:nodes", 1_000),
    )
    for request, verdict in zip(tries, await agent.ask_all(tries), strict=True):
        assert isinstance(verdict, HoldfastError), (request, verdict)
        refused = (
            *(Reason.NOT_OWNER, Reason.NOT_ALLOWED, Reason.STALE_INCARNATION, Reason.WRONG_STATE),
            # What is not its own is not there for it.
            Reason.MISSING,
        )
        assert verdict.code in refused, (request, verdict)
    # Nor may it keep another node alive.
    renew = {"node": "n2", "uid": stranger.metadata.uid, "incarnation": 1}
    path = "/apis/holdfast.dev/v1/nodes/n2/renewals"
    issued = CertificateAuthority.open(plane.folder / "pki").issue("system:node:n1")
    shown = msgspec.structs.replace(plane.access, certificate=issued.certificate, key=issued.key)
    connector = aiohttp.TCPConnector(ssl=shown.context())
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(shown.servers[0] + path, json=renew) as answer,
    ):
        assert answer.status == 403
