"""Progress without a change of ownership: each stage by its own reporter."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.commit.lifecycle.progress_reports import STAGE_OWNER
from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import Pending, Process
from holdfast.model.lifecycle import Actor, Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, ReportPending, ReportStage, Unreserve
from tests.furnished import AGENT, ANN, Furnished
from tests.plane import ADMIN, SCHEDULER, refused, target

ENDPOINTS = who.controller("endpoints")
REPORTERS = {Actor.SCHEDULER: SCHEDULER, Actor.AGENT: AGENT, Actor.ENDPOINTS: ENDPOINTS}


def report(replica: Any, stage: Stage, **more: Any) -> ReportStage:
    return ReportStage(target(replica), stage, incarnation=1, **more)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("way", ["pending", "reserved", "bound", "running", "stopping", "unknown"])
def test_each_stage_is_said_by_its_reporter_in_its_states(stage: Stage, way: str) -> None:
    """[A6, A9, C6.7]"""
    it = Furnished()
    replica = getattr(it, way)()
    if way == "running":
        replica = it.yes(AGENT, report(replica, Stage.READY))
    owner = STAGE_OWNER.get(stage)
    waits, runs = way in ("pending", "reserved"), way == "running"
    for identity in (*REPORTERS.values(), ADMIN, ANN, who.controller("status")):
        answer = it.plane.ask(identity, report(replica, stage))
        right = owner is not None and REPORTERS[owner] == identity
        # An agent says that it is about to start what is bound, and why it cannot yet.
        begins = stage is Stage.STARTING and way == "bound"
        fits = waits if owner is Actor.SCHEDULER else runs or begins
        assert isinstance(answer, Accepted) == (right and fits), (identity.name, answer)


def test_only_the_agent_of_its_node_in_its_life_reports() -> None:
    """[C6.7, H1]"""
    it = Furnished()
    running = it.running()
    refused(it.ask(who.agent("node-b"), report(running, Stage.READY)), Reason.MISSING)
    for life in (0, 2, None):
        request = ReportStage(target(running), Stage.READY, incarnation=life)
        refused(it.ask(AGENT, request), Reason.STALE_INCARNATION)


def test_only_the_agent_reports_on_the_process() -> None:
    """[A9, INV6]"""
    it = Furnished()
    process = Process(id="1", addresses={"http": "10.0.0.1:80"})
    ready = it.yes(AGENT, report(it.running(), Stage.READY, process=process))
    assert ready.status.process == process
    forged = Process(id="2", addresses={"http": "6.6.6.6:80"})
    refused(it.ask(ENDPOINTS, report(ready, Stage.SERVING, process=forged)), Reason.NOT_OWNER)
    refused(it.ask(SCHEDULER, report(it.pending(), Stage.QUEUED, process=forged)), Reason.NOT_OWNER)
    serving = it.yes(ENDPOINTS, report(ready, Stage.SERVING))
    assert serving.status.process == process


def test_what_is_not_ready_is_not_served() -> None:
    """[A6]"""
    it = Furnished()
    running = it.running()
    refused(it.ask(ENDPOINTS, report(running, Stage.SERVING)), Reason.WRONG_STATE)
    ready = it.yes(AGENT, report(running, Stage.READY))
    serving = it.yes(ENDPOINTS, report(ready, Stage.SERVING))
    back = it.yes(AGENT, report(serving, Stage.STARTING))
    refused(it.ask(ENDPOINTS, report(back, Stage.SERVING)), Reason.WRONG_STATE)


def test_what_serves_goes_on_serving_when_its_agent_says_that_it_is_ready() -> None:
    """The report counts for the process alone, and one that says nothing new writes nothing.
    [A6, A9]"""
    it = Furnished()
    ready = it.yes(AGENT, report(it.running(), Stage.READY))
    serving = it.yes(ENDPOINTS, report(ready, Stage.SERVING))
    same = it.yes(AGENT, report(serving, Stage.READY))
    assert same == serving
    process = Process(id="1", addresses={"http": "10.0.0.1:80"})
    moved = it.yes(AGENT, report(serving, Stage.READY, process=process))
    assert (moved.status.stage, moved.status.process) == (Stage.SERVING, process)
    back = it.yes(AGENT, report(moved, Stage.STARTING))
    assert it.yes(AGENT, report(back, Stage.READY)).status.stage is Stage.READY


def test_a_report_moves_no_state_and_says_nothing_twice() -> None:
    """[I1]"""
    it = Furnished()
    running = it.running()
    request = report(running, Stage.READY, operation="ready")
    after = it.yes(AGENT, request)
    assert after.status.transition_number == running.status.transition_number
    before = it.plane.store.revision
    assert it.ask(AGENT, request).replayed
    it.yes(AGENT, report(running, Stage.READY))
    assert it.plane.store.revision == before


def test_a_report_about_an_older_step_is_refused() -> None:
    """[C2]"""
    it = Furnished()
    running = it.running()
    it.stopping(running)
    refused(it.ask(AGENT, report(running, Stage.READY)), Reason.STALE_REPLICA)


def test_why_a_replica_waits_is_said_by_the_scheduler_while_it_waits() -> None:
    """[E3, D2]"""
    it = Furnished()
    replica = it.pending()
    why = Pending(reasons={"QuotaExceeded": 1}, message="quota", next_wake=it.plane.at(30))
    request = ReportPending(target(replica), why, operation="why")
    for identity in (AGENT, ADMIN, ENDPOINTS, ANN):
        answer = it.ask(identity, request)
        assert answer.reason in (Reason.NOT_OWNER, Reason.NOT_ALLOWED, Reason.MISSING), answer
    after = it.yes(SCHEDULER, request)
    assert (after.status.pending, after.status.stage) == (why, Stage.QUEUED)
    assert it.ask(SCHEDULER, request).replayed
    bound = it.yes(SCHEDULER, it.bind(after))
    assert (bound.status.pending, bound.status.state) == (None, State.BOUND)
    late = ReportPending(target(bound), why)
    refused(it.ask(SCHEDULER, late), Reason.WRONG_STATE)


def test_a_reservation_makes_a_replica_scheduled_until_it_is_bound_or_given_back() -> None:
    """No request of its own says so: the transaction that holds the place does. [A6, A11]"""
    it = Furnished()
    held = it.reserved()
    assert held.status.stage is Stage.SCHEDULED
    said = it.yes(SCHEDULER, ReportPending(target(held), Pending(message="waits for its device")))
    assert said.status.stage is Stage.SCHEDULED
    assert it.yes(SCHEDULER, it.bind(said)).status.stage is Stage.BOUND


def test_what_loses_its_reservation_is_queued_again() -> None:
    """[A6]"""
    it = Furnished()
    held = it.reserved()
    given_back = it.yes(SCHEDULER, Unreserve(target(held), "Conflict", it.term(SCHEDULER)))
    assert (given_back.status.state, given_back.status.stage) == (State.PENDING, Stage.QUEUED)


def test_no_scheduler_reports_a_place_that_nothing_holds() -> None:
    """[A6]"""
    it = Furnished()
    refused(it.ask(SCHEDULER, report(it.pending(), Stage.SCHEDULED)), Reason.NOT_OWNER)
