"""Golden scripts of one scheduler: what happens to it, and every request that it sends.

Each tests/golden/scheduler-*.txt is a script. A line that begins with `>` is something that
happens; below it are the requests of the scheduler to the servers, with the milliseconds since it
started, and the answers. To rewrite the scheduler's lines:

    HOLDFAST_REWRITE_GOLDEN=1 pytest tests/unit/propose/test_scripts.py

and then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, Bind, RenewLease, ReportPending
from tests.unit.propose.rig import Lost, Rig, refusal

GOLDEN = Path(__file__).parents[2] / "golden"
SCRIPTS = sorted(path.stem for path in GOLDEN.glob("scheduler-*.txt"))
START_MS = 1_000


class TranscriptRig(Rig):
    """A rig that records requests and answers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__()

    def answer_request(self, request: Any) -> Any:
        # The lease is not what these scripts are about, once it is held.
        is_recorded = not isinstance(request, RenewLease)
        if is_recorded:
            self.lines.append(f"{self.now_ms - START_MS:>8} {request_text(request)}")
        line = len(self.lines)
        answer = super().answer_request(request)
        if is_recorded:
            # The effects of the answer's events are performed after it.
            self.lines.insert(line, f"         = {answer_text(answer)}")
        return answer


def request_text(request: Any) -> str:
    match request:
        case Bind(target=target, node=node, term=term):
            return f"bind {target.name}@{target.number} to {node}, epoch {term.epoch}"
        case ReportPending(target=target, pending=pending):
            counts = ", ".join(f"{count} {reason}" for reason, count in pending.reasons.items())
            miss = f"; nearest: {pending.nearest_miss}" if pending.nearest_miss else ""
            return f"report {target.name}: {pending.verdict}, {counts}: {pending.message}{miss}"
        case Get(plural=plural, name=name):
            return f"get {plural} {name}"
        case AcquireLease(scope=scope, seen_epoch=epoch):
            return f"acquire {scope}, seen at epoch {epoch}"
    raise AssertionError(request)


def answer_text(answer: Any) -> str:
    match answer:
        case Accepted(replayed=replayed):
            return "accepted before" if replayed else "accepted"
        case Refusal(reason=reason, message=message):
            return f"refused: {reason.value}, {message}"
        case HoldfastError():
            return f"{answer.code}: {answer.message}"
        case GetResult(object=Replica() as replica):
            binding = replica.status.binding
            where = f" on {binding.node}" if binding is not None else ""
            return f"{replica.status.state.value}{where}"
        case GetResult(object=obj):
            return "found" if obj is not None else "nothing there"
    raise AssertionError(answer)


class Player:
    """Performs the commands of a script."""

    def __init__(self) -> None:
        self.rig = TranscriptRig()

    def node(self, name: str, cpu: str = "8") -> None:
        self.rig.node(name, cpu=cpu)

    def phase(self, name: str, phase: str) -> None:
        node = self.rig.objects["nodes"]["", name]
        status = msgspec.structs.replace(node.status, phase=NodePhase(phase))
        self.rig.put(msgspec.structs.replace(node, status=status))

    def replica(self, name: str, cpu: str = "1") -> None:
        self.rig.replica(name, cpu=cpu)

    def release(self, name: str) -> None:
        self.rig.status(self.rig.get(name), state=State.RELEASED)

    def start(self) -> None:
        self.rig.start()

    def restart(self) -> None:
        self.rig.restart()

    def wait(self, ms: str) -> None:
        self.rig.pass_time(int(ms))

    def lose(self, what: str) -> None:
        """The answer to the next bind is lost, `before` it committed, or after, with its event."""
        self.rig.verdicts.append(Lost(committed=what == "committed", delivered=False))

    def refuse(self, reason: str) -> None:
        self.rig.verdicts.append(refusal(Reason(reason)))

    def show(self, name: str) -> None:
        """How the servers see a replica."""
        replica = self.rig.get(name)
        number = replica.status.transition_number
        self.rig.lines.append(
            f"         = {name}: {answer_text(GetResult(replica, 0))}, transition {number}"
        )


def play(text: str) -> str:
    """The script with what the scheduler does in it."""
    player, lines = Player(), []
    for line in text.splitlines():
        if line.startswith(">"):
            command, *words = line.removeprefix(">").split()
            getattr(player, command)(*words)
            lines += [line, *player.rig.lines]
            player.rig.lines.clear()
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scheduler_does_what_its_scripts_say(script: str) -> None:
    """[F4, F6, F9, E1, E3, E5, SC3]"""
    path = GOLDEN / f"{script}.txt"
    expected = path.read_text()
    transcript = play(expected)
    if os.environ.get("HOLDFAST_REWRITE_GOLDEN"):
        path.write_text(transcript)
    else:
        assert transcript == expected


def test_there_are_scripts() -> None:
    """A glob that finds nothing would prove nothing."""
    assert {"scheduler-lost-committed", "scheduler-lost-before"} <= set(SCRIPTS)
