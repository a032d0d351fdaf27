"""The cost of isolation between tenants: the time from a launch to running work, by level.

The same agent starts the same program one after the other: as a process of the agent's own user, as
one of a tenant's user, and as a container with and without its own users. `bench.guard` shows it
with its other figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.harness import figure
from holdfast.agent.runtime_protocol import Attempt, Exited, Halt, Launch, Launched
from holdfast.host.process.clock import monotonic_ms
from holdfast.host.runtime.confinement import ConfinementRules
from holdfast.host.runtime.run_as import DEFAULT
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.runtime.starting import RuntimeOptions
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.template import Runtime as RuntimeKind
from holdfast.model.kinds.template import Template

STARTS = 40
PATIENCE_S = 120.0
WITHIN_MS = 300_000
APART, TOGETHER = "apart", "together"


class _Agent:
    """A runtime that waits for one launch at a time."""

    def __init__(self, folder: Path, options: RuntimeOptions) -> None:
        self.runtime = NodeRuntime(folder, node="bench", options=options)
        self._stimuli: asyncio.Queue[Any] = asyncio.Queue()

    async def start(self) -> None:
        await self.runtime.start(self._stimuli.put_nowait, self._stimuli.put_nowait)

    async def _heard(self, kind: type[Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            stimulus = await self._stimuli.get()
        if not isinstance(stimulus, kind):
            raise Unavailable(f"work did not start: {stimulus}")

    async def started_ms(self, template: Template, number: int) -> float:
        """The time of one start. The work has ended before this returns."""
        attempt = Attempt(f"u{number}", 0)
        until_ms = monotonic_ms() + WITHIN_MS
        launch = Launch(attempt, "bench", f"w-{number}", template, number, until_ms, 0)
        began_s = time.perf_counter()
        self.runtime.performers[Launch](launch)
        await self._heard(Launched)
        taken_s = time.perf_counter() - began_s
        self.runtime.performers[Halt](Halt(attempt, 0))
        await self._heard(Exited)
        return 1_000 * taken_s


def _image(folder: Path) -> Path:
    """The smallest root file system in which a program can run."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Unavailable("busybox is not installed")
    root = folder / "images" / "box"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "sleep")
    return root


async def _measured(folder: Path) -> dict[str, float]:
    image = _image(folder)
    process = Template(command=("sleep", "300"))
    box = Template(runtime=RuntimeKind.CONTAINER, image=str(image), command=("/bin/sleep", "300"))
    rules = {
        APART: ConfinementRules(DEFAULT, folder / "machine" / "run-as"),
        TOGETHER: ConfinementRules(),
    }
    agents = {
        name: _Agent(folder / name, RuntimeOptions(images=(image.parent,), rules=it))
        for name, it in rules.items()
    }
    kinds = {
        "none": (agents[TOGETHER], process),
        "user": (agents[APART], process),
        "container_shared_users": (agents[TOGETHER], box),
        "container": (agents[APART], box),
    }
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for agent in agents.values():
        await agent.start()
    try:
        # One of each in turn and in random order, so that other load, and the end of the previous
        # work, affect all of them alike. The first round creates what is created only once, and is
        # not counted.
        order, rng = list(kinds.items()), random.Random(0)
        for turn in range(1 + STARTS):
            rng.shuffle(order)
            for index, (name, (agent, template)) in enumerate(order):
                ms = await agent.started_ms(template, turn * len(kinds) + index)
                if turn:
                    taken[name].append(ms)
    finally:
        for agent in agents.values():
            await agent.runtime.stop()
    return {name: statistics.median(values) for name, values in taken.items()}


def figures() -> None:
    """Show each level beside work without isolation. Only root can use several users."""
    if os.geteuid() != 0:
        print("guard.isolation: skipped: run it as root", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measured(Path(folder)))
    plain = found["none"]
    for name, ms in found.items():
        if name != "none":
            figure(
                f"guard.isolation.start_overhead_ms.{name}",
                ms - plain,
                "ms",
                peer="a start without isolation",
                peer_value=plain,
            )


if __name__ == "__main__":
    figures()
