"""The sweep over the small worlds: one fault at every point of each, one run for each.

    python -m holdfast.sim.worlds.all_controllers.sweep_worlds [--every N] [--processes N] [NAME …]

The faults: a crash of the controllers after each of their effects, and of the server after each
revision, before it learns of it; each delivery to the controllers lost, repeated, or the last one
before their view stops. `make sim-sweep` runs all; the default tests take a small part of the
points.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence

import msgspec

from holdfast.sim import sweep as sweeps
from holdfast.sim.plan import Fault
from holdfast.sim.sweep import Departure, Points, sweep, undisturbed_until_calm
from holdfast.sim.worlds.all_controllers.small_worlds import SEED, SMALL, WORKLOADS, outcome

KINDS = ("crash", "crash-author", "stale", "lose", "repeat")
# Whose effects and deliveries are swept.
CONTROLLERS = "controllers-1"
DOWN_MS = 3_000
# Longer than controllers act on a stale cache, shorter than the time to the desired state.
STALE_MS = 40_000


class SweepResult(msgspec.Struct, frozen=True):
    """The result of the sweep of one workload by one kind of fault."""

    workload: str
    kind: str
    runs: int
    departures: tuple[Departure, ...]


def faults_of(points: Points, kind: str) -> list[Fault]:
    """A fault of this kind at every point."""
    match kind:
        case "crash":
            found = sweeps.crashes(points, down_ms=DOWN_MS)
        case "crash-author":
            return sweeps.crashes_after_writes(points, down_ms=DOWN_MS)
        case "stale":
            found = sweeps.stale_views(points, for_ms=STALE_MS)
        case _:
            found = sweeps.deliveries(points, kind)
    return [fault for fault in found if fault.target == CONTROLLERS]


def sweep_workload(workload: str, kind: str, *, every: int = 1, first: int = 0) -> SweepResult:
    """Sweep one point in `every`, beginning with the `first`."""
    plan = WORKLOADS[workload]
    points = undisturbed_until_calm(SMALL, SEED, plan, outcome)
    faults = faults_of(points, kind)[first % every :: every]
    departures = sweep(SMALL, SEED, plan, points, faults, outcome)
    return SweepResult(workload, kind, len(faults), tuple(departures))


def _sweep_task(task: tuple[str, str, int]) -> SweepResult:
    workload, kind, every = task
    return sweep_workload(workload, kind, every=every)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Sweep, and print every point whose run ended differently."""
    parser = argparse.ArgumentParser(prog="holdfast.sim.worlds.all_controllers.sweep_worlds")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*WORKLOADS, []])
    parser.add_argument("--every", type=int, default=1, help="sweep one point in N")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS)
    given = parser.parse_args(arguments)
    names = given.names or list(WORKLOADS)
    tasks = [(name, kind, max(1, given.every)) for name in names for kind in given.kind or KINDS]
    runs = wrong = 0
    with multiprocessing.get_context("spawn").Pool(max(1, given.processes)) as pool:
        for done in pool.imap(_sweep_task, tasks):
            runs += done.runs
            wrong += len(done.departures)
            _print_line(f"{done.workload:<20} {done.kind:<13} {done.runs:>6} runs")
            for it in done.departures:
                _print_line(f"  {it.fault}: {it.invariant}: {it.message}")
    _print_line(f"{runs} runs, {wrong} ended differently")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
