"""One replica, end to end: every part on its way is killed, alone and in pairs, and it comes back.

HOLDFAST_END_TO_END_LONG=1, as `make end-to-end-long` sets it, runs every pair, on etcd as well.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.client import AsyncClient
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.workload import Workload
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import workload
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import IS_LONG, LONG_FENCE, PLACE, WholePlane
from tests.live.witness import STUBBORN, Beat, beats, overlaps, processes

ROLES = ("work", "shim", "agent", "server", "scheduler", "controllers")
SINGLES = [(role,) for role in ROLES]
PAIRS = list(itertools.combinations(ROLES, 2))
# Each part with one that would mend it, for a run in a few minutes.
SOME_PAIRS = [("agent", "server")]
# With two servers: one with the agent that needs it, then everything.
ON_ETCD = [("server-2", "agent"), (*ROLES, "server-2")]
# And then both servers, and each server with every other part.
ON_ETCD_LONG = [
    *(("server", "server-2"), ("server-2",)),
    *(*SINGLES, *PAIRS, *((role, "server-2") for role in ROLES)),
]
NOTE_EVERY_S = 0.1
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, 900.0))


class Ledger:
    """Small objects, written all the time, and the uids under which they were acknowledged."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.acknowledged: dict[str, str] = {}

    async def write(self) -> None:
        for number in itertools.count():
            made = await self._client.create(workload(f"note-{number}", replicas=0))
            self.acknowledged[made.name] = made.metadata.uid
            await asyncio.sleep(NOTE_EVERY_S)

    async def lost(self) -> list[str]:
        """Those that were acknowledged and are not there, or are others."""
        listed = (await self._client.list(Workload, "default")).objects
        there = {it.name: it.metadata.uid for it in listed}
        return [name for name, uid in self.acknowledged.items() if there.get(name) != uid]


@asynccontextmanager
async def writing(client: AsyncClient) -> AsyncIterator[None]:
    """Let a client write meanwhile; nothing that was acknowledged may be lost."""
    ledger = Ledger(client)
    writer = asyncio.create_task(ledger.write())
    try:
        yield
        assert not writer.done(), writer
    finally:
        writer.cancel()
    assert len(ledger.acknowledged) > 10
    assert await ledger.lost() == []


async def kill_in_turn(plane: WholePlane, rounds: list[tuple[str, ...]]) -> None:
    """Kill the parts of each round at once, ask for another count, and see it come true.

    The count needs every part: controllers make or stop the second replica, the scheduler places
    it, an agent and its shim run it.
    """
    count = 1
    (replica, *_) = await plane.ready(count)
    for roles in rounds:
        began = time.monotonic()
        lives = len(processes(beats(plane.witness), PLACE))
        plane.kill(replica, *roles)
        count = 3 - count
        await plane.scale(count)
        (replica, *_) = await plane.ready(count)
        plane.check_witness()
        # Nothing else may have made an end of it: minutes without contact are allowed.
        is_new = bool({"work", "shim"} & set(roles))
        assert len(processes(beats(plane.witness), PLACE)) == lives + is_new
        # To find out why a run took long.
        print(f"{time.monotonic() - began:6.2f} s after {', '.join(roles)}")


async def delete(plane: WholePlane) -> None:
    """Nothing is left of the service, in the store and on the nodes."""
    await plane.client.delete(Workload, "web", "default")

    async def is_gone() -> bool:
        return not await plane.replicas() and not any(map(plane.shims, plane.nodes))

    await plane.until(is_gone)
    plane.check_witness()


async def pause_past_the_fence(plane: WholePlane) -> None:
    """Stop an agent for longer than the fence: its work ends by itself before the next begins.

    Awake again it finds another life of its node, starts nothing of the old one, and takes work.
    """
    (old,) = await plane.ready(1)
    assert old.status.binding is not None
    node = old.status.binding.node
    plane.parts[node].signal(signal.SIGSTOP)

    async def is_elsewhere() -> bool:
        seen = await plane.replicas()
        return [it.name for it in seen] != [old.name] and bool(await plane.ready(1))

    try:
        await plane.until(is_elsewhere)
        assert (await plane.client.get(Node, node)).status.phase is NodePhase.FENCED
    finally:
        plane.parts[node].signal(signal.SIGCONT)

    async def is_back() -> bool:
        status = (await plane.client.get(Node, node)).status
        return status.phase is NodePhase.READY and status.incarnation == 2

    await plane.until(is_back)
    # Each node has room for one of them.
    await plane.scale(2)
    now = await plane.ready(2)
    assert {it.status.binding.node for it in now if it.status.binding} == set(plane.nodes)
    seen = beats(plane.witness)
    assert overlaps(seen) == []
    first, second = processes(seen, PLACE)
    assert (first.node, second.node) == (node, next(it for it in plane.nodes if it != node))
    assert first.token < second.token


@pytest.mark.parametrize(
    "order, faults",
    [
        ("a a b b", 0),
        ("a b a", 1),
        ("a b a c a", 2),
        ("a b c b", 1),
        ("b2 a1", 1),
        ("a1 b2", 0),
    ],
)
def test_the_checker_of_the_witness_sees_what_must_not_be(order: str, faults: int) -> None:
    """A beat of a process after that of its successor, and a token that falls. [INV2]"""
    made = [Beat(PLACE, int(it[1:] or 1), it[0], "n1", 0) for it in order.split()]
    elsewhere = Beat("web-1", 1, "z", "n2", 0)
    assert len(overlaps([elsewhere, *made, elsewhere])) == faults


@pytest.mark.slow
def test_every_part_may_be_killed_alone_and_in_pairs(tmp_path: Path) -> None:
    """Back to what is wanted each time, nothing acknowledged lost, never two at one place.
    [H1, C7.4, I1, INV2, INV11]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2"), fence=LONG_FENCE) as plane:
            await plane.apply(1)
            async with writing(plane.client):
                await kill_in_turn(plane, [*SINGLES, *(PAIRS if IS_LONG else SOME_PAIRS)])
            await delete(plane)

    play(story())


@pytest.mark.slow
def test_an_agent_that_is_paused_past_its_fence_resurrects_nothing(tmp_path: Path) -> None:
    """Its work ignores SIGTERM, and is gone before another one starts. [H5, C6.4, INV2]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1", "n2")) as plane:
            await plane.apply(1, STUBBORN)
            await pause_past_the_fence(plane)
            await delete(plane)

    play(story())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("plane-etcd")
def test_with_two_servers_on_etcd_either_or_all_may_be_killed(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """The same over a real etcd. [H1, C7.4, I1, INV2, INV11]"""
    prefix = ("--etcd-prefix", "/end-to-end/")

    async def story() -> None:
        async with WholePlane(
            tmp_path, ("n1", "n2"), plane=plane_on_etcd(cluster), serve=prefix, fence=LONG_FENCE
        ) as plane:
            await plane.apply(1)
            async with writing(plane.client):
                await kill_in_turn(plane, ON_ETCD + (ON_ETCD_LONG if IS_LONG else []))
            await delete(plane)

    play(story())
