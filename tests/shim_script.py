"""Scripts of a shim's life, and a model of a shim that plays them.

tests/golden/shim/*.txt are such scripts. The same ones are played by the model here, under virtual
time, and by the C program with a real process, so that neither can change without the other. All
times are milliseconds after the launch.

    deadline 300 | none
    grace 200
    work exits CODE at MS | obeys | ignores     whether it ends by itself, or upon SIGTERM with 0
    at MS extend MS | foreign MS | stop MS -> ANSWER
    expect REASON code N | signal N [killed] at MS
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "golden" / "shim"


@dataclass(frozen=True)
class Step:
    """Somebody asks the shim for something."""

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
            case ["work", "exits", code, "at", ms]:
                found.work, found.code, found.exits_ms = "exits", int(code), int(ms)
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


def play(script: Script) -> tuple[list[str], Ending]:
    """What a shim answers, and how its work ends: the model that the C program must equal."""
    deadline = math.inf if script.deadline_ms is None else script.deadline_ms
    if deadline <= 0:
        return [], Ending("DeadlinePassed", -1, 0, False, 0)
    asked, stopped_at, reason = math.inf, math.inf, ""
    exits_at = math.inf if script.exits_ms is None else script.exits_ms
    answers: list[str] = []
    for step in [*script.steps, None]:
        now = math.inf if step is None else step.at_ms
        if not reason and deadline <= min(now, exits_at):
            reason, stopped_at = "DeadlinePassed", deadline
        # While it runs or stops as somebody asked, its end follows the deadline.
        kill_at = min(asked, deadline + script.grace_ms)
        over = _over(script, exits_at, stopped_at, kill_at)
        if step is None or over <= now:
            break
        answers.append(_refusal(step, script, deadline))
        if answers[-1]:
            continue
        if step.verb == "stop":
            asked = min(asked, now + step.number)
            reason, stopped_at = reason or "Stopped", min(stopped_at, now)
            answers[-1] = "stopping"
        else:
            deadline = step.number
            answers[-1] = "extended"
    return answers, _ending(script, exits_at, stopped_at, kill_at, reason)


def _over(script: Script, exits_at: float, stopped_at: float, kill_at: float) -> float:
    """When the work is gone, as things stand."""
    obeyed_at = stopped_at if script.work != "ignores" else math.inf
    return min(exits_at, obeyed_at, kill_at)


def _refusal(step: Step, script: Script, deadline: float) -> str:
    if step.verb == "stop":
        return ""
    if step.verb == "foreign":
        return "refused boot"
    if script.deadline_ms is None:
        return "refused none"
    if deadline <= step.at_ms:
        # It has struck, whether or not somebody had asked for a stop before.
        return "refused stopping"
    return "refused earlier" if step.number < deadline else ""


def _ending(
    script: Script, exits_at: float, stopped_at: float, kill_at: float, reason: str
) -> Ending:
    over = int(_over(script, exits_at, stopped_at, kill_at))
    if exits_at <= min(stopped_at, kill_at):
        return Ending(reason or "Exited", script.code, 0, False, over)
    if script.work == "ignores":
        return Ending(reason, -1, 9, True, over)
    return Ending(reason, 0, 0, False, over)
