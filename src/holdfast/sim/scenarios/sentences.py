"""The sentences of a worked example, and whether they are true of a run.

Each sentence is a check of its own with a name. It is judged by the story when the run is over, or
after every commit where it says that something never happens; true, it says by what evidence. One
that finds no occasion to be true counts as broken: a check that cannot fail is a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.check import Checker, Commit
from holdfast.sim.run import BrokenInvariant, Scenario, attempt
from holdfast.sim.scenarios.run_log import LogEntry, RunLog
from holdfast.sim.world import World


class SentenceBroken(Exception):
    """What keeps a sentence from being true, in words."""


def demand(holds: object, words: str) -> None:
    """The sentence needs this to be so."""
    if not holds:
        raise SentenceBroken(words)


def first(moments: Sequence[LogEntry], words: str) -> LogEntry:
    """The first of these; the sentence needs that there is one."""
    demand(moments, words)
    return moments[0]


# Returns its evidence in words, none while there was no occasion for it; raises Unmet.
Judge = Callable[[RunLog], str]


class Sentence(msgspec.Struct, frozen=True):
    """One sentence. `always` has it judged after every commit as well."""

    name: str
    sentence: str
    judge: Judge
    always: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What became of a sentence: its evidence, or what was wrong."""

    name: str
    sentence: str
    evidence: str = ""
    wrong: str = ""

    def describe(self) -> str:
        if self.wrong:
            return f"BROKEN  {self.sentence}\n        {self.name}: {self.wrong}"
        return f"holds   {self.sentence}\n        {self.evidence}"


class SentenceChecks(Checker):
    """All sentences of one example."""

    def __init__(self, story: RunLog, expects: Sequence[Sentence]) -> None:
        self._log = story
        self.expects = tuple(expects)
        self.invariants = tuple(expect.name for expect in expects)

    def on_commit(self, world: World, commit: Commit) -> None:
        for expect in self.expects:
            if expect.always:
                self._judge(expect)

    def at_end(self, world: World) -> None:
        for outcome in self.outcomes():
            if outcome.wrong:
                self.violated(outcome.name, outcome.wrong)

    def _judge(self, expect: Sentence) -> None:
        try:
            expect.judge(self._log)
        except SentenceBroken as error:
            self.violated(expect.name, str(error))

    def outcomes(self) -> list[Outcome]:
        """How the sentences stand now."""
        found = []
        for expect in self.expects:
            try:
                evidence = expect.judge(self._log)
                demand(evidence, "there was no occasion for it to be true or false")
                found.append(Outcome(expect.name, expect.sentence, evidence=evidence))
            except SentenceBroken as error:
                found.append(Outcome(expect.name, expect.sentence, wrong=str(error)))
        return found


class ExampleRun(msgspec.Struct, frozen=True):
    """One run of a worked example. `lines` is its story."""

    scenario: str
    seed: int
    events: int
    virtual_ms: int
    outcomes: tuple[Outcome, ...]
    lines: tuple[str, ...]
    broken: BrokenInvariant | None = None


def perform(scenario: Scenario, seed: int) -> ExampleRun:
    """Play an example once. Where a law broke off the run, the sentences say how far it came."""
    world = World(seed)
    broken = attempt(scenario, world)
    return ExampleRun(
        scenario.name,
        seed,
        world.events,
        world.now_us // 1000,
        tuple(world.checker(SentenceChecks).outcomes()),
        tuple(world.checker(RunLog).lines()),
        broken,
    )


# What became of a worked example, in sentences for people. `holdfast sim run` prints it.


def command_of(name: str, seed: int) -> str:
    """Repeats one run and tells its story."""
    return f"holdfast sim run {name} --seed {seed} --story"


def describe_run(name: str, run: ExampleRun, *, story: bool) -> str:
    """Each sentence of one run with its evidence; the story where it is asked for or needed."""
    lines = [f"{name}, seed {run.seed}: {run.virtual_ms / 1000:.0f} s in {run.events:,} events"]
    if story:
        lines += [f"  {line}" for line in run.lines]
    lines += [f"  {line}" for outcome in run.outcomes for line in outcome.describe().splitlines()]
    return "\n".join([*lines, *_broken(name, run)])


def describe_runs(name: str, runs: Sequence[ExampleRun]) -> str:
    """Of how many seeds each sentence is true, and the seeds of which it is not."""
    lines = [f"{name}, {len(runs)} seeds"]
    for index, outcome in enumerate(runs[0].outcomes):
        wrong = [run for run in runs if run.outcomes[index].wrong]
        verdict = "holds" if not wrong else "BROKEN"
        lines.append(f"  {verdict:<7} {outcome.sentence} {_share(outcome, runs, wrong)}")
    for run in runs:
        lines += _broken(name, run)
    return "\n".join(lines)


def _share(outcome: Outcome, runs: Sequence[ExampleRun], wrong: Sequence[ExampleRun]) -> str:
    if not wrong:
        return f"({len(runs)} of {len(runs)})"
    seeds = ", ".join(str(run.seed) for run in wrong)
    return f"({outcome.name}: not of seeds {seeds})"


def _broken(name: str, run: ExampleRun) -> Iterable[str]:
    if run.broken is None:
        return ()
    broken = run.broken
    where = f"{broken.at_ms / 1000:.3f} s, seed {run.seed}"
    what = f"{broken.invariant} broken at {where}: {broken.message}"
    return (what, f"replay: {command_of(name, run.seed)}")
