"""A seed means the same run in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.scale import scaled

ROOT = Path(__file__).parents[2]
SEEDS = scaled(20, 100)
FULL_SEEDS = 5

# The short traces of all seeds, and the full traces of a few, with every stimulus and effect.
_PROGRAM = f"""
from holdfast.sim.run import run
from tests.sim.demo.world import SCENARIO
for seed in range({SEEDS}):
    print(run(SCENARIO, seed).digest)
for seed in range({FULL_SEEDS}):
    print(run(SCENARIO, seed, full_trace=True).digest)
"""


def _start(hash_seed: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_seeds_give_equal_digests_under_different_hash_seeds() -> None:
    """Nothing depends on the order of a set, an address or the time of day. [N6]"""
    processes = [_start("1"), _start("4242")]
    first, second = (process.communicate()[0].split() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(set(first)) == SEEDS + FULL_SEEDS
    assert first == second
