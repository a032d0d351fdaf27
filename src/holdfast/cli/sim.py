"""The simulator's commands: run a worked example or a world by its name, and replay a run.

They need no plane. `holdfast.sim` does the work; this module only parses and prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from holdfast.cli.command_table import Section
from holdfast.cli.exit_codes import ExitCode, UsageError, invalid_as_usage_error, run
from holdfast.cli.tables import rows
from holdfast.sim import __main__ as simulator
from holdfast.sim.campaign import campaign
from holdfast.sim.catalogue import NAMES, CatalogueEntry, find_entry
from holdfast.sim.run import find, invariants_of
from holdfast.sim.scenarios.sentences import describe_run, describe_runs, perform

SECTION = Section.SIMULATOR
SEED_MAX = (1 << 63) - 1
# More than this is a campaign for `python -m holdfast.sim`, which uses several processes.
SEEDS_MAX = 10_000


@click.group()
def sim() -> None:
    """Simulate faults under virtual time, with the production code."""


@sim.command(name="list")
def list_() -> int:
    """List the examples and worlds."""

    async def command() -> int:
        for line in rows(("NAME", "WHAT"), [(it.name, it.title) for it in NAMES]):
            print(line)
        return ExitCode.DONE

    return run(command())


@sim.command(
    name="run",
    epilog="Example: holdfast sim run sc3-answer-lost --seeds 0-19",
)
@click.argument("name")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), help="The seed of the run. [0]")
@click.option("--seeds", default="", help="A range of seeds, such as 0-19.")
@click.option("--trace", is_flag=True, help="Print what happened, step by step.")
def run_(name: str, seed: int | None, seeds: str, trace: bool) -> int:
    """Run an example or a world; print for each promise whether it was kept.

    Exits with 1 when one was broken, and prints the command that repeats that run.
    """

    async def command() -> int:
        if seed is not None and seeds:
            raise UsageError("--seed: cannot be combined with --seeds")
        with invalid_as_usage_error():
            found = find_entry(name)
        chosen = _range(seeds) if seeds else range(seed or 0, (seed or 0) + 1)
        return _example(found, chosen, trace) if found.is_example else _world(found, chosen, trace)

    return run(command())


@sim.command(epilog="Example: holdfast sim replay failing.json")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def replay(file: Path) -> int:
    """Repeat a saved run, and print what happened."""

    async def command() -> int:
        try:
            return simulator.main(["replay", "--file", str(file)])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"FILE: {file} is not a saved run: {error}") from error

    return run(command())


def _example(found: CatalogueEntry, seeds: Sequence[int], trace: bool) -> int:
    scenario = find(found.scenario)
    runs = [perform(scenario, seed) for seed in seeds]
    if len(runs) == 1:
        print(describe_run(found.name, runs[0], trace=trace or runs[0].broken is not None))
    else:
        print(describe_runs(found.name, runs))
        if trace:
            for one in runs:
                print(describe_run(found.name, one, trace=True))
    return ExitCode.FAILED if any(one.broken for one in runs) else ExitCode.DONE


def _world(found: CatalogueEntry, seeds: Sequence[int], trace: bool) -> int:
    """Run a world. It has no sentences, so its invariants are listed, and reported when broken."""
    print(f"{found.name}: {found.title}")
    print(f"checked throughout the run: {', '.join(invariants_of(find(found.scenario)))}")
    if trace:
        code = ExitCode.DONE
        for seed in seeds:
            traced = simulator.main(["replay", found.scenario, "--seed", str(seed), "--trace"])
            code = ExitCode.FAILED if traced else code
        return code
    summary = campaign(found.scenario, seeds)
    print(summary.describe())
    return ExitCode.FAILED if summary.failed else ExitCode.DONE


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise UsageError(f"--seeds: {text!r} must be a range of seeds such as 0-19")
    begin, end = int(first), int(last or first)
    if not 0 <= end - begin < SEEDS_MAX or end > SEED_MAX:
        raise UsageError(f"--seeds: {text!r} must be 1 to {SEEDS_MAX} seeds, the lowest first")
    return range(begin, end + 1)
