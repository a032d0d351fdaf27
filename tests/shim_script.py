"""Scripts of a shim's life, and how the simulator's shim plays them.

tests/golden/shim/*.txt are such scripts. The same ones are played by the model that all worlds of
the simulator run work with, under virtual time, and by the C program with a real process, so that
neither can change without the other. All times are milliseconds after the launch.

    deadline 300 | none
    grace 200
    work exits CODE at MS | outlasts CODE at MS | obeys | ignores
                    whether it ends by itself (also when it is stopped), or upon SIGTERM with 0
    at MS extend MS | foreign MS | stop MS -> ANSWER
    expect REASON code N | signal N [killed] at MS
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.sim.planes.simulated_shim import DEADLINE_PASSED, STOPPED, Shim

FOLDER = Path(__file__).parent / "golden" / "shim"


@dataclass(frozen=True)
class Step:
    """Send a request to the shim."""

    at_ms: int
    verb: str
    number: int
    answer: str


@dataclass(frozen=True)
class Ending:
    """What the exit record says, and when."""

    reason: str
    code: int
    signal: int
    is_killed: bool
    at_ms: int


@dataclass
class Script:
    deadline_ms: int | None = None
    grace_ms: int = 0
    work: str = ""
    exits_ms: int | None = None
    code: int = 0
    steps: list[Step] = field(default_factory=list)
    ending: Ending | None = None


def scripts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def read(path: Path) -> Script:
    """Raises ValueError for a line that is none."""
    found = Script()
    for line in path.read_text().splitlines():
        match line.partition("#")[0].split():
            case []:
                continue
            case ["deadline", until]:
                found.deadline_ms = None if until == "none" else int(until)
            case ["grace", ms]:
                found.grace_ms = int(ms)
            case ["work", ("exits" | "outlasts") as manner, code, "at", ms]:
                found.work, found.code, found.exits_ms = manner, int(code), int(ms)
            case ["work", ("obeys" | "ignores") as manner]:
                found.work = manner
            case ["at", ms, verb, number, "->", *answer]:
                found.steps.append(Step(int(ms), verb, int(number), " ".join(answer)))
            case ["expect", reason, kind, number, *killed, "at", ms]:
                code = int(number) if kind == "code" else -1
                signal = int(number) if kind == "signal" else 0
                found.ending = Ending(reason, code, signal, killed == ["killed"], int(ms))
            case _:
                raise ValueError(f"{path.name}: not a line of a script: {line!r}")
    return found


def slowed(script: Script, factor: int) -> Script:
    """The same with all of its times so much longer, for a machine that is too busy for it."""
    steps = [replace(it, at_ms=it.at_ms * factor, number=it.number * factor) for it in script.steps]
    ending, deadline_ms, exits_ms = script.ending, script.deadline_ms, script.exits_ms
    return replace(
        script,
        deadline_ms=None if deadline_ms is None else deadline_ms * factor,
        grace_ms=script.grace_ms * factor,
        exits_ms=None if exits_ms is None else exits_ms * factor,
        steps=steps,
        ending=None if ending is None else replace(ending, at_ms=ending.at_ms * factor),
    )


def play(script: Script) -> tuple[list[str], Ending]:
    """What the simulator's shim answers, and how the work below it ends."""
    shim, answers = Shim(script.deadline_ms, script.grace_ms), []
    if shim.is_late(0):
        return [], Ending(DEADLINE_PASSED, -1, 0, False, 0)
    steps = list(script.steps)
    while True:
        exits_ms = math.inf if script.exits_ms is None else script.exits_ms
        next_ms = math.inf if shim.next_ms is None else shim.next_ms
        now = min(exits_ms, next_ms, steps[0].at_ms if steps else math.inf)
        assert now < math.inf, "the script never ends"
        shim.keep_time(int(now))
        ending = _ending(script, shim, int(now))
        if ending is None and steps and steps[0].at_ms <= now:
            answers.append(_ask(shim, steps.pop(0)))
            ending = _ending(script, shim, int(now))
        if ending is not None:
            return answers, ending


def _ask(shim: Shim, step: Step) -> str:
    if step.verb == "stop":
        shim.stop(STOPPED, step.at_ms, step.number)
        return "stopping"
    return shim.extend(step.number, is_foreign=step.verb == "foreign")


def _ending(script: Script, shim: Shim, now_ms: int) -> Ending | None:
    """How the work has ended by now, if it has: by itself, by the signal, or by the kill."""
    is_deaf = script.work == "outlasts" or not shim.reason
    if script.exits_ms is not None and script.exits_ms <= now_ms and is_deaf:
        return Ending(shim.ended("Exited"), script.code, 0, False, now_ms)
    if shim.reason and script.work == "obeys":
        return Ending(shim.reason, 0, 0, False, now_ms)
    if shim.is_killed:
        return Ending(shim.reason, -1, 9, True, now_ms)
    return None
