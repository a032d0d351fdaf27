"""The sentences of a worked example, and whether they are true of a run.

Each sentence is a check of its own with a name. It is judged by the story when the run is over, or
after every commit where it says that something never happens; true, it says by what evidence. One
that finds no occasion to be true counts as broken: a check that cannot fail is a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.sim.check import Checker, Commit
from holdfast.sim.run import Broken, Scenario, attempt
from holdfast.sim.scenarios.story import Moment, Story
from holdfast.sim.world import World


class Unmet(Exception):
    """What keeps a sentence from being true, in words."""


def demand(holds: object, words: str) -> None:
    """The sentence needs this to be so."""
    if not holds:
        raise Unmet(words)


def first(moments: Sequence[Moment], words: str) -> Moment:
    """The first of these; the sentence needs that there is one."""
    demand(moments, words)
    return moments[0]


# Returns its evidence in words, none while there was no occasion for it; raises Unmet.
Judge = Callable[[Story], str]


class Expect(msgspec.Struct, frozen=True):
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

    def told(self) -> str:
        if self.wrong:
            return f"BROKEN  {self.sentence}\n        {self.name}: {self.wrong}"
        return f"holds   {self.sentence}\n        {self.evidence}"


class Expectations(Checker):
    """All sentences of one example."""

    def __init__(self, story: Story, expects: Sequence[Expect]) -> None:
        self._story = story
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

    def _judge(self, expect: Expect) -> None:
        try:
            expect.judge(self._story)
        except Unmet as error:
            self.violated(expect.name, str(error))

    def outcomes(self) -> list[Outcome]:
        """How the sentences stand now."""
        found = []
        for expect in self.expects:
            try:
                evidence = expect.judge(self._story)
                demand(evidence, "there was no occasion for it to be true or false")
                found.append(Outcome(expect.name, expect.sentence, evidence=evidence))
            except Unmet as error:
                found.append(Outcome(expect.name, expect.sentence, wrong=str(error)))
        return found


class Performance(msgspec.Struct, frozen=True):
    """One run of a worked example. `lines` is its story."""

    scenario: str
    seed: int
    events: int
    virtual_ms: int
    outcomes: tuple[Outcome, ...]
    lines: tuple[str, ...]
    broken: Broken | None = None


def perform(scenario: Scenario, seed: int) -> Performance:
    """Play an example once. Where a law broke off the run, the sentences say how far it came."""
    world = World(seed)
    broken = attempt(scenario, world)
    return Performance(
        scenario.name,
        seed,
        world.events,
        world.now_us // 1000,
        tuple(world.checker(Expectations).outcomes()),
        tuple(world.checker(Story).lines()),
        broken,
    )


# What became of a worked example, in sentences for people. `holdfast sim run` prints it.


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
