"""Events and cleaning up on a real plane: records, a lost machine, a tenant that goes."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.event import Event
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from tests.live import kubectls
from tests.live.plane_process import workload
from tests.live.whole_plane import WholePlane


def kubectl(folder: Path, *words: str) -> str:
    config = str(folder / "server-1" / "kubeconfig")
    command = [kubectls.binaries()[-1].path, "--kubeconfig", config, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def told(plane: WholePlane, *reasons: str) -> list[Event]:
    """The events of these reasons, once there is one of each."""

    async def look() -> list[Event]:
        found: list[Any] = (await plane.client.list(Event)).objects
        mine = [it for it in found if it.reason in reasons]
        return mine if {it.reason for it in mine} == set(reasons) else []

    return list(await plane.until(look))


async def gone(plane: WholePlane, tenant: str) -> None:
    async def look() -> bool:
        return await plane.client.find(Tenant, tenant) is None

    await plane.until(look)


async def in_tenant(plane: WholePlane, tenant: str) -> None:
    """Work and a secret in a tenant of its own; then the tenant goes, with all that is in it."""
    await plane.client.create(Tenant(ObjectMeta(name=tenant)))
    await plane.client.create(Secret(ObjectMeta(name="s", namespace=tenant)))
    made = workload("brief", replicas=1)
    metadata = msgspec.structs.replace(made.metadata, namespace=tenant)
    await plane.client.create(msgspec.structs.replace(made, metadata=metadata))

    async def runs() -> bool:
        found: list[Any] = (await plane.client.list(Replica, tenant)).objects
        return any(it.status.state is State.RUNNING for it in found)

    await plane.until(runs)
    await plane.client.delete(Tenant, tenant)
    await gone(plane, tenant)
    for kind in (Workload, Replica, Secret, Event):
        assert not (await plane.client.list(kind, tenant)).objects


async def machine_lost(plane: WholePlane, folder: Path) -> None:
    """Work that runs on when cut off waits for a word; the word ends it, and it is replaced."""
    keep = workload("keeper", replicas=1)
    template = msgspec.structs.replace(keep.spec.template, on_disconnect=OnDisconnect.KEEP)
    spec = msgspec.structs.replace(keep.spec, template=template)
    await plane.client.create(msgspec.structs.replace(keep, spec=spec))

    async def started() -> Any:
        found = await plane.client.find(Replica, "keeper-0-0", "default")
        return found if found is not None and found.status.state is State.RUNNING else None

    replica = await plane.until(started)
    lost = replica.status.binding.node
    plane.parts[lost].kill()
    (waits, *_) = await told(plane, "WaitsForWord", "NodeFenced", "OutOfContact")
    assert waits.involved_object.name in ("keeper-0-0", lost)
    shown = await asyncio.to_thread(kubectl, folder, "describe", "node.holdfast.dev", lost)
    assert "NodeFenced" in shown
    force = ("delete", "replica", "keeper-0-0", "--force", "--grace-period=0")
    await asyncio.to_thread(kubectl, folder, *force)

    async def replaced() -> bool:
        found = await plane.client.find(Replica, "keeper-0-1", "default")
        return found is not None and found.status.state is State.RUNNING

    await plane.until(replaced)
    assert await plane.client.find(Replica, "keeper-0-0", "default") is None
    node = await plane.client.get(Node, lost)
    assert node.status.phase is NodePhase.FENCED


@pytest.mark.skipif(not kubectls.binaries(), reason="no kubectl")
def test_what_happens_is_reported_and_what_is_over_is_cleared_up(tmp_path: Path) -> None:
    """By kubectl, as people see it. [M1, I3, I4, I5, SC6, SC13]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2", "n3")) as plane:
            await in_tenant(plane, "brief")
            await plane.apply(1)
            (replica,) = await plane.ready(1)
            await told(plane, "Scheduled", "Started")
            listed = await asyncio.to_thread(kubectl, tmp_path, "get", "events")
            assert "Scheduled" in listed
            assert f"replica/{replica.name}" in listed
            about = await asyncio.to_thread(kubectl, tmp_path, "describe", "replica", replica.name)
            assert "Started" in about
            about = await asyncio.to_thread(kubectl, tmp_path, "describe", "pod", replica.name)
            assert "Started" in about
            await machine_lost(plane, tmp_path)

    asyncio.run(story())
