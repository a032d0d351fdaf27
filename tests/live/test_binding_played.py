"""Two worked examples with real processes: a late node with one GPU, and answers that get lost."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from tests.live.names import knowing, port_at
from tests.live.plane_process import workload
from tests.live.relay import Relay
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.live.witness import beats, overlaps, processes, template
from tests.patience import STORY_S

# Doubted after seconds of silence, and fenced long after they are over.
TIMING = ("--self-stop-after", "9", "--fence-after", "60", "--stop-grace", "1", "--ack-window", "1")
GPU = ("--gpus", "none", "--device", "class=gpu,id=gpu-7,model=a100", "--capacity", "cpu=4")
SERVICES = 8
LOSSY = "lossy.test"
# Says so when another one has the same device at the same time.
OWNS = """
import fcntl, os, sys, time
device = os.environ["HOLDFAST_DEVICES"]
with open(sys.argv[1], "a") as book:
    try:
        fcntl.flock(book, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("twice", device, file=open(sys.argv[1] + ".twice", "a"))
        sys.exit(1)
    print(device, os.environ["HOLDFAST_REPLICA"], file=book, flush=True)
    time.sleep(0.4)
"""


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


@pytest.mark.long
def test_one_gpu_of_a_node_that_is_late_has_one_owner_at_a_time(tmp_path: Path) -> None:
    """While the node is doubted nothing is bound to it, and each replica says why it waits and when
    it is tried again; then they get the device one after the other. [SC1, C3, C4, D1, F5, H4]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("node-gpu-7",), fence=TIMING, agent=GPU) as plane:
            agent = plane.parts["node-gpu-7"]
            await plane.until(lambda: is_trusted(plane))
            agent.signal(signal.SIGSTOP)
            try:
                await plane.until(lambda: is_doubted(plane))
                book = tmp_path / "book"
                wanted = {
                    "command": [sys.executable, "-I", "-S", "-c", OWNS, str(book)],
                    "devices": [{"deviceClass": "gpu", "count": 1, "models": ["a100"]}],
                    "resources": {"cpu": "100m", "memory": "16Mi"},
                    "restart": "OnFailure",
                }
                job = workload("fraud-batch", type="Job", replicas=3, template=wanted)
                await plane.client.create(job)
                waiting = await plane.until(lambda: all_wait(plane))
                for replica in waiting:
                    pending = replica.status.pending
                    assert pending is not None
                    assert pending.next_wake is not None
            finally:
                agent.signal(signal.SIGCONT)
            await plane.until(lambda: is_done(plane))
            owners = [line.split() for line in book.read_text().splitlines()]
            assert [device for device, _ in owners] == ["gpu-7"] * 3
            assert len({replica for _, replica in owners}) == 3
            assert not book.with_suffix(".twice").exists()

    play(story())


async def is_trusted(plane: WholePlane) -> bool:
    """Whether the node is there yet, and ready: its agent says that it works before it is."""
    found = (await plane.client.list(Node)).objects
    return any(it.status.phase is NodePhase.READY for it in found)


async def is_doubted(plane: WholePlane) -> bool:
    phase = (await plane.client.get(Node, "node-gpu-7")).status.phase
    return phase is not NodePhase.READY


async def batch(plane: WholePlane) -> list[Replica]:
    found = (await plane.client.list(Replica, "default")).objects
    return [it for it in found if it.spec.workload == "fraud-batch"]


async def all_wait(plane: WholePlane) -> list[Replica]:
    found = [it for it in await batch(plane) if it.status.pending and it.status.pending.reasons]
    assert all(it.status.state is State.PENDING for it in found)
    return found if len(found) == 3 else []


async def is_done(plane: WholePlane) -> bool:
    found = await plane.client.get(Workload, "fraud-batch", "default")
    return found.status.progress.succeeded == 3


@asynccontextmanager
async def lossy(folder: Path, *names: str) -> AsyncIterator[tuple[WholePlane, list[Relay]]]:
    """A plane with a wire that can lose answers between each of these parts and their server.

    The server is known by a name alone, also to those who ask which servers there are, and to each
    of these parts the name is the address of its own wire: there is no way around it.
    """
    hosts = [f"127.0.0.{11 + number}" for number in range(len(names))]
    port = port_at(hosts)
    url = f"https://{LOSSY}:{port}"
    agent = ("--capacity", "cpu=8", "--capacity", "memory=4Gi", "--gpus", "none")
    wraps = {
        name: ("env", f"PYTHONPATH={knowing(folder / 'names' / name, LOSSY, host)}")
        for name, host in zip(names, hosts, strict=True)
    }
    serve = ("--cert-name", LOSSY, "--advertise", url)
    plane = WholePlane(folder, ("node-b7",), fence=LONG_FENCE, agent=agent, serve=serve, wrap=wraps)
    (direct,) = plane.access_urls
    async with AsyncExitStack() as laid:
        relays = []
        for name, host in zip(names, hosts, strict=True):
            relay = Relay(int(direct.rpartition(":")[2]), (host, port))
            relays.append(await laid.enter_async_context(relay))
            part = plane.parts[name]
            part.arguments = tuple(url if it == direct else it for it in part.arguments)
        yield await laid.enter_async_context(plane), relays


def test_answers_that_get_lost_bind_and_start_nothing_twice(tmp_path: Path) -> None:
    """The scheduler's binds and the agent's reports are committed, and their answers never come:
    each is looked for by its operation, and there is one binding, one process and no more replicas
    than were asked for. [SC3, F6, E5, N1.1, H2]"""

    async def story() -> None:
        async with lossy(tmp_path, "scheduler", "node-b7") as (plane, relays):
            spec = template(plane.witness) | {"resources": {"cpu": "100m", "memory": "16Mi"}}
            for number in range(SERVICES):
                for relay in relays:
                    relay.losing += 2
                await plane.client.create(workload(f"svc{number}", replicas=1, template=spec))
                await asyncio.sleep(0.3)
            found: list[Replica] = await plane.until(lambda: all_run(plane))
            assert len(found) == SERVICES
            for replica in found:
                steps = [it.to for it in replica.status.transitions]
                assert steps.count(State.BOUND) == 1, steps
                assert steps.count(State.RUNNING) == 1, steps
                assert replica.status.process.restarts == 0
            seen = beats(plane.witness)
            assert overlaps(seen) == []
            for number in range(SERVICES):
                assert len(processes(seen, f"svc{number}-0")) == 1
            lost = [relay.lost for relay in relays]
            print(f"answers lost: scheduler {lost[0]}, agent {lost[1]}")
            assert lost[0] >= SERVICES, lost
            assert lost[1] >= SERVICES, lost

    play(story())


async def all_run(plane: WholePlane) -> list[Replica]:
    found = (await plane.client.list(Replica, "default")).objects
    is_so = all(it.status.state is State.RUNNING for it in found)
    begun = {it.place for it in beats(plane.witness)}
    return list(found) if is_so and len(begun) == SERVICES else []
