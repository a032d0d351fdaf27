"""Why a replica on a node in contact is not further: one case for each reason."""

from __future__ import annotations

import pytest

from holdfast.explain.answer import ProgressStep, StuckReason
from holdfast.explain.on_node import TOLD_WITHIN_MS
from holdfast.model.kinds.replica import CRASH_LOOP, Process
from holdfast.model.kinds.workload import Progress, WorkloadStatus
from holdfast.model.lifecycle import Stage, State
from holdfast.model.nodes.heartbeat import HeartbeatReport, ProgressNotes, WorkProgress
from tests.unit.correct.views import (
    AGENT,
    TEMPLATE,
    at,
    node,
    record,
    replaced,
    replica,
    workload,
)
from tests.unit.explain.questions import LOOK_MS, PROBED, asked, due_in_ms, heard, noted, says


@pytest.mark.parametrize(
    "word, why, leg",
    [
        (heard(), StuckReason.UNSEEN, ProgressStep.BINDING),
        # A renewal from before the bind, or one with too many notes: the answer is unknown.
        (heard(age_ms=6_000), StuckReason.UNTOLD, ProgressStep.BINDING),
        (heard(age_ms=LOOK_MS - TOLD_WITHIN_MS + 1), StuckReason.UNTOLD, ProgressStep.BINDING),
        (heard(ProgressNotes(more=1)), StuckReason.UNTOLD, ProgressStep.BINDING),
        (None, StuckReason.UNTOLD, ProgressStep.BINDING),
        (noted(WorkProgress.STARTING), StuckReason.STARTING, ProgressStep.STARTUP),
        (noted(WorkProgress.RUNS), StuckReason.UNPROPAGATED, ProgressStep.STARTUP),
        (noted(WorkProgress.ENDED), StuckReason.UNPROPAGATED, ProgressStep.STARTUP),
    ],
)
def test_what_is_bound_is_its_agents_to_start(
    word: HeartbeatReport | None, why: StuckReason, leg: ProgressStep
) -> None:
    """Distinguished by the notes of the agent's last renewal. [M2, M3, SC4]"""
    answer = asked(replica(State.BOUND), node(), heard=(word,) if word is not None else ())
    says(answer, why, leg, AGENT)
    assert answer.finding.then == "controller:repair"
    assert due_in_ms(answer) == TEMPLATE.startup_deadline_seconds * 1_000


def test_of_several_servers_the_last_renewal_counts() -> None:
    """[M2]"""
    old = heard(age_ms=60_000)
    answer = asked(replica(State.BOUND), node(), heard=(old, noted(WorkProgress.RUNS)))
    says(answer, StuckReason.UNPROPAGATED, ProgressStep.STARTUP, AGENT)


def test_work_that_is_not_ready_waits_for_its_probe() -> None:
    """[M3]"""
    up = (record(State.RUNNING, AGENT, 0, State.BOUND),)
    about = replica(stage=Stage.STARTING, transitions=up, template=PROBED)
    answer = asked(about, node())
    says(answer, StuckReason.NOT_READY, ProgressStep.READINESS, AGENT)
    assert "work that is not ready is not stopped" in answer.finding.no_deadline
    plain = replica(stage=Stage.STARTING, transitions=up)
    assert due_in_ms(asked(plain, node())) == 30_000


def test_work_that_crashes_waits_for_its_next_start() -> None:
    """[M3]"""
    again = replaced(record(State.RUNNING, AGENT, 0, State.RUNNING), reason=CRASH_LOOP)
    about = replica(stage=Stage.STARTING, transitions=(again,), process=Process(reason="exit 1"))
    says(asked(about, node()), StuckReason.CRASHING, ProgressStep.STARTUP, AGENT)
    once = replica(
        stage=Stage.STARTING, transitions=(record(State.RUNNING, AGENT, 0, State.RUNNING),)
    )
    says(asked(once, node()), StuckReason.STARTING, ProgressStep.STARTUP, AGENT)


def test_what_is_ready_and_not_listed_waits_for_the_endpoints() -> None:
    """[M3]"""
    says(
        asked(replica(), node(), workload()),
        StuckReason.UNLISTED,
        ProgressStep.SERVING,
        "controller:endpoints",
    )


@pytest.mark.parametrize("ready, why", [(1, StuckReason.NOTHING), (0, StuckReason.UNPROPAGATED)])
def test_what_serves_and_is_not_counted_waits_for_the_status(ready: int, why: StuckReason) -> None:
    """[M2]"""
    about = replica(stage=Stage.SERVING, ready_since=at())
    progress = Progress(bound=1, ready=ready, serving=1)
    of = replaced(workload(), status=WorkloadStatus(progress=progress))
    answer = asked(about, node(), of, siblings=(about,))
    assert answer.finding.why is why
    if why is StuckReason.UNPROPAGATED:
        says(answer, why, ProgressStep.SERVING, "controller:status")
        assert "0 instead of 1 ready" in answer.finding.message


def test_an_unreported_end() -> None:
    """[M2]"""
    answer = asked(replica(), node(), heard=(noted(WorkProgress.ENDED),))
    says(answer, StuckReason.UNPROPAGATED, ProgressStep.STARTUP, AGENT)


@pytest.mark.parametrize(
    "state, why, due_ms",
    [
        (State.STOPPING, StuckReason.STOPPING, 10_000 + 2_000 + 30_000),
        (State.FAILED, StuckReason.RELEASE, 2_000 + 30_000),
        (State.SUCCEEDED, StuckReason.RELEASE, 2_000 + 30_000),
    ],
)
def test_what_ends_is_its_agents_to_prove(state: State, why: StuckReason, due_ms: int) -> None:
    """[M2]"""
    answer = asked(replica(state, transitions=(record(state, AGENT),)), node())
    says(answer, why, ProgressStep.RELEASE, AGENT)
    assert due_in_ms(answer) == due_ms


def test_a_life_that_is_over_waits_for_nothing() -> None:
    """[M2]"""
    answer = asked(replica(State.RELEASED))
    says(answer, StuckReason.NOTHING, ProgressStep.NONE, "")
    assert not answer.finding.no_deadline
