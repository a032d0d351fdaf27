"""Many seeds in several processes, and a summary of their results.

This is the only part of the simulator that reads a real clock, and only to show its progress: which
seeds fail, and how, does not depend on the number of processes or their speed.
"""

from __future__ import annotations

import multiprocessing
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from holdfast.sim.plan import Plan
from holdfast.sim.run import BrokenInvariant, Report, find, run

# A failing run on disk: everything needed to repeat it, and the command that does so.

# The file format. A later simulator refuses a format that it does not support.
FORMAT = 1


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario, a seed, a plan and their result. `mutant` names a planted bug, if any."""

    scenario: str
    seed: int
    plan: Plan
    broken: BrokenInvariant | None = None
    digest: str = ""
    mutant: str = ""
    format: int = FORMAT


def save(artifact: Artifact, path: Path) -> None:
    """Write it as JSON that a person can read and edit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(artifact), indent=1) + b"\n")


def load(path: Path) -> Artifact:
    artifact = msgspec.json.decode(path.read_bytes(), type=Artifact)
    if artifact.format != FORMAT:
        problem = f"format {artifact.format} is not supported, only {FORMAT}"
        raise msgspec.ValidationError(f"{path}: {problem}")
    return artifact


def replay_command(scenario: str, seed: int, *, mutant: str = "") -> str:
    """The command that repeats a run from its seed alone."""
    words = ["python", "-m", "holdfast.sim", "replay", scenario, "--seed", str(seed)]
    return shlex.join([*words, "--mutant", mutant] if mutant else words)


def replay_file_command(path: Path) -> str:
    """The command that repeats a saved run."""
    return shlex.join(["python", "-m", "holdfast.sim", "replay", "--file", str(path)])


# Seeds that a worker takes at a time: few enough that the processes end together.
_CHUNK_SEEDS = 4
# The progress line is not rewritten more often than this.
_PROGRESS_EVERY_S = 0.5


class Summary(msgspec.Struct):
    """The results of all seeds of a campaign, in the order of the seeds."""

    scenario: str
    seeds: int = 0
    events: int = 0
    virtual_ms: int = 0
    injected: dict[str, int] = {}
    failed: list[Report] = []
    # The digest of every seed, to compare two campaigns.
    digests: list[str] = []

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.events += report.events
        self.virtual_ms += report.virtual_ms
        self.digests.append(report.digest)
        for kind, count in report.injected.items():
            self.injected[kind] = self.injected.get(kind, 0) + count
        if report.broken is not None:
            self.failed.append(report)

    def faults(self) -> int:
        return sum(self.injected.values())

    def describe(self) -> str:
        """The summary table, then each failing seed with the command that repeats it."""
        rows = [
            ("seeds", f"{self.seeds:,}"),
            ("events", f"{self.events:,}"),
            ("virtual hours", f"{self.virtual_ms / 3_600_000:,.1f}"),
            ("faults", f"{self.faults():,}"),
            *((f"  {kind}", f"{self.injected[kind]:,}") for kind in sorted(self.injected)),
            ("violations", f"{len(self.failed):,}"),
        ]
        width = max(len(value) for _, value in rows)
        lines = [self.scenario, *(f"  {name:<18} {value:>{width}}" for name, value in rows)]
        failures = (
            report.describe(replay_command(report.scenario, report.seed)) for report in self.failed
        )
        return "\n".join((*lines, *failures))


def _one(task: tuple[str, int]) -> Report:
    name, seed = task
    try:
        return run(find(name), seed)
    except Exception as error:
        # A bug in a checker or a world, not a finding: it stops the campaign and names the seed.
        error.add_note(f"to repeat it: {replay_command(name, seed)}")
        raise


def campaign(
    scenario: str,
    seeds: Sequence[int],
    *,
    processes: int = 1,
    failures_max: int | None = None,
    progress: TextIO | None = None,
) -> Summary:
    """Run every seed, or until `failures_max` of them failed."""
    summary = Summary(scenario)
    shown = _Progress(progress, len(seeds)).show if progress is not None else _quiet
    for report in _run_all([(scenario, seed) for seed in seeds], processes):
        summary.add(report)
        shown(summary)
        if failures_max is not None and len(summary.failed) >= failures_max:
            break
    return summary


def _run_all(tasks: Sequence[tuple[str, int]], processes: int) -> Iterator[Report]:
    """Yield reports in the order of the seeds, in whatever order the processes finish."""
    if processes <= 1:
        yield from map(_one, tasks)
        return
    # Spawned, not forked: a worker must not inherit anything that a run could depend on.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_one, tasks, chunksize=_CHUNK_SEEDS)


def _quiet(_summary: Summary) -> None:
    pass


class _Progress:
    """One line on a terminal, rewritten in place."""

    def __init__(self, out: TextIO, total: int, clock: Callable[[], float] = time.monotonic):
        self._out = out
        self._total = total
        self._clock = clock
        self._next_s = 0.0

    def show(self, summary: Summary) -> None:
        done = summary.seeds == self._total
        now_s = self._clock()
        if now_s < self._next_s and not done:
            return
        self._next_s = now_s + _PROGRESS_EVERY_S
        hours = summary.virtual_ms / 3_600_000
        self._out.write(
            f"\r{summary.seeds}/{self._total} seeds, {hours:.1f} virtual hours,"
            f" {len(summary.failed)} violations" + ("\n" if done else "")
        )
        self._out.flush()
