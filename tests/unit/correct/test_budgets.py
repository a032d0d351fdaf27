"""Disruption budgets of a workload that its controllers keep going."""

from __future__ import annotations

from typing import Any

from holdfast.correct.all_controllers import core_controllers
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.kinds.workload import Disruption
from holdfast.model.lifecycle import Cause, Stage
from holdfast.model.refusal import Reason
from holdfast.model.requests import Evict, ReportStage, Update
from tests.plane import refused
from tests.unit.correct.controller_rig import ADMIN, Rig, accepted, target
from tests.unit.correct.views import replaced

BUDGET = Disruption(max_unavailable=1)
ROLLOUT = who.controller("rollout")


class Budgeted(Rig):
    """A service of three with a budget of one, on three nodes."""

    def __init__(self) -> None:
        super().__init__(core_controllers())
        self.plane.tenant()
        for name in ("node-a", "node-b", "node-c"):
            self.plane.node(name)
        self.plane.workload(replicas=3, disruption=BUDGET)
        self.rollout = self.plane.term(ROLLOUT)
        self.turn()

    def ledger(self) -> Any:
        return self.plane.read(keys.disruption_ledger("acme", "web"))

    def taken(self, name: str) -> Any:
        evict = Evict(target(self.get("replicas", name, "acme")), Cause.ROLLOUT, "", self.rollout)
        return self.plane.ask(ROLLOUT, evict)


def test_one_after_the_other_may_be_taken_and_never_two() -> None:
    rig = Budgeted()
    assert (rig.ledger().replicas, rig.ledger().healthy) == (3, 3)
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
    accepted(rig.taken("web-1-0"))
    rig.turn()
    assert (rig.ledger().replicas, rig.ledger().healthy) == (3, 3)


def test_a_replica_that_is_not_ready_any_more_holds_the_others_in_place() -> None:
    rig = Budgeted()
    sick = rig.get("replicas", "web-2-0", "acme")
    agent = who.agent(sick.status.binding.node)
    accepted(rig.plane.ask(agent, ReportStage(target(sick), Stage.STARTING, 1)))
    refused(rig.taken("web-0-0"), Reason.DISRUPTION_BUDGET)
    sick = rig.get("replicas", "web-2-0", "acme")
    accepted(rig.plane.ask(agent, ReportStage(target(sick), Stage.READY, 1)))
    accepted(rig.taken("web-0-0"))


def test_a_budget_that_is_stated_later_counts_who_is_missing_by_then() -> None:
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
    refused(rig.taken("web-1-0"), Reason.DISRUPTION_BUDGET)


def test_nothing_is_asked_while_nothing_happens() -> None:
    """[V4]"""
    rig = Budgeted()
    rig.run(60_000)
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
