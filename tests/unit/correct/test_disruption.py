"""controller:disruption: budgets count what is so, and nothing is said twice."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.disruption import NAMED_MAX, DisruptionController
from holdfast.correct.registry import core_controllers
from holdfast.model import identity as who
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Evict, ReportStage, SettleDisruption, Term, Update
from holdfast.observe.cache import Change
from tests.plane import refused
from tests.unit.correct.pictures import NOW, TERM, later, replaced, replica, view, workload
from tests.unit.correct.team_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    Rig,
    accepted,
    target,
)

KEY = ("acme", "web")
BUDGET = Disruption(max_unavailable=1)
ROLLOUT = who.controller("rollout")


def web(replicas: int = 3, **spec: Any) -> Any:
    return workload(replicas, **{"disruption": BUDGET, **spec})


def asked(it: DisruptionController, *objects: Any, term: Term = TERM, ms: int = 0) -> Any:
    return it.reconcile(view(*objects), KEY, term, later(ms)).requests


def answer(it: DisruptionController, request: SettleDisruption, *seen: Replica) -> None:
    it.answered(request, "servers", Accepted(9, seen), 0, NOW)


def test_everybody_is_named_once_in_a_term_and_again_when_it_is_different() -> None:
    """[I1, G4]"""
    it, ready, bound = DisruptionController(), replica(), replica(State.BOUND, 1)
    (request,) = asked(it, web(), ready, bound)
    assert request == SettleDisruption("acme", "web", ("web-0-0", "web-1-0"), TERM)
    answer(it, request, ready, bound)
    assert asked(it, web(), ready, bound) == ()
    works = replica(ordinal=1)
    (request,) = asked(it, web(), ready, works)
    assert request.replicas == ("web-1-0",)
    answer(it, request, works)
    assert asked(it, web(), ready, works) == ()
    unready = replica(stage=Stage.STARTING)
    (request,) = asked(it, web(), unready, works)
    assert request.replicas == ("web-0-0",)
    # The next in office knows nothing of what was said.
    (request,) = asked(it, web(), ready, works, term=Term(TERM.scope, TERM.epoch + 1))
    assert len(request.replicas) == 2


def test_what_the_authority_saw_counts_and_not_what_we_did() -> None:
    """It may have been unready for a moment that the picture never shows. [C3, C7.7]"""
    it = DisruptionController()
    (request,) = asked(it, web(), replica())
    answer(it, request, replica(stage=Stage.STARTING))
    assert asked(it, web(), replica()) == (request,)


@pytest.mark.parametrize("said", [Refusal(Reason.STALE_EPOCH, "no"), None])
def test_what_was_not_accepted_is_said_again(said: Any) -> None:
    """[C7.5]"""
    it = DisruptionController()
    (request,) = asked(it, web(), replica())
    it.answered(request, "servers", said, 0, NOW)
    assert asked(it, web(), replica()) == (request,)


def test_after_a_change_of_the_spec_those_that_are_missing_are_named_again() -> None:
    """There may have been no budget for a moment, and with it nobody who counts. [C7.7]"""
    it, ready, bound = DisruptionController(), replica(), replica(State.BOUND, 1)
    (request,) = asked(it, web(), ready, bound)
    answer(it, request, ready, bound)
    before = web()
    changed = replaced(before, metadata=replaced(before.metadata, generation=2))
    (request,) = asked(it, changed, ready, bound)
    assert request.replicas == ("web-1-0",)
    assert list(it.keys_of(Change("workloads", before, changed), view())) == [KEY]
    assert list(it.keys_of(Change("workloads", before, before), view())) == []


def test_without_a_budget_there_is_nothing_to_settle() -> None:
    """Nor for jobs, of which only what was taken from them counts. [V4]"""
    it = DisruptionController()
    assert asked(it, web(disruption=None), replica()) == ()
    assert asked(it, web(type=WorkloadType.JOB), replica()) == ()
    assert asked(it, replica()) == ()
    assert list(it.all_keys(view(web(disruption=None)))) == []


def test_what_was_taken_from_a_job_is_named_until_it_is_released() -> None:
    """And nothing else of it: thousands of indexes start and end by themselves. [G4]"""
    it, job = DisruptionController(), web(type=WorkloadType.JOB)
    taken = replica(State.STOPPING, 1, cause=Cause.DRAIN)
    (request,) = asked(it, job, replica(), taken)
    assert request.replicas == ("web-1-0",)
    answer(it, request, taken)
    assert asked(it, job, replica(), taken) == ()
    gone = replica(State.RELEASED, 1, cause=Cause.DRAIN)
    assert list(it.keys_of(Change("replicas", taken, gone), view())) == [KEY]
    (request,) = asked(it, job, replica(), gone)
    answer(it, request, gone)
    assert asked(it, job, replica(), gone) == ()


def test_only_becoming_ready_or_unready_is_news() -> None:
    """[V4]"""
    it = DisruptionController()
    ready, serving = replica(), replica(stage=Stage.SERVING)
    for before, after, is_news in (
        (None, replica(State.PENDING), False),
        (replica(State.PENDING), replica(State.BOUND), False),
        (ready, serving, False),
        (replica(State.BOUND), ready, True),
        (ready, replica(State.UNKNOWN), True),
        (serving, replica(stage=Stage.STARTING), True),
        (serving, None, True),
        (replica(State.STOPPING), None, False),
    ):
        found = list(it.keys_of(Change("replicas", before, after), view()))
        assert found == ([KEY] if is_news else []), (before, after)


def test_many_are_named_in_bounded_portions_and_rest_in_between() -> None:
    """[I1]"""
    it = DisruptionController()
    many = [replica(ordinal=number) for number in range(2 * NAMED_MAX + 1)]
    requests = asked(it, web(len(many)), *many)
    assert [len(request.replicas) for request in requests] == [NAMED_MAX, NAMED_MAX, 1]
    assert asked(it, web(len(many)), *many) == ()
    assert len(asked(it, web(len(many)), *many, ms=20)) == 3


def test_replicas_that_are_gone_are_forgotten() -> None:
    """[I1]"""
    it = DisruptionController()
    for number in range(6 * NAMED_MAX):
        one = replica(incarnation=number)
        (request,) = asked(it, web(), one, ms=number)
        answer(it, request, one)
    (told,) = it._told.values()
    assert len(told.known) <= 2 * NAMED_MAX


class Budgeted(Rig):
    """A service of three with a budget of one, on three nodes."""

    def __init__(self) -> None:
        super().__init__((*core_controllers(), DisruptionController()))
        self.plane.tenant()
        for name in ("node-a", "node-b", "node-c"):
            self.plane.node(name)
        self.plane.workload(replicas=3, disruption=BUDGET)
        self.rollout = self.plane.term(ROLLOUT)
        self.turn()

    def start(self, controllers: Any = None) -> None:
        super().start(controllers or (*core_controllers(), DisruptionController()))

    def ledger(self) -> Any:
        return self.plane.read(keys.disruption_ledger("acme", "web"))

    def taken(self, name: str) -> Any:
        evict = Evict(target(self.get("replicas", name, "acme")), Cause.ROLLOUT, "", self.rollout)
        return self.plane.ask(ROLLOUT, evict)


def test_one_after_the_other_may_be_taken_and_never_two() -> None:
    """[G4, I6, C7.1]"""
    rig = Budgeted()
    assert (rig.ledger().missing, rig.ledger().out) == ((), {})
    accepted(rig.taken("web-0-0"))
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)
    rig.agents()
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)
    rig.run()
    assert rig.states()["web-0-1"] == "Pending"
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)
    rig.bind_all()
    rig.run()
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)
    rig.agents()
    assert rig.states()["web-0-1"] == "Running"
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)
    rig.run()
    accepted(rig.taken("web-1-0"))
    rig.turn()
    assert (rig.ledger().missing, rig.ledger().out, rig.ledger().replicas) == ((), {}, 3)


def test_a_replica_that_is_not_ready_any_more_holds_the_others_in_place() -> None:
    """[G4, H2]"""
    rig = Budgeted()
    sick = rig.get("replicas", "web-2-0", "acme")
    agent = who.agent(sick.status.binding.node)
    accepted(rig.plane.ask(agent, ReportStage(target(sick), Stage.STARTING, 1)))
    rig.run()
    refused(rig.taken("web-0-0"), Reason.DISRUPTION_BUDGET)
    sick = rig.get("replicas", "web-2-0", "acme")
    accepted(rig.plane.ask(agent, ReportStage(target(sick), Stage.READY, 1)))
    rig.run()
    accepted(rig.taken("web-0-0"))


def test_a_budget_that_is_stated_later_counts_who_is_missing_by_then() -> None:
    """[G4]"""
    rig = Budgeted()
    there = rig.get("workloads", "web", "acme")
    without = replaced(there, spec=replaced(there.spec, disruption=None))
    accepted(rig.plane.ask(ADMIN, Update(without)))
    accepted(rig.taken("web-0-0"))
    rig.agents()
    rig.run()
    there = rig.get("workloads", "web", "acme")
    stated = replaced(there, spec=replaced(there.spec, disruption=BUDGET))
    accepted(rig.plane.ask(ADMIN, Update(stated)))
    rig.run()
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE, DOWN])
def test_lost_answers_and_crashes_end_in_the_same_ledger(fate: str) -> None:
    """[C7.4, C7.5, E5]"""
    rig = Budgeted()
    spoilt: set[Any] = set()

    def once(ask: Any) -> str:
        if not isinstance(ask.body, SettleDisruption) or ask.body.replicas in spoilt:
            return DONE
        spoilt.add(ask.body.replicas)
        return fate

    rig.fate = once
    accepted(rig.taken("web-0-0"))
    rig.crash_after = len(rig.sent) + 2
    rig.turn(8)
    assert spoilt
    assert (rig.ledger().missing, rig.ledger().out) == ((), {})


def test_nothing_is_asked_while_nothing_happens() -> None:
    """[V4]"""
    rig = Budgeted()
    rig.run(60_000)
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
