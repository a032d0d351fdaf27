"""Runs targets and keeps count: how many inputs, what became of them, what the dearest one cost."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.targets import Target
from tests.yardstick import assert_cheap


class Tally(msgspec.Struct):
    """What one target has seen."""

    inputs: int = 0
    cpu_s: float = 0.0
    slowest_ms: float = 0.0
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)

    def line(self, name: str) -> str:
        """For people: the most frequent outcomes come first."""
        shown = ", ".join(f"{word} {count}" for word, count in self.outcomes.most_common(8))
        cost = f"{self.cpu_s:7.1f} s, dearest {self.slowest_ms:6.1f} ms"
        return f"{name:18} {self.inputs:8} inputs {cost}: {shown}"


def tried(target: Target, example: Any, tally: Tally) -> str:
    """What became of one input. Fails when that is no declared refusal, or when it is dear."""
    outcomes: list[str] = []
    costs_s: list[float] = []

    def check() -> None:
        began = time.process_time()
        outcomes.append(target.check(example))
        costs_s.append(time.process_time() - began)

    assert_cheap(check, target.steps_max)
    tally.inputs += 1
    tally.cpu_s += costs_s[0]
    tally.slowest_ms = max(tally.slowest_ms, 1e3 * min(costs_s))
    tally.outcomes[outcomes[0]] += 1
    return outcomes[0]


def explore(target: Target, inputs: int, seed: int, tally: Tally) -> None:
    """Run this many inputs, by this seed. A failure is made small and printed by hypothesis."""

    @hypothesis.seed(seed)
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(example=target.inputs)
    def run(example: Any) -> None:
        tried(target, example, tally)

    run()
