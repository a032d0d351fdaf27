"""Something happens at the very moment when it hurts: as soon as the story has come so far.

Faults by the clock hit a certain interleaving by luck; a cue hits it by every seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Fault, Prompted
from holdfast.sim.scenarios.run_log import LogEntry, RunLog
from holdfast.sim.world import World

# Whether what was just written into the story is the moment.
When = Callable[[LogEntry], bool]
Then = Callable[[World], None]


class Cues(Checker):
    """Looks at what is new in the story, and lets happen what waits for it, a few times each."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._read = 0
        self._waiting: list[tuple[When, Then, int]] = []

    def add(self, when: When, then: Then, times: int = 1) -> None:
        self._waiting.append((when, then, times))

    def on_fact(self, world: World, fact: Any) -> None:
        self._look(world)

    def on_commit(self, world: World, commit: Commit) -> None:
        self._look(world)

    def _look(self, world: World) -> None:
        moments = self._log.entries
        while self._read < len(moments):
            moment = moments[self._read]
            self._read += 1
            for index, (when, then, times) in enumerate(self._waiting):
                if times and when(moment):
                    self._waiting[index] = (when, then, times - 1)
                    # As an event of its own: a checker changes nothing in the midst of another.
                    world.post(world.now_us, self._play, then, world)

    @staticmethod
    def _play(_number: int, then: Then, world: World) -> None:
        then(world)


def strike(
    world: World, kind: str, target: str, *, peer: str = "", for_ms: int = 0, amount: int = 0
) -> None:
    """Strike with a fault at this very moment; it heals after its time."""
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
    """Let somebody on the stage do something now."""
    world.hand(world.cells[who], Prompted(body))
