"""A container on a real plane, asked by commands inside it how it is."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.work import is_ready
from holdfast.host.runtime import shim_binary
from holdfast.host.runtime.cgroups import detect
from holdfast.host.runtime.containers import containers
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from tests.live.plane_process import workload
from tests.live.whole_plane import LONG_FENCE, WholePlane
from tests.workshop import NODE

pytestmark = pytest.mark.root
APPLETS = ("sh", "test", "sleep", "touch", "rm", "echo")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A directory with one root file system; skipped where no container can be run."""
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes():
        pytest.skip("no static busybox is installed here")
    folder = tmp_path / "probe"
    folder.mkdir()
    groups = detect.find(NODE, folder)
    try:
        containers.check(folder, groups, shim_binary.find())
    except Unavailable as problem:
        pytest.skip(str(problem))
    finally:
        groups.retire()
    programs = tmp_path / "images" / "box" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(busybox, programs / "busybox")
    for applet in APPLETS:
        (programs / applet).symlink_to("busybox")
    return tmp_path / "images"


def asks(script: str, failures: int = 1) -> dict[str, Any]:
    command = {"command": ["/bin/sh", "-c", script]}
    return {"exec": command, "periodSeconds": 1, "failureThreshold": failures}


async def seen(plane: WholePlane, holds: Any) -> Replica:
    async def look() -> Replica | None:
        found = [it for it in await plane.replicas() if holds(it)]
        return found[0] if found else None

    found: Replica = await plane.until(look)
    return found


def test_commands_inside_a_container_say_when_it_is_ready_and_when_it_is_ill(
    tmp_path: Path, images: Path
) -> None:
    """It becomes ready when a file appears in it, is restarted when another one does, and its last
    command runs in it as well. [A6, H1, H3, H4]"""

    async def story() -> None:
        agent = ("--capacity", "cpu=2", "--images", str(images))
        async with WholePlane(
            tmp_path, ("n1",), fence=LONG_FENCE, agent=agent, tenants=()
        ) as plane:
            # Only the first attempt falls ill.
            script = (
                "sleep 1; touch /ready; sleep 2; "
                'case "$HOLDFAST_ATTEMPT" in */0) touch /ill;; esac; sleep 600'
            )
            template = {
                "runtime": "container",
                "isolation": "container",
                "image": str(images / "box"),
                "command": ["/bin/sh", "-c", script],
                "resources": {"cpu": "100m", "memory": "32Mi"},
                "probes": {
                    "readiness": asks("test -e /ready"),
                    "liveness": asks("! test -e /ill"),
                },
                "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo bye >/holdfast/bye"]}},
                "graceSeconds": 10,
            }
            await plane.client.create(workload("web", replicas=1, template=template))
            early = await seen(plane, lambda it: it.status.process.reason.startswith("NotReady"))
            assert early.status.process.reason == "NotReady: readiness probe: exec: exit code 1"
            assert (early.status.state, early.status.stage) == (State.RUNNING, Stage.STARTING)
            await seen(plane, is_ready)
            again = await seen(plane, lambda it: it.status.process.restarts == 1)
            assert again.status.transitions[-1].reason == "LivenessProbeFailed"
            first = tmp_path / "n1" / again.metadata.uid / "0" / "work"
            assert (first / "bye").read_text() == "bye\n"
            await seen(
                plane,
                lambda it: is_ready(it) and it.status.process.restarts == 1,
            )
            await plane.scale(0)

            async def gone() -> bool:
                return all(it.status.state is State.RELEASED for it in await plane.replicas())

            await plane.until(gone)

    asyncio.run(story())
