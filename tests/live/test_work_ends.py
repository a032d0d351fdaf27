"""How work ends on a real plane, and what its replica then says: out of memory, again and again."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.agent.work import is_ready
from holdfast.host.runtime.cgroups import detect
from holdfast.model.kinds.replica import CRASH_LOOP, Replica
from holdfast.model.lifecycle import State
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.workshop import NODE

HOG = "kept = []\nwhile True: kept.append(bytearray(1 << 20))"
SMALL = {"cpu": "100m", "memory": "16Mi"}


def has_limits(folder: Path) -> bool:
    """Whether memory can be limited here at all."""
    groups = detect.find(NODE, folder)
    groups.retire()
    return "memory" in groups.controllers


async def seen(plane: WholePlane, name: str, holds: Any) -> Replica:
    async def look() -> Replica | None:
        for it in (await plane.client.list(Replica, "default")).objects:
            if it.spec.workload == name and holds(it):
                return it
        return None

    found: Replica = await plane.until(look)
    return found


def test_what_ended_work_is_on_its_replica_and_it_is_started_less_and_less_often(
    tmp_path: Path,
) -> None:
    """A job that takes too much memory, and a service that ends as soon as it starts, of which
    others on the same node hear nothing. [A8, H1]"""
    can_limit = has_limits(tmp_path / "probe")

    async def story() -> None:
        agent = ("--capacity", "cpu=4", "--capacity", "memory=1Gi")
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE, agent=agent) as plane:
            command = [sys.executable, "-I", "-S", "-c", HOG]
            hog = {"command": command, "limits": {"memory": "32Mi"}, "restart": "Never"}
            calm = {"command": ["sleep", "600"], "resources": SMALL}
            loops = {"command": ["sh", "-c", "exit 7"], "resources": SMALL}
            await plane.client.create(workload("calm", replicas=1, template=calm))
            before = await seen(plane, "calm", is_ready)
            await plane.client.create(workload("loops", replicas=1, template=loops))
            if can_limit:
                job = {"retries": 0}
                await plane.client.create(workload("hog", type="Job", job=job, template=hog))
                await check_memory(await seen(plane, "hog", has_failed))
            await check_loop(plane)
            after = await seen(plane, "calm", lambda it: True)
            assert after.status.process == before.status.process

    asyncio.run(story())


def has_failed(replica: Replica) -> bool:
    return replica.status.state in (State.FAILED, State.RELEASED)


async def check_memory(replica: Replica) -> None:
    process = replica.status.process
    assert (process.oom_killed, process.signal) == (True, int(signal.SIGKILL))
    (step,) = [it for it in replica.status.transitions if it.to is State.FAILED]
    assert step.by == "system:node:n1"
    assert "out of memory" in step.evidence
    assert "signal 9" in step.evidence


async def check_loop(plane: WholePlane) -> None:
    """The pauses double; the replica says what happens and when it is tried next."""
    late = await seen(plane, "loops", lambda it: it.status.process.restarts >= 6)
    reason = late.status.process.reason
    assert reason.startswith(f"{CRASH_LOOP}: exit code 7"), reason
    assert "next start after" in reason
    pause_ms = int(reason.rpartition("after ")[2].removesuffix(" ms"))
    # 100 ms, doubled five times, and jitter of a half.
    assert pause_ms >= 1_600
    assert late.status.state is State.RUNNING
    steps = [it for it in late.status.transitions if it.reason == CRASH_LOOP]
    assert steps
    assert all(it.by == "system:node:n1" and "exit code 7" in it.evidence for it in steps)
