"""Runs targets and keeps count: how many inputs, what became of them, what the dearest one cost."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.targets import Target

# A busy machine makes one input look dear now and then; one that is dear is so each time.
AGAIN = 3


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


def _cost_ms(target: Target, example: Any) -> tuple[str, float]:
    began = time.process_time()
    outcome = target.check(example)
    return outcome, (time.process_time() - began) * 1e3


def tried(target: Target, example: Any, tally: Tally) -> str:
    """What became of one input. Fails when that is no declared refusal, or when it is dear."""
    outcome, cost_ms = _cost_ms(target, example)
    tally.inputs += 1
    tally.cpu_s += cost_ms / 1e3
    tally.outcomes[outcome] += 1
    if cost_ms > target.cpu_ms:
        cost_ms = min(_cost_ms(target, example)[1] for _ in range(AGAIN))
    tally.slowest_ms = max(tally.slowest_ms, cost_ms)
    assert cost_ms <= target.cpu_ms, f"{cost_ms:.0f} ms of CPU for one input"
    return outcome


def explore(target: Target, inputs: int, seed: int, tally: Tally) -> None:
    """So many inputs, by this seed. A failure is made small and printed by hypothesis."""

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
