"""Triggers actions at exact moments: as soon as a matching entry appears in the run log.

Faults at fixed times hit a certain interleaving by luck; a cue hits it on every seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Fault, Prompted
from holdfast.sim.scenarios.run_log import LogEntry, RunLog
from holdfast.sim.world import World

# Whether a new log entry is the moment to act.
When = Callable[[LogEntry], bool]
Then = Callable[[World], None]


class Cues(Checker):
    """Reads new log entries, and runs the actions that wait for them, each a few times."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._read = 0
        self._waiting: list[tuple[When, Then, int]] = []

    def add(self, when: When, then: Then, times: int = 1) -> None:
        self._waiting.append((when, then, times))

    def on_fact(self, world: World, fact: Any) -> None:
        self._read_new(world)

    def on_commit(self, world: World, commit: Commit) -> None:
        self._read_new(world)

    def _read_new(self, world: World) -> None:
        entries = self._log.entries
        while self._read < len(entries):
            entry = entries[self._read]
            self._read += 1
            for index, (when, then, times) in enumerate(self._waiting):
                if times and when(entry):
                    self._waiting[index] = (when, then, times - 1)
                    # As an event of its own: a checker must not change the world.
                    world.post(world.now_us, self._run, then, world)

    @staticmethod
    def _run(_number: int, then: Then, world: World) -> None:
        then(world)


def strike(
    world: World, kind: str, target: str, *, peer: str = "", for_ms: int = 0, amount: int = 0
) -> None:
    """Inject a fault now; it heals after its time."""
    found = world.faults.kinds[kind]
    world.note(f"cue {kind} {target} {peer} {amount}")
    if found.counted:
        world.inject(kind)
    fault = Fault(world.now_us // 1000, kind, target, peer, for_ms, amount)
    heal = found.strike(world, fault)
    if heal is not None:
        world.post(world.now_us + for_ms * 1000, _heal, heal, None)


def _heal(_number: int, heal: Callable[[], None], _: None) -> None:
    heal()


def prompt(world: World, who: str, body: dict[str, Any]) -> None:
    """Let a simulated user or client act now."""
    world.hand(world.cells[who], Prompted(body))
