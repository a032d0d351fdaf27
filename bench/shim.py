"""The cost of running work under a shim: starts per second, memory, delay at the deadline.

Four agents, each a separate process, start work in parallel. The peer of starts is bare starts of
the same program by the same number of processes; that of memory is a supervisor for each replica in
Python, and one for all of them, which is what a shim replaces (docs/adr/0046).
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import figure, percentile
from holdfast.agent.runtime_protocol import Attempt, Exited, Halt, Launch, Launched
from holdfast.host.process.clock import monotonic_ms
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.model.errors import invariant
from holdfast.model.kinds.template import Template

AGENTS = 4
STARTS_EACH = 150
DEADLINES = 50
GRACE_MS = 50
PATIENCE_S = 60.0
WORK = ("sleep", "300")
# The least that a supervisor of one replica does: hold a timer, a socket and a child, and wait.
_KEEPER = """
import os, select, signal, socket, subprocess, sys
line = socket.socket(socket.AF_UNIX)
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
select.poll().poll(300_000)
"""
# The least that one supervisor of all replicas does.
_ONE_FOR_ALL = """
import subprocess, sys, time
began = time.perf_counter()
children = [subprocess.Popen(["sleep", "300"]) for _ in range(int(sys.argv[1]))]
print(time.perf_counter() - began, flush=True)
sys.stdin.read()
for child in children:
    child.kill()
"""


def _resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


class _Agent:
    """A runtime whose stimuli are counted."""

    def __init__(self, folder: Path) -> None:
        self.attempts = AttemptFolders(folder)
        self.runtime = NodeRuntime(folder, node="bench")
        self.seen: dict[type, set[Attempt]] = {Launched: set(), Exited: set()}
        self._news = asyncio.Event()

    async def start(self) -> None:
        await self.runtime.start(self._post, self._fail)

    def _post(self, stimulus: Launched | Exited) -> None:
        self.seen.setdefault(type(stimulus), set()).add(stimulus.attempt)
        self._news.set()

    def _fail(self, bug: BaseException) -> None:
        raise bug

    async def until(self, kind: type, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.seen[kind]) < count:
                self._news.clear()
                await self._news.wait()

    def launch(self, number: int, within_ms: int) -> None:
        launch = Launch(
            Attempt(f"u{number}", 0),
            "bench",
            f"w-{number}",
            Template(command=WORK),
            number,
            monotonic_ms() + within_ms,
            GRACE_MS,
        )
        self.runtime.performers[Launch](launch)

    async def end(self) -> None:
        for attempt in self.seen[Launched] - self.seen[Exited]:
            self.runtime.performers[Halt](Halt(attempt, 0))
        await self.until(Exited, len(self.seen[Launched]))
        await self.runtime.stop()


async def _one_agent(folder: str) -> None:
    """Act as one of several agents: wait for the signal, start everything, print the time."""
    agent = _Agent(Path(folder))
    await agent.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.perf_counter()
    for number in range(STARTS_EACH):
        agent.launch(number, 300_000)
    await agent.until(Launched, STARTS_EACH)
    print(time.perf_counter() - began, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await agent.end()


def together(command: list[str]) -> float:
    """Starts per second of several processes that start work at the same time."""
    running = [
        subprocess.Popen(
            [*command, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for index in range(AGENTS)
    ]
    outputs = [one.stdout for one in running if one.stdout is not None]
    inputs = [one.stdin for one in running if one.stdin is not None]
    for output in outputs:
        invariant(output.readline() == "ready\n", "an agent did not start")
    for line in inputs:
        line.write("go\n")
        line.flush()
    slowest_s = max(float(output.readline()) for output in outputs)
    for line in inputs:
        line.close()
    for one in running:
        one.wait()
    return AGENTS * STARTS_EACH / slowest_s


def _starts(folder: Path) -> None:
    script = (
        f"import bench.shim as b, asyncio, sys; asyncio.run(b._one_agent('{folder}/'+sys.argv[1]))"
    )
    ours = together([sys.executable, "-c", script])
    bare = together([sys.executable, "-c", BARE])
    figure(
        "shim.starts_per_s",
        ours,
        "1/s",
        peer=f"bare Popen of the same program in {AGENTS} processes",
        peer_value=bare,
        goal=">= 100",
        agents=AGENTS,
    )


BARE = f"""
import subprocess, sys, time
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
children = [subprocess.Popen({list(WORK)!r}) for _ in range({STARTS_EACH})]
print(time.perf_counter() - began, flush=True)
sys.stdin.read()
for child in children:
    child.kill()
    child.wait()
"""


async def _memory_and_lateness(folder: Path) -> None:
    agent = _Agent(folder)
    await agent.start()
    for number in range(STARTS_EACH):
        agent.launch(number, 300_000)
    await agent.until(Launched, STARTS_EACH)
    states = [agent.attempts.look(attempt).state for attempt in agent.seen[Launched]]
    ours = statistics.median(_resident_kb(state.shim.pid) for state in states if state)
    figure(
        "shim.resident_kb",
        ours,
        "KB",
        peer="a supervisor for each replica in Python",
        peer_value=_keeper_kb(),
        goal="<= 3072",
        isolation=next(state.isolation for state in states if state),
        one_keeper_for_all_kb=_one_for_all_kb(),
    )
    await agent.end()
    late = await _lateness(folder.with_name("late"))
    figure(
        "shim.deadline_late_ms",
        percentile(late, 0.99),
        "ms",
        peer="the fence's bound on killing",
        peer_value=2_000.0,
        goal="<= 500",
        durability="power",
    )


async def _lateness(folder: Path) -> list[float]:
    """How long after the deadline everything had ended and was recorded."""
    agent = _Agent(folder)
    await agent.start()
    deadline_ms = monotonic_ms() + 2_000
    for number in range(DEADLINES):
        agent.launch(number, deadline_ms - monotonic_ms())
    await agent.until(Exited, DEADLINES)
    ahead_ms = time.time_ns() // 1_000_000 - monotonic_ms()
    ends = [agent.attempts.look(attempt).exit for attempt in agent.seen[Exited]]
    await agent.runtime.stop()
    return [float(end.ended_ms - ahead_ms - deadline_ms) for end in ends if end is not None]


def _keeper_kb() -> float:
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _KEEPER], stdout=subprocess.PIPE, text=True
    ) as keeper:
        invariant(keeper.stdout is not None, "the supervisor has no output")
        child = int(keeper.stdout.readline()) if keeper.stdout is not None else 0
        resident = _resident_kb(keeper.pid)
        keeper.kill()
    subprocess.run(["kill", str(child)], check=False)
    return float(resident)


def _one_for_all_kb() -> float:
    """The share of one replica in a supervisor of all of them."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _ONE_FOR_ALL, str(STARTS_EACH)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        if keeper.stdout is not None:
            keeper.stdout.readline()
        resident = _resident_kb(keeper.pid)
        if keeper.stdin is not None:
            keeper.stdin.close()
    return round(resident / STARTS_EACH, 1)


def main() -> None:
    """Print every figure."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _starts(folder)
        asyncio.run(_memory_and_lateness(folder / "memory"))


if __name__ == "__main__":
    main()
