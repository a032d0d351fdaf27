"""Decisions of a real plane: they outlive a killed server, and are decided again as they were."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from holdfast.host.client import paths
from holdfast.model.kinds.decision import Decision
from holdfast.model.registry import kind_of_struct
from tests.live.part import ROOT
from tests.live.whole_plane import LONG_FENCE, WholePlane


async def decisions(plane: WholePlane, result: str) -> list[Decision]:
    found = (await plane.client.list(Decision, "default")).objects
    return [it for it in found if it.spec.result == result]


def test_decisions_are_kept_and_can_be_made_again(tmp_path: Path) -> None:
    """By kubectl, after a kill of scheduler and server, and from the store's own history.
    They answer why the other one waits. [M1, M2, M4, F8]"""

    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), fence=LONG_FENCE) as plane:
            await plane.apply(2)
            accepted = await plane.until(lambda: decisions(plane, "Accepted"))
            plane.parts["scheduler"].signal(signal.SIGKILL)
            plane.parts["server-1"].signal(signal.SIGKILL)
            await plane.until(lambda: works_again(plane))
            kept = await plane.until(lambda: decisions(plane, "Accepted"))
            assert {it.name for it in accepted} <= {it.name for it in kept}
            for one in kept:
                path = paths.one(kind_of_struct(Decision), "default", one.name, "again")
                answer = msgspec.json.decode(await plane.client.read(path))
                assert answer["differences"] == []
            shown = await asyncio.to_thread(kubectl, tmp_path / "server-1" / "kubeconfig")
            assert kept[0].name in shown
            waiting = await plane.until(lambda: waits(plane))
            said = await asyncio.to_thread(explain, tmp_path / "server-1" / "kubeconfig", waiting)
            assert "stopped at      scheduling" in said
            assert "because         NoPlace: none of 1 nodes can take it" in said
            assert "next move       scheduler" in said
            assert f"replica {waiting} (revision " in said
            assert "decision d-" in said

    asyncio.run(story())


async def waits(plane: WholePlane) -> str:
    """The schedulers that say that there is no room."""
    found = [it for it in await plane.replicas() if it.status.pending is not None]
    return found[0].name if found else ""


def explain(config: Path, name: str) -> str:
    command = [sys.executable, "-m", "holdfast.cli", "explain", "replica", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(config)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


async def works_again(plane: WholePlane) -> bool:
    parts = (plane.parts["scheduler"], plane.parts["server-1"])
    return all(part.lives > 1 and part.works for part in parts)


def kubectl(config: Path) -> str:
    command = ["kubectl", "get", "decisions", "--kubeconfig", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    return done.stdout
