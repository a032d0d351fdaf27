"""What became of a worked example, in sentences for people. `holdfast sim run` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.sim.scenarios.expecting import Outcome, Performance


def command_of(name: str, seed: int) -> str:
    """Repeats one run and tells its story."""
    return f"holdfast sim run {name} --seed {seed} --story"


def told_once(name: str, run: Performance, *, story: bool) -> str:
    """Each sentence of one run with its evidence; the story where it is asked for or needed."""
    lines = [f"{name}, seed {run.seed}: {run.virtual_ms / 1000:.0f} s in {run.events:,} events"]
    if story:
        lines += [f"  {line}" for line in run.lines]
    lines += [f"  {line}" for outcome in run.outcomes for line in outcome.told().splitlines()]
    return "\n".join([*lines, *_broken(name, run)])


def told_of_many(name: str, runs: Sequence[Performance]) -> str:
    """Of how many seeds each sentence is true, and the seeds of which it is not."""
    lines = [f"{name}, {len(runs)} seeds"]
    for index, outcome in enumerate(runs[0].outcomes):
        wrong = [run for run in runs if run.outcomes[index].wrong]
        verdict = "holds" if not wrong else "BROKEN"
        lines.append(f"  {verdict:<7} {outcome.sentence} {_share(outcome, runs, wrong)}")
    for run in runs:
        lines += _broken(name, run)
    return "\n".join(lines)


def _share(outcome: Outcome, runs: Sequence[Performance], wrong: Sequence[Performance]) -> str:
    if not wrong:
        return f"({len(runs)} of {len(runs)})"
    seeds = ", ".join(str(run.seed) for run in wrong)
    return f"({outcome.name}: not of seeds {seeds})"


def _broken(name: str, run: Performance) -> Iterable[str]:
    if run.broken is None:
        return ()
    broken = run.broken
    where = f"{broken.at_ms / 1000:.3f} s, seed {run.seed}"
    what = f"{broken.invariant} broken at {where}: {broken.message}"
    return (what, f"replay: {command_of(name, run.seed)}")
