"""Wheels of earlier versions are kept: each installs and serves, this version reads its store, and
the parts of a plane of both work together.

tests/data/wheels holds them, and its README says what each is.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.model.kinds.access import Role
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.plane_format import is_older
from tests.live.plane_process import PlaneProcess, workload
from tests.live.whole_plane import LONG_FENCE, WholePlane

FOLDER = Path(__file__).parents[1] / "data" / "wheels"
KEPT = sorted(FOLDER.glob("*.whl"))
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")
BYTES_MAX = 4 << 20
# A copy of the program asks itself where it is; without a compiler it can come only from the wheel.
LOOK = """
import holdfast, sys
from holdfast.host.runtime import shim_binary
print(holdfast.__version__, holdfast.__file__, shim_binary.find("session").path)
"""

each_wheel = pytest.mark.parametrize("wheel", KEPT, ids=lambda it: it.name)


def test_a_wheel_is_kept() -> None:
    """Otherwise nothing below is tested."""
    assert KEPT


@each_wheel
def test_a_kept_wheel_is_the_one_that_was_built(wheel: Path) -> None:
    """It is small, and names no directory of the machine that built it."""
    said = (FOLDER / "README.md").read_text()
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in said
    assert wheel.stat().st_size < BYTES_MAX
    with zipfile.ZipFile(wheel) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    assert any(name.endswith("/holdfast-shim") for name in members)
    assert not [name for name in members if name.startswith("/") or ".." in name]
    # What the compiler and the packaging made; all else is as it stands in the commit.
    made = [text for name, text in members.items() if not name.endswith((".py", ".c", ".h"))]
    here = (b"/tmp/", str(Path.home()).encode() + b"/", str(FOLDER.parents[2]).encode() + b"/")
    assert not [text[:40] for text in made if any(it in text for it in here)]


def installed(wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment with this wheel, beside the libraries of this one."""
    if not wheel.stem.endswith((PLATFORM, "any")):
        pytest.skip(f"{wheel.name} was built for another platform than {PLATFORM}")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    install = ("install", *quiet, "--no-deps", "--no-index", "--no-compile", str(wheel))
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Plain paths: the editable install of this tree beside them is not found.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def look(python: Path) -> list[str]:
    """Where the program and its shim come from, on a machine without a compiler."""
    env = {"PATH": "/nonexistent", "HOME": str(python.parents[1])}
    said = subprocess.run([str(python), "-c", LOOK], env=env, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr.decode()
    return said.stdout.decode().split()


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The interpreter of an environment with a wheel, which the tests of this module share."""
    return cache(lambda wheel: installed(wheel, tmp_path_factory.mktemp("wheel") / "env"))


def host_of(python: Path) -> tuple[str, ...]:
    """The command of that version, whose children must not find the tree of today either."""
    return ("env", "-u", "PYTHONPATH", str(python), "-m", "holdfast.host")


Interpreters = Callable[[Path], Path]


@pytest.mark.slow
@each_wheel
def test_this_version_opens_the_store_of_a_kept_one(
    wheel: Path, interpreters: Interpreters, tmp_path: Path
) -> None:
    """What the kept version wrote is read field by field, and can be changed."""
    python = interpreters(wheel)
    version, package, shim = look(python)
    assert version == wheel.name.split("-")[1]
    assert is_older(version, __version__)
    assert Path(package).is_relative_to(python.parents[1])
    assert Path(shim).is_relative_to(python.parents[1])
    written: list[Object] = [
        Tenant(ObjectMeta(name="acme")),
        Secret(ObjectMeta(name="key", namespace="acme"), data={"a": "Yg=="}),
        Role(ObjectMeta(name="reader", namespace="acme")),
        workload("web", replicas=3),
    ]

    async def story() -> None:
        server = PlaneProcess(tmp_path / "data", program=host_of(python))
        await server.start()
        async with server.client() as client:
            before = [await client.create(obj) for obj in written]
            before[-1] = await client.get(Workload, "web", "default")
        await server.stop()
        now = PlaneProcess(tmp_path / "data", port=server.port)
        await now.start()
        async with now.client() as client:
            for was in before:
                assert await client.get(type(was), was.name, was.namespace) == was
            await client.scale(Workload, "web", "default", 5)
            assert (await client.get(Workload, "web", "default")).spec.replicas == 5
        await now.stop()

    asyncio.run(story())


CLIENTS = ("scheduler", "controllers", "n1")


@pytest.mark.slow
@pytest.mark.timeout(300)
@each_wheel
@pytest.mark.parametrize("kept", [("server-1",), CLIENTS], ids=["server", "clients"])
def test_parts_of_a_kept_version_work_beside_parts_of_this_one(
    wheel: Path, kept: tuple[str, ...], interpreters: Interpreters, tmp_path: Path
) -> None:
    """The kept server with today's scheduler, controllers and agent, and the reverse.

    Work starts, answers, and is scaled up and down.
    """
    program = host_of(interpreters(wheel))

    async def story() -> None:
        plane = WholePlane(tmp_path, ("n1",), fence=LONG_FENCE, agent=("--capacity", "cpu=2"))
        for name in kept:
            plane.parts[name].program = program
        async with plane:
            version = wheel.name.split("-")[1]

            # An agent says that it works before it has registered its node.
            async def nodes() -> tuple[Node, ...]:
                return (await plane.client.list(Node)).objects

            (node,) = await plane.until(nodes)
            assert node.status.agent_version == (version if "n1" in kept else __version__)
            lease = await plane.client.get(Lease, lease_name(server_scope("server-1")))
            assert lease.spec.version == (version if "server-1" in kept else __version__)
            await plane.apply(1)
            (web,) = await plane.ready(1)
            await plane.scale(2)
            assert len(await plane.ready(2)) == 2
            await plane.scale(1)
            (same,) = await plane.ready(1)
            assert same.status.process.id == web.status.process.id

    asyncio.run(story())
