"""Disruption budgets: one for all causes, and a ledger of who is missing."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.evict import SETTLED_MAX
from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Remove, SettleDisruption
from tests.furnished import DISRUPTIONS, DRAINS, ROLLOUTS, Furnished
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, accepted, refused, template
from tests.unit.commit.budgets import ledger, settled, tight


def gone(it: Furnished, replica: Any) -> None:
    """Released, and cleared away."""
    it.moved(replica, State.RELEASED)
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    assert it.get(replica) is None


def test_drains_rollouts_and_preemptions_share_one_budget() -> None:
    """[G4, I8]"""
    it = Furnished()
    made = template(priority_class="low")
    low = it.plane.workload(
        "tight", template=made, replicas=4, disruption=Disruption(max_unavailable=2)
    )
    high = it.of_class("high", cpu="8")
    other = it.plane.node("node-b")
    replicas = [it.ready(low, other), *(it.ready(low) for _ in range(3))]
    settled(it, *replicas)
    it.draining(other)
    it.stopping(replicas[0], Cause.DRAIN)
    it.stopping(replicas[1], Cause.ROLLOUT)
    refusal = refused(
        it.ask(ROLLOUTS, it.evict(replicas[2], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET
    )
    assert refusal.details == {"missing": "2", "allowed": "2"}
    preempt = it.preempt(it.pending(high), *replicas[2:])
    refused(it.ask(SCHEDULER, preempt), Reason.DISRUPTION_BUDGET)
    it.draining()
    refused(it.ask(DRAINS, it.evict(replicas[2], Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    # What its own owner wants, and what has failed anyway, is counted and never refused.
    it.stopping(replicas[2], Cause.SCALE_DOWN)
    it.stopping(replicas[3], Cause.REPAIR)
    assert len(ledger(it, "tight").out) == 4


def test_two_evictions_at_the_same_moment_cannot_both_take_the_last_of_a_budget() -> None:
    """[G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)
    settled(it, one, two)
    it.draining()
    it.term(DRAINS), it.term(ROLLOUTS)
    first, second = it.plane.ask_all(
        (DRAINS, it.evict(one, Cause.DRAIN)), (ROLLOUTS, it.evict(two, Cause.ROLLOUT))
    )
    accepted(first)
    refused(second, Reason.DISRUPTION_BUDGET)


