"""How an explanation reads on a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.cli.explain import text_lines
from holdfast.cli.main import main
from holdfast.explain.answer import Diagnosis, EvidenceItem, Explanation, ProgressStep, StuckReason
from holdfast.model.kinds.replica import TransitionRecord
from holdfast.model.lifecycle import Stage, State
from holdfast.model.time import wall_ms

AT = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
FOUND = Explanation(
    namespace="fraud",
    name="fraud-batch-2-0",
    uid="u",
    state=State.UNKNOWN,
    stage=Stage.READY,
    revision=412,
    finding=Diagnosis(
        ProgressStep.SERVING,
        StuckReason.FENCE,
        "node n7 is out of contact",
        "controller:nodes",
        "controller:repair",
        AT,
    ),
    signs=(
        EvidenceItem("replica fraud-batch-2-0", "Unknown, Ready", 398, 5_000),
        EvidenceItem("agent of node n7", "its last renewal", age_ms=90_000),
    ),
    timeline=(
        TransitionRecord(
            State.UNKNOWN, "system:controller:nodes", AT, revision=390, reason="NodeUnknown"
        ),
    ),
    unknown={"decisions": "this server keeps no decisions"},
)


def test_the_answer_says_where_why_who_and_by_when() -> None:
    """[M2, M3]"""
    assert text_lines(FOUND, wall_ms(AT) - 20_000) == [
        "fraud/fraud-batch-2-0 is Unknown, as of revision 412",
        "  stopped at      serving",
        "  because         AwaitingFence: node n7 is out of contact",
        "  next move       controller:nodes",
        "  by              2026-01-01T12:00:00Z (in 20 s)",
        "  then            controller:repair",
        "evidence",
        "  replica fraud-batch-2-0 (revision 398, 5 s ago): Unknown, Ready",
        "  agent of node n7 (1 min ago): its last renewal",
        "  decisions: unknown, this server keeps no decisions",
        "timeline",
        "  2026-01-01T12:00:00Z Unknown by system:controller:nodes at revision 390: NodeUnknown",
    ]


def test_a_deadline_that_has_passed_is_called_overdue() -> None:
    lines = text_lines(FOUND, wall_ms(AT) + 90_000)
    assert "  by              2026-01-01T12:00:00Z (1 min ago: overdue)" in lines


def test_where_there_is_no_deadline_the_reason_is_said() -> None:
    say = msgspec.structs.replace(
        FOUND.finding, deadline=None, no_deadline="scheduler is not active"
    )
    lines = text_lines(msgspec.structs.replace(FOUND, finding=say), 0)
    assert "  by              no deadline: scheduler is not active" in lines


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("explain node n1", "KIND: 'node' must be replica"),
        ("explain replica", "NAME: must be the name of a replica"),
        ("explain nix n1", "KIND: unknown kind 'nix'"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert sentence in capsys.readouterr().err
