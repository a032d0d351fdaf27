"""`python -m holdfast.sim`: run, replay, shrink, and measure the checkers by planted bugs.

    run SCENARIO --seeds 0-199 --processes 2    many seeds, a summary, the failures
    edges --seeds 0-99 --processes 2            the same for every edge-case world, one by one
    replay SCENARIO --seed 7                    repeat one seed, with its trace if it fails
    replay --file FILE                          repeat a saved run
    shrink SCENARIO --seed 7 --out FILE         reduce a failing seed to a small plan and save it
    mutants MODULE:MUTANTS --seeds 50           the table of planted bugs; --record FILE saves it,
                                                --renew searches only for bugs whose recorded
                                                seeds no longer find them

Name a scenario by its short name (`holdfast sim list`) or by where it is defined,
`module:ATTRIBUTE`. The exit code is 1 when an invariant was broken (or a mutant was not found),
and 2 for a usage error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.model.errors import Invalid, InvariantBroken
from holdfast.sim import campaign as artifacts
from holdfast.sim.campaign import Artifact, campaign, replay_command, replay_file_command
from holdfast.sim.catalogue import EDGES, find_entry
from holdfast.sim.check import Violation
from holdfast.sim.mutants import Finding, Mutant, confirm, load, save, table
from holdfast.sim.run import Report, Scenario, draw_plan, find, play, run
from holdfast.sim.shrink import RUNS_MAX, shrink
from holdfast.sim.world import World


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    code: int = options.command(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("run", help="run many seeds")
    one.add_argument("scenario", type=_scenario)
    one.add_argument("--seeds", default="0-99", type=_seeds, help="a range, e.g. 0-199, or one")
    one.add_argument("--processes", default=1, type=int)
    one.set_defaults(command=_run)

    one = commands.add_parser("edges", help="run many seeds of every edge-case world")
    one.add_argument("--seeds", default="0-99", type=_seeds, help="the seeds to run of each world")
    one.add_argument("--only", default="", help="worlds whose name contains this")
    one.add_argument("--processes", default=1, type=int)
    one.set_defaults(command=_edges)

    one = commands.add_parser("replay", help="repeat one run and print what happened")
    one.add_argument("scenario", nargs="?", type=_scenario)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--file", type=Path)
    one.add_argument("--mutant", default="", help="MODULE:MUTANTS:NAME, a planted bug to apply")
    one.add_argument("--trace", action="store_true", help="print the full trace")
    one.set_defaults(command=_replay)

    one = commands.add_parser("shrink", help="reduce a failing seed to a small plan")
    one.add_argument("scenario", type=_scenario)
    one.add_argument("--seed", type=int, required=True)
    one.add_argument("--mutant", default="")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--runs", type=int, default=RUNS_MAX)
    one.set_defaults(command=_shrink)

    one = commands.add_parser("mutants", help="search for planted bugs")
    one.add_argument("mutants", help="MODULE:ATTRIBUTE, a sequence of mutants")
    one.add_argument("--seeds", type=int, default=50)
    one.add_argument("--only", default="", help="mutants whose name contains this")
    one.add_argument("--record", type=Path, help="write the seeds found to this file")
    one.add_argument(
        "--renew",
        action="store_true",
        help="search only for bugs that their recorded seeds no longer find",
    )
    one.add_argument("--processes", default=1, type=int)
    one.set_defaults(command=_mutants)
    return parser


def _scenario(name: str) -> str:
    """Where the scenario of this name is defined."""
    try:
        if ":" not in name:
            return find_entry(name).scenario
        find(name)
    except (Invalid, ImportError, AttributeError, InvariantBroken) as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return name


def _run(options: argparse.Namespace) -> int:
    progress = sys.stderr if sys.stderr.isatty() else None
    summary = campaign(
        options.scenario, options.seeds, processes=options.processes, progress=progress
    )
    _say(summary.describe())
    return 1 if summary.failed else 0


def _edges(options: argparse.Namespace) -> int:
    """Run all edge-case worlds, also after one of them broke an invariant."""
    worlds = [it for it in EDGES if options.only in it]
    progress = sys.stderr if sys.stderr.isatty() else None
    lines, failed = [], 0
    for number, world in enumerate(worlds, start=1):
        _say(f"[{number}/{len(worlds)}] {world}")
        sys.stdout.flush()
        summary = campaign(world, options.seeds, processes=options.processes, progress=progress)
        if summary.failed:
            failed += 1
            _say(summary.describe())
        hours = summary.virtual_ms / 3_600_000
        broken = f"{len(summary.failed):4} violations"
        lines.append(f"{broken} in {summary.seeds} seeds, {hours:7.1f} virtual hours  {world}")
    _say("\n".join(lines))
    return 1 if failed else 0


def _replay(options: argparse.Namespace) -> int:
    if options.file is not None:
        saved = artifacts.load(options.file)
        command = replay_file_command(options.file)
    elif options.scenario is not None:
        scenario, seed = find(options.scenario), options.seed
        saved = Artifact(options.scenario, seed, draw_plan(scenario, seed), mutant=options.mutant)
        command = replay_command(options.scenario, seed, mutant=options.mutant)
    else:
        sys.stderr.write("replay: name a scenario or pass --file FILE\n")
        return 2
    with _plant(saved.mutant):
        scenario = find(saved.scenario)
        if options.trace:
            _trace(scenario, saved)
        report = run(scenario, saved.seed, saved.plan)
    _say(report.describe(command))
    if saved.digest and saved.digest != report.digest:
        _say("note: the digest differs from the saved one: the code has changed since")
    return 0 if report.broken is None else 1


def _trace(scenario: Scenario, saved: Artifact) -> None:
    world = World(saved.seed, full_trace=True, keep_text=True)
    # The run that follows reports the violation.
    with contextlib.suppress(Violation, InvariantBroken):
        play(scenario, world, saved.plan)
    _say(world.trace.text())


def _shrink(options: argparse.Namespace) -> int:
    scenario, seed = find(options.scenario), options.seed
    with _plant(options.mutant):
        plan = draw_plan(scenario, seed)
        report = run(scenario, seed, plan, tell=False)
        if report.broken is None:
            _say(f"{options.scenario} seed {seed} breaks no invariant; nothing to shrink")
            return 0
        small = shrink(scenario, seed, plan, report.broken, runs_max=options.runs)
        final: Report = run(scenario, seed, small.plan)
    saved = Artifact(options.scenario, seed, small.plan, final.broken, final.digest, options.mutant)
    artifacts.save(saved, options.out)
    sizes = f"from {plan.size()} to {small.plan.size()} entries"
    _say(f"shrunk {sizes} in {small.runs} runs: {options.out}")
    _say(final.describe(replay_file_command(options.out)))
    return 1


def _mutants(options: argparse.Namespace) -> int:
    if options.renew and options.record is None:
        _say("--renew: requires --record FILE, the record to renew")
        return 2
    chosen = [it for it in _load_mutants(options.mutants) if options.only in it.name]
    tasks = [(options.mutants, mutant.name, options) for mutant in chosen]
    if options.processes > 1:
        with multiprocessing.get_context("fork").Pool(options.processes) as pool:
            findings = pool.map(_search_one, tasks, chunksize=1)
    else:
        findings = [_search_one(task) for task in tasks]
    _say(table(findings))
    found = next((finding for finding in findings if finding.seed is not None), None)
    if found is not None:
        _say(f"to see one: replay SCENARIO --seed N --mutant {options.mutants}:{found.mutant}")
    if options.record is not None:
        save(findings, options.record)
    return 0 if all(finding.is_expected() for finding in findings) else 1


def _search_one(task: tuple[str, str, argparse.Namespace]) -> Finding:
    """Search for one mutant, in this process or in a worker of the pool."""
    where, name, options = task
    mutant = next(it for it in _load_mutants(where) if it.name == name)
    recorded = load(options.record) if options.renew and options.record.exists() else []
    if mutant.benign and (kept := [it for it in recorded if it.mutant == name]):
        return kept[0]
    return confirm(mutant, recorded, seeds_max=options.seeds)


def _load_mutants(name: str) -> Sequence[Mutant]:
    module, _, attribute = name.partition(":")
    mutants: Sequence[Mutant] = getattr(importlib.import_module(module), attribute or "MUTANTS")
    return mutants


def _plant(name: str) -> contextlib.AbstractContextManager[None]:
    """Plant the bug MODULE:MUTANTS:NAME; an empty name plants none."""
    if not name:
        return contextlib.nullcontext()
    where, _, wanted = name.rpartition(":")
    return next(mutant for mutant in _load_mutants(where) if mutant.name == wanted).planted()


def _seeds(text: str) -> Sequence[int]:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