def test_who_is_not_ready_counts_and_costs_nothing_to_take() -> None:
    """From its birth on, whoever is slow to say so. [G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.running(web)
    assert ledger(it, "tight").missing == (one.metadata.uid, two.metadata.uid)
    settled(it, one, two)
    assert ledger(it, "tight").missing == (two.metadata.uid,)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.stopping(two, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_one_that_is_ready_costs_also_before_the_ledger_has_heard_of_it() -> None:
    """Otherwise the only one that works could be taken as one that does not. [G4]"""
    it = Furnished()
    web = tight(it, 2)
    one, _ = it.ready(web), it.running(web)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_who_is_not_ready_any_more_counts_once_that_was_seen() -> None:
    """Also one that is out of contact, or has failed. [G4, H2]"""
    it = Furnished()
    web = tight(it, 3)
    other = it.plane.node("node-b")
    one, two, three = it.ready(web, other), it.ready(web), it.ready(web)
    settled(it, one, two, three)
    failed = it.moved(two, State.FAILED)
    settled(it, failed)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    gone(it, failed)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    four = it.ready(web)
    settled(it, four)
    unready = it.at_stage(four, Stage.STARTING)
    settled(it, unready)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, it.at_stage(unready, Stage.READY))
    it.yes(ROLLOUTS, it.evict(three, Cause.ROLLOUT))


def test_a_loss_counts_until_its_successor_works() -> None:
    """At no moment in between can a second one be taken: while it stops, after it is gone, when the
    next one is born, and while that starts. [G4, I6]"""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)
    settled(it, one, two)

    def refuses() -> None:
        settled(it, *(r for r in (one, two, *born) if it.get(r) is not None))
        refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)

    born: list[Any] = []
    stopped = it.stopping(one, Cause.ROLLOUT)
    refuses()
    gone(it, stopped)
    refuses()
    born.append(it.running(web))
    refuses()
    it.at_stage(born[0], Stage.READY)
    settled(it, born[0])
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_what_is_too_many_makes_up_for_what_is_missing() -> None:
    """A rollout that starts the new one first takes the old one without a budget's leave. [I6]"""
    it = Furnished()
    web = tight(it, 2, allowed=0)
    replicas = [it.ready(web) for _ in range(3)]
    settled(it, *replicas)
    refused(it.ask(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    it.yes(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT))
    it.yes(ROLLOUTS, it.evict(replicas[1], Cause.ROLLOUT))
    refused(it.ask(ROLLOUTS, it.evict(replicas[2], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_a_job_counts_only_what_was_taken_from_it() -> None:
    """Its replicas start and end by themselves. [G4]"""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.JOB, replicas=8, disruption=Disruption(max_unavailable=1)
    )
    one, two, waiting = it.ready(made), it.ready(made), it.pending(made)
    settled(it, one, two, waiting)
    assert ledger(it, "tight").missing == ()
    it.draining()
    stopped = it.stopping(one, Cause.DRAIN)
    refused(it.ask(DRAINS, it.evict(two, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    # Released ones of a job stay for a while, to be looked at.
    settled(it, it.moved(stopped, State.RELEASED))
    it.yes(DRAINS, it.evict(two, Cause.DRAIN))


def test_one_per_node_is_not_missed_on_a_node_that_was_emptied() -> None:
    """Or one drained node would hold up the drain of the next. [G4]"""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.PER_NODE, disruption=Disruption(max_unavailable=1)
    )
    one, two = it.ready(made), it.ready(made, it.plane.node("node-b"))
    refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, one, two)
    stopped = it.stopping(one, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    settled(it, it.moved(stopped, State.RELEASED))
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_who_is_missing_is_forgotten_with_the_budget_and_found_again_with_the_next() -> None:
    """A ledger that nobody settles would grow with every replica there ever was. [A2]"""
    it = Furnished()
    web = tight(it, 2)
    one = it.running(web)
    it.updated(web, disruption=None)
    assert ledger(it, "tight").missing == ()
    two = it.running(web)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    assert ledger(it, "tight").missing == ()
    settled(it, one, two)
    assert len(ledger(it, "tight").missing) == 2
    gone(it, it.stopping(one))
    assert ledger(it, "tight").missing == (two.metadata.uid,)
    assert ledger(it, "tight").out == {}


def test_a_drain_is_held_up_by_budgets_only_until_the_operators_deadline() -> None:
    """[C7.6]"""
    it = Furnished()
    running = it.ready(tight(it, 1, allowed=0))
    it.draining(reason="new disks", deadline=it.plane.at(60))
    it.term(DRAINS)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms - 1
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    it.plane.elapsed_ms += 1
    refused(it.ask(ROLLOUTS, it.evict(running, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.yes(DRAINS, it.evict(running, Cause.DRAIN))


def test_a_settlement_says_what_is_so_however_late_it_comes() -> None:
    """And of nobody else's replicas, nor of one that is gone. [C2, C6.7]"""
    it = Furnished()
    web = tight(it, 2)
    one, strange = it.ready(web), it.running()
    late = SettleDisruption("acme", "tight", (one.name, strange.name, "none"), it.term(DISRUPTIONS))
    it.at_stage(one, Stage.STARTING)
    it.yes(DISRUPTIONS, late)
    assert ledger(it, "tight").missing == (one.metadata.uid,)
    it.at_stage(it.get(one), Stage.READY)
    it.yes(DISRUPTIONS, late)
    assert ledger(it, "tight").missing == ()
    before = it.plane.store.revision
    it.yes(DISRUPTIONS, late)
    assert it.plane.store.revision == before


def test_only_its_controller_settles_and_only_what_is_there() -> None:
    """[C6.7]"""
    it = Furnished()
    it.pending()
    term = it.term(DISRUPTIONS)
    request = SettleDisruption("acme", "web", (), term)
    refused(it.ask(ADMIN, request), Reason.NOT_OWNER)
    missing = msgspec.structs.replace(request, workload="none")
    refused(it.ask(DISRUPTIONS, missing), Reason.MISSING)
    many = msgspec.structs.replace(request, replicas=("web-0-0",) * (SETTLED_MAX + 1))
    refused(it.ask(DISRUPTIONS, many), Reason.NOT_ALLOWED)
