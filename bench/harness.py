"""The parts that all benchmarks share: timers, and one JSON line per figure.

A benchmark is a module `bench/NAME.py` whose docstring's first line says what it measures and which
ends by calling its `main()` under `if __name__ == "__main__"`. `make bench NAME=…` runs it from the
root of the repository.

A number alone says little on a machine with other users. So each figure has a bound (what the disk
or the codec can do) or a peer (another program that does the same work), measured in the same run.
The ratio of the two stays valid on a busy machine, the value does not; `side_by_side` interleaves
the two for that reason.

    from bench.harness import figure, side_by_side

    ours_s, raw_s = side_by_side(lambda: decode(body), lambda: raw.decode(body))
    figure("model.decode_us", 1e6 * ours_s, "us", peer="msgspec", peer_value=1e6 * raw_s)
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

_COMPARATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_GOAL = re.compile(r"(?P<subject>ratio )?(?P<comparator><=|>=|<|>) (?P<bound>-?\d[\d_]*(?:\.\d+)?)")

# Below this a timer mostly measures itself, so calls are repeated until a sample lasts as long.
SAMPLE_MIN_S = 0.02
# The best of this few samples still finds a quiet moment on a busy machine, and a benchmark stays
# below a minute.
REPEAT_DEFAULT = 7


@dataclass(frozen=True)
class Goal:
    """The goal of a figure.

    "<= 10" is about the value, "ratio >= 0.5" about value / peer_value.
    """

    text: str
    of_ratio: bool
    comparator: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Parse a goal.

        Any other text raises, so that a typo cannot become a goal that is never checked.
        """
        match = _GOAL.fullmatch(text)
        if match is None:
            raise ValueError(f'a goal has the form "<= 10" or "ratio >= 0.5", not {text!r}')
        return cls(
            text=text,
            of_ratio=match["subject"] is not None,
            comparator=match["comparator"],
            bound=float(match["bound"]),
        )

    def met_by(self, value: float, ratio: float | None) -> bool:
        """Whether the figure reaches the goal.

        A goal for a ratio that does not exist is not reached.
        """
        subject = ratio if self.of_ratio else value
        return subject is not None and _COMPARATORS[self.comparator](subject, self.bound)


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    peer: str,
    peer_value: float,
    goal: str | None = None,
    ratio: float | None = None,
    durability: str = "none",
    out: TextIO | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Print one figure as one JSON line and return what was printed.

    `peer` names the bound or the peer and `peer_value` is its value in this very run, in the same
    unit. `ratio` is value / peer_value unless given. `durability` says what a crash may take:
    "none" (memory only), "process", "power" (synced to disk), "quorum". Further keywords go into
    the line as they are.
    """
    if not math.isfinite(value) or not math.isfinite(peer_value):
        raise ValueError(f"{name}: {value} beside {peer_value} is not a measurement")
    if ratio is None and peer_value != 0:
        ratio = value / peer_value
    parsed = Goal.parse(goal) if goal is not None else None
    line: dict[str, Any] = {
        "name": name,
        "value": _rounded(value),
        "unit": unit,
        "peer": peer,
        "peer_value": _rounded(peer_value),
        "ratio": None if ratio is None else _rounded(ratio),
        "cores": cores(),
        "durability": durability,
        "goal": goal,
        "met": None if parsed is None else parsed.met_by(value, ratio),
    }
    clash = sorted(line.keys() & extra.keys())
    if clash:
        raise ValueError(f"{name}: {clash} are set by the harness")
    line.update(extra)
    print(json.dumps(line, allow_nan=False), file=out or sys.stdout, flush=True)
    return line


def cores() -> int:
    """How many cores this process may use; in a container these are fewer than the machine has."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """How many threads wanted a core of this machine over the last minute."""
    return round(os.getloadavg()[0], 1)


def best_of(fn: Callable[[], object], *, repeat: int = REPEAT_DEFAULT, number: int = 0) -> float:
    """Seconds per call, the best of `repeat` samples of `number` calls; 0 finds a fitting number.

    The best, not the mean: noise on a shared machine only adds time.
    """
    timer = timeit.Timer(fn)
    calls = number or _calls_per_sample(timer)
    return min(timer.repeat(repeat=repeat, number=calls)) / calls


def side_by_side(
    ours: Callable[[], object], peer: Callable[[], object], *, repeat: int = REPEAT_DEFAULT
) -> tuple[float, float]:
    """Seconds per call of both, sampled in turn, so that a busy period affects both."""
    timers = (timeit.Timer(ours), timeit.Timer(peer))
    calls = [_calls_per_sample(timer) for timer in timers]
    best = [math.inf, math.inf]
    for _ in range(repeat):
        for i, timer in enumerate(timers):
            best[i] = min(best[i], timer.timeit(calls[i]) / calls[i])
    return best[0], best[1]


def rate(fn: Callable[[], object], *, seconds: float = 1.0) -> float:
    """Calls per second, one after another, for at least this long.

    For work that is slow compared with the clock.
    """
    calls = 0
    began = time.perf_counter()
    while True:
        fn()
        calls += 1
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return calls / elapsed


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` (0 to 1) of all samples do not exceed."""
    if not samples or not 0 <= share <= 1:
        raise ValueError(f"no {share} percentile of {len(samples)} samples")
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def _calls_per_sample(timer: timeit.Timer) -> int:
    """How many calls make one sample last SAMPLE_MIN_S.

    The trial calls also warm the caches.
    """
    calls = 1
    while True:
        elapsed = timer.timeit(calls)
        if elapsed >= SAMPLE_MIN_S:
            return calls
        # Grow at most tenfold at once: the first call is often slow, and misleads.
        wanted = calls * 1.2 * SAMPLE_MIN_S / max(elapsed, 1e-9)
        calls = max(calls + 1, min(calls * 10, math.ceil(wanted)))


def _rounded(value: float) -> float:
    """Four significant digits: no run here is more precise."""
    return float(f"{value:.4g}")
