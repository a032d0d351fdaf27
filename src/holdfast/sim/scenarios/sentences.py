"""The sentences of a worked example, and whether they are true of a run.

Each sentence is a check with a name. It is checked against the run log at the end of the run, or
after every commit if it says that something never happens. A true sentence names its evidence. A
sentence without an occasion to be true counts as broken: a check that cannot fail is a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.check import Checker, Commit
from holdfast.sim.run import BrokenInvariant, Scenario, attempt
from holdfast.sim.scenarios.run_log import LogEntry, RunLog
from holdfast.sim.world import World


class SentenceBroken(Exception):
    """Why a sentence is not true."""


def demand(holds: object, words: str) -> None:
    """Raise SentenceBroken unless the condition holds."""
    if not holds:
        raise SentenceBroken(words)


def first(entries: Sequence[LogEntry], words: str) -> LogEntry:
    """The first of these entries; raises SentenceBroken if there is none."""
    demand(entries, words)
    return entries[0]


# Returns the evidence, or "" while there was no occasion for it; raises SentenceBroken.
Judge = Callable[[RunLog], str]


class Sentence(msgspec.Struct, frozen=True):
    """One sentence. With `always` it is checked after every commit as well."""

    name: str
    sentence: str
    judge: Judge
    always: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The result of a sentence: its evidence, or what was wrong."""

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

    def __init__(self, log: RunLog, sentences: Sequence[Sentence]) -> None:
        self._log = log
        self.sentences = tuple(sentences)
        self.invariants = tuple(sentence.name for sentence in sentences)

    def on_commit(self, world: World, commit: Commit) -> None:
        for sentence in self.sentences:
            if sentence.always:
                self._judge(sentence)

    def at_end(self, world: World) -> None:
        for outcome in self.outcomes():
            if outcome.wrong:
                self.violated(outcome.name, outcome.wrong)

    def _judge(self, sentence: Sentence) -> None:
        try:
            sentence.judge(self._log)
        except SentenceBroken as error:
            self.violated(sentence.name, str(error))

    def outcomes(self) -> list[Outcome]:
        """The results of all sentences as of now."""
        found = []
        for sentence in self.sentences:
            try:
                evidence = sentence.judge(self._log)
                demand(evidence, "there was no occasion for it to be true or false")
                found.append(Outcome(sentence.name, sentence.sentence, evidence=evidence))
            except SentenceBroken as error:
                found.append(Outcome(sentence.name, sentence.sentence, wrong=str(error)))
        return found


class ExampleRun(msgspec.Struct, frozen=True):
    """One run of a worked example. `lines` is its run log as text."""

    scenario: str
    seed: int
    events: int
    virtual_ms: int
    outcomes: tuple[Outcome, ...]
    lines: tuple[str, ...]
    broken: BrokenInvariant | None = None


def perform(scenario: Scenario, seed: int) -> ExampleRun:
    """Run an example once. If an invariant ended it early, the outcomes show how far it came."""
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


# The results of a worked example as text. `holdfast sim run` prints it.


def command_of(name: str, seed: int) -> str:
    """The command that repeats one run and prints its log."""
    return f"holdfast sim run {name} --seed {seed} --trace"


def describe_run(name: str, run: ExampleRun, *, trace: bool) -> str:
    """Each sentence of one run with its evidence; with `trace` the run log as well."""
    lines = [f"{name}, seed {run.seed}: {run.virtual_ms / 1000:.0f} s in {run.events:,} events"]
    if trace:
        lines += [f"  {line}" for line in run.lines]
    lines += [f"  {line}" for outcome in run.outcomes for line in outcome.describe().splitlines()]
    return "\n".join([*lines, *_broken(name, run)])


def describe_runs(name: str, runs: Sequence[ExampleRun]) -> str:
    """For how many seeds each sentence is true, and the seeds for which it is not."""
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
    return f"({outcome.name}: broken with seeds {seeds})"


def _broken(name: str, run: ExampleRun) -> Iterable[str]:
    if run.broken is None:
        return ()
    broken = run.broken
    where = f"{broken.at_ms / 1000:.3f} s, seed {run.seed}"
    what = f"{broken.invariant} broken at {where}: {broken.message}"
    return (what, f"replay: {command_of(name, run.seed)}")
