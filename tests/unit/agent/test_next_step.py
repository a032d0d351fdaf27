"""One grace for the farewell and the stop."""

from __future__ import annotations

import pytest

from holdfast.agent.next_step import PrepareStop, Wait, kept_ms, lingering_ms, stop
from holdfast.agent.runtime_protocol import Attempt, Check, Halt, RunProbe
from holdfast.agent.work import ReplicaWork, WorkPhase
from holdfast.model.kinds.template import ExecAction, Template
from holdfast.model.lifecycle import Stage
from tests.unit.correct.views import replica

AT = Attempt("u", 3)
BYE = RunProbe(AT, Check.PRE_STOP, ExecAction(command=("bye",)), 0)


def work(phase: WorkPhase, *, stop_by_ms: int = 10_000, has_left: bool = False) -> ReplicaWork:
    made = ReplicaWork("u", "acme", "web-0")
    made.attempt, made.phase = 3, phase
    made.halt_grace_ms, made.stop_by_ms, made.has_left = 10_000, stop_by_ms, has_left
    return made


@pytest.mark.parametrize("grace_ms, kept", [(0, 0), (1_000, 250), (8_000, 2_000), (60_000, 2_000)])
def test_a_part_of_the_grace_is_kept_for_the_stop(grace_ms: int, kept: int) -> None:
    assert kept_ms(grace_ms) == kept


def test_work_gets_the_signal_first_and_is_then_killed_within_the_same_grace() -> None:
    first = stop(work(WorkPhase.RUNNING), 10_000, 0, BYE)
    assert first == PrepareStop(RunProbe(AT, Check.PRE_STOP, BYE.action, 8_000), 10_000)
    leaving = work(WorkPhase.LEAVING)
    assert stop(leaving, 10_000, 7_999, BYE) == Wait(8_000)
    assert stop(leaving, 10_000, 8_000, BYE) == Halt(AT, 2_000)
    assert stop(work(WorkPhase.LEAVING, has_left=True), 10_000, 3_000, BYE) == Halt(AT, 7_000)
    assert stop(leaving, 10_000, 50_000, BYE) == Halt(AT, 0)


def test_what_has_no_farewell_or_no_time_for_one_is_stopped_at_once() -> None:
    """Also in the middle of one, when the life of the node is over. [INV2]"""
    assert stop(work(WorkPhase.RUNNING), 10_000, 0) == Halt(AT, 10_000)
    assert stop(work(WorkPhase.RUNNING), 0, 0, BYE) == Halt(AT, 0)
    assert stop(work(WorkPhase.LAUNCHING), 10_000, 0, BYE) == Halt(AT, 10_000)
    assert stop(work(WorkPhase.LEAVING), 10_000, 1_000) == Halt(AT, 9_000)


def test_what_serves_lingers_inside_its_grace_for_clients_that_do_not_know_yet() -> None:
    """The grace counts from the first moment, and the stop keeps its part of it."""
    assert stop(work(WorkPhase.RUNNING), 10_000, 0, None, 1_000) == PrepareStop(None, 10_000)
    lingering = work(WorkPhase.LEAVING, has_left=True)
    assert stop(lingering, 10_000, 999, None, 1_000) == Wait(1_000)
    assert stop(lingering, 10_000, 1_000, None, 1_000) == Halt(AT, 9_000)
    assert stop(lingering, 10_000, 1_000, None, 60_000) == Wait(8_000)
    # A farewell goes on meanwhile: the later of the two counts.
    assert stop(work(WorkPhase.LEAVING), 10_000, 2_000, BYE, 1_000) == Wait(8_000)
    assert stop(lingering, 10_000, 500, BYE, 1_000) == Wait(1_000)
    # A later, shorter grace counts.
    assert stop(work(WorkPhase.RUNNING), 0, 0, None, 1_000) == Halt(AT, 0)
    assert stop(lingering, 2_000, 500, None, 1_000) == Halt(AT, 2_000)


def test_only_what_serves_lingers_for_as_long_as_its_template_says() -> None:
    slow = Template(command=("web",), drain_seconds=3)
    assert lingering_ms(replica(stage=Stage.SERVING, template=slow)) == 3_000
    assert lingering_ms(replica(stage=Stage.READY, template=slow)) == 0


def test_a_shorter_grace_takes_effect_and_a_longer_one_does_not() -> None:
    assert stop(work(WorkPhase.HALTING), 4_000, 1_000, BYE) == Halt(AT, 4_000)
    assert stop(work(WorkPhase.HALTING), 10_000, 1_000, BYE) == Wait()
    assert stop(work(WorkPhase.HALTING), 90_000, 1_000, BYE) == Wait()
    assert stop(work(WorkPhase.LEAVING), 500, 1_000, BYE) == Halt(AT, 500)
    for phase in (WorkPhase.NONE, WorkPhase.ENDED):
        assert stop(work(phase), 10_000, 0, BYE) is None
