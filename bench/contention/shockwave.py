"""Gangs of known and unknown duration on 32 GPUs, by first come, first served with backfill.

The list and the figures of Shockwave were published with "Shockwave: Fair and Efficient Cluster
Scheduling for Dynamic Adaptation in Machine Learning" (NSDI 2023). The files are not part of this
project; HOLDFAST_BENCH_DATA names a directory with a folder `shockwave` that holds them.

Time is virtual, and each decision is that of `propose/backfill.py`, which schedulers use: the first
job that does not fit gets a reserved start, and others pass it only without delaying it. A job runs
from its start to its end: it takes as long as it does with its GPUs to itself, and nothing is
preempted. All GPUs are one place, so a gang is one demand.

Plain names have the published list, with true durations stated. `.unknown` states none, so there is
no reserved start and whatever fits is started. `.resampled` is the median of 20 lists that draw
sizes and durations from the published one, with true durations. FTF is a job's completion time over
its time alone on a 120th of the GPUs; unfair is above 1.05.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import NamedTuple

from bench.harness import figure
from holdfast.propose.backfill import Ending, ReservedStart, delays, start_at

GPUS, PLACE = 32, "gpus"
LISTS, UNFAIR = 20, 1.05
# Shockwave's own, of the same list: makespan, average completion time, worst FTF, unfair jobs.
PUBLISHED = {"makespan_s": 24_197.4, "jct_s": 9_958.5, "worst_ftf": 1.784, "unfair_pct": 5.0}
UNITS = {"makespan_s": "s", "jct_s": "s", "worst_ftf": "", "unfair_pct": "%"}


class GangJob(NamedTuple):
    """Times are milliseconds."""

    arrival_ms: int
    gpus: int
    runs_ms: int


class _Running(NamedTuple):
    ends_ms: int
    gpus: int
    name: str


def read_jobs(path: Path) -> list[GangJob]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            GangJob(
                round(float(row["arrival_s"]) * 1_000),
                int(row["gpus"]),
                round(float(row["exclusive_s"]) * 1_000),
            )
            for row in csv.DictReader(file)
        ]


def play(jobs: Sequence[GangJob], *, is_known: bool) -> list[int]:
    """When each job ends."""
    waiting = sorted(range(len(jobs)), key=lambda it: (jobs[it].arrival_ms, it))
    moments = sorted({job.arrival_ms for job in jobs})
    running: list[_Running] = []
    ends = [0] * len(jobs)
    while waiting:
        now_ms = moments.pop(0)
        running = [it for it in running if it.ends_ms > now_ms]
        blocked: ReservedStart | None = None
        for number in [it for it in waiting if jobs[it].arrival_ms <= now_ms]:
            job, free = jobs[number], {"gpu": GPUS - sum(it.gpus for it in running)}
            wanted, ends_ms = (("gpu", job.gpus),), now_ms + job.runs_ms
            if job.gpus > free["gpu"]:
                if blocked is None and is_known:
                    stated = [Ending(it.name, it.ends_ms, {"gpu": it.gpus}) for it in running]
                    blocked = start_at(PLACE, free, stated, wanted, now_ms)
                continue
            if blocked is not None and delays(blocked, PLACE, wanted, 1, ends_ms):
                continue
            waiting.remove(number)
            running.append(_Running(ends_ms, job.gpus, str(number)))
            ends[number] = ends_ms
            if blocked is not None and ends_ms > blocked.starts_ms:
                spare = {"gpu": blocked.spare["gpu"] - job.gpus}
                blocked = ReservedStart(PLACE, blocked.starts_ms, spare, blocked.basis)
        moments = sorted({*moments, *(it.ends_ms for it in running)})
    return ends


def figures_of(jobs: Sequence[GangJob], ends: Sequence[int]) -> dict[str, float]:
    taken = [end - job.arrival_ms for job, end in zip(jobs, ends, strict=True)]
    share = len(jobs) / GPUS
    ftfs = [it / (job.runs_ms * share) for it, job in zip(taken, jobs, strict=True)]
    return {
        "makespan_s": max(ends) / 1_000,
        "jct_s": mean(taken) / 1_000,
        "worst_ftf": max(ftfs),
        "unfair_pct": 100 * sum(it > UNFAIR for it in ftfs) / len(ftfs),
    }


def resampled(jobs: Sequence[GangJob], seed: int) -> list[GangJob]:
    """The same arrivals, with sizes and durations drawn from the list."""
    rng = Random(seed)
    drawn = [rng.choice(jobs) for _ in jobs]
    return [
        GangJob(job.arrival_ms, other.gpus, other.runs_ms)
        for job, other in zip(jobs, drawn, strict=True)
    ]


def main() -> None:
    where = os.environ.get("HOLDFAST_BENCH_DATA", "")
    path = Path(where) / "shockwave" / "jobs120_32gpu.csv"
    if not where or not path.is_file():
        raise SystemExit(
            "HOLDFAST_BENCH_DATA names no directory with shockwave/jobs120_32gpu.csv. The list was "
            "published with Shockwave (NSDI 2023), github.com/uw-mad-dash/shockwave."
        )
    jobs = read_jobs(path)
    lists = [resampled(jobs, seed) for seed in range(LISTS)]
    many = [figures_of(each, play(each, is_known=True)) for each in lists]
    for way, found in (
        ("", figures_of(jobs, play(jobs, is_known=True))),
        (".unknown", figures_of(jobs, play(jobs, is_known=False))),
        (".resampled", {name: median(each[name] for each in many) for name in PUBLISHED}),
    ):
        for name, value in found.items():
            peer = "Shockwave, as published for the list"
            figure(
                f"shockwave.{name}{way}", value, UNITS[name], peer=peer, peer_value=PUBLISHED[name]
            )


if __name__ == "__main__":
    main()
