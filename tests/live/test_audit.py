"""The audit of real servers: whole after kill -9, one chain over two of them, and every tampering
found by the command that users have."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.main import root
from holdfast.host.audit.segments import FOLDER, records, segments
from holdfast.host.audit.status_route import PATH, AuditStatus
from holdfast.host.client import AsyncClient
from holdfast.model.audit.audit_records import Mutation, mutation_of
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.workload import Workload
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess, until, workload

# Who waits, and who writes while others wait, leaves the cores to the servers.
LOOK_S = 0.5
PAUSE_S = 0.2
pytestmark = pytest.mark.xdist_group("audit")


def command(*words: str) -> tuple[int, str]:
    """The exit code and the words of `holdfast audit`, run in this process."""
    ran = CliRunner().invoke(root, ["audit", *words], standalone_mode=False)
    return int(ran.return_value if ran.exception is None else 1), ran.output


def options(*servers: PlaneProcess) -> list[str]:
    found = [word for it in servers for word in ("--directory", str(it.data / FOLDER))]
    return [*found, "--kubeconfig", str(servers[0].data / "kubeconfig")]


async def verified(*servers: PlaneProcess) -> tuple[int, str]:
    return await asyncio.to_thread(command, "verify", *options(*servers))


def said(*servers: PlaneProcess) -> list[Mutation]:
    return [mutation_of(it) for it in records([it.data / FOLDER for it in servers])]


async def standing(server: PlaneProcess) -> AuditStatus:
    _, text = await server.fetch(PATH)
    return msgspec.json.decode(text, type=AuditStatus)


async def written(*servers: PlaneProcess) -> None:
    """Until nothing waits to be written, as each of them sees it."""
    for _ in range(200):
        found = [await standing(it) for it in servers]
        if all(not it.lag and it.head.number for it in found):
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(found)


async def load(client: AsyncClient, who: int, made: dict[str, str], stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        name = f"w{who}-{len(made)}"
        with contextlib.suppress(HoldfastError):
            it = await client.create(workload(name, replicas=0), operation=f"create/{name}")
            made[name] = it.metadata.uid
            if len(made) % 5 == 0:
                await client.patch(Workload, name, "default", {"spec": {"replicas": 1}})
        await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def busy(*clients: AsyncClient) -> AsyncIterator[dict[str, str]]:
    """Clients that create and change; what was acknowledged, by name."""
    made: dict[str, str] = {}
    stopped = asyncio.Event()
    tasks = [asyncio.create_task(load(it, n, made, stopped)) for n, it in enumerate(clients)]
    try:
        yield made
    finally:
        stopped.set()
        await asyncio.gather(*tasks)


async def more(made: dict[str, str], count: int) -> None:
    wanted = len(made) + count
    await until(lambda: len(made) >= wanted, 60)


def check_story(found: list[Mutation], made: dict[str, str]) -> None:
    """Each creation that was acknowledged is there exactly once, with who and under which id."""
    creations = [it for it in found if (it.verb, it.kind) == ("Create", "workloads")]
    names = [it.name for it in creations]
    assert len(names) == len(set(names))
    assert set(made) <= set(names)
    for it in creations:
        assert (it.who, it.operation, it.change) == ("admin", f"create/{it.name}", "created")
        assert it.uid == made.get(it.name, it.uid)
    assert not [it for it in found if it.verb == "RenewLease"]


# What an attacker with the files could do -----------------------------------------------------


def _rewrite(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = segments(folder)[-1].path
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in change(lines)))


def _forged(lines: list[bytes]) -> list[bytes]:
    """With another name where a person is said to have done something."""
    at = next(n for n, line in enumerate(lines) if b"admin" in line)
    return [*lines[:at], lines[at].replace(b"admin", b"mallo", 1), *lines[at + 1 :]]


TAMPERINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "removed": lambda lines: [*lines[:3], *lines[4:]],
    "changed": _forged,
    "added": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "swapped": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "cut": lambda lines: lines[:-1],
}


async def check_tamperings(*servers: PlaneProcess) -> None:
    for name, change in TAMPERINGS.items():
        victim = servers[-1].data / FOLDER
        kept = victim.with_name("kept")
        shutil.copytree(victim, kept)
        _rewrite(victim, change)
        code, text = await verified(*servers)
        assert code == 1, (name, text)
        shutil.rmtree(victim)
        kept.rename(victim)
    code, text = await verified(*servers)
    assert code == 0, text


def test_a_killed_server_leaves_an_audit_that_is_whole_and_every_tampering_is_found(
    tmp_path: Path,
) -> None:
    """[A8, C7.4, INV11]"""

    async def story() -> None:
        server = await PlaneProcess(tmp_path / "one").start()
        try:
            async with server.client() as client, busy(client, client) as made:
                await more(made, 15)
                # While records are being written, and what is written last is not known yet.
                server.kill()
                await server.start()
                await more(made, 15)
            await written(server)
            code, text = await verified(server)
            assert code == 0, text
            check_story(said(server), made)
            words = ("show", "--data", str(server.data), "--kind", "workloads")
            code, text = await asyncio.to_thread(command, *words)
            assert code == 0
            assert "spec.replicas" in text
            await check_tamperings(server)
            code, text = await server.fetch(PATH, known=False)
            assert code == 401, text
        finally:
            server.kill()

    asyncio.run(story())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.mark.long
def test_two_servers_on_etcd_make_one_chain_through_the_death_of_the_one_who_writes(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """The other goes on where it was; the dead one comes back and leaves it at that. [K2]"""
    targets = ",".join(member.target for member in cluster.members)
    given = ("--store", f"etcd://{targets}", "--etcd-prefix", "/audit/", "--pki", f"{tmp_path}/pki")

    async def story() -> None:
        both = [PlaneProcess(tmp_path / it, *given, "--name", it) for it in ("one", "two")]
        try:
            await asyncio.gather(*(it.start() for it in both))
            one, two = both
            async with (
                one.client(two) as first,
                two.client(one) as second,
                busy(first, second) as made,
            ):
                await more(made, 10)
                await until_written_by(one, {"one", "two"})
                writer = (await standing(one)).head.by
                dead, other = (one, two) if writer == "one" else (two, one)
                dead.kill()
                await more(made, 10)
                await until_written_by(other, {other.data.name})
                await dead.start()
                await more(made, 10)
            await written(*both)
            code, text = await verified(*both)
            assert code == 0, text
            assert all(segments(it.data / FOLDER) for it in both)
            check_story(said(*both), made)
            code, _ = await verified(dead)
            assert code == 1, "a part of it is on the other server's disk"
            await check_tamperings(dead, other)
        finally:
            for it in both:
                it.kill()

    asyncio.run(story())


async def until_written_by(server: PlaneProcess, names: set[str]) -> None:
    for _ in range(200):
        head = (await standing(server)).head
        if head.number and head.by in names:
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"none of {names} writes: {await standing(server)}")
