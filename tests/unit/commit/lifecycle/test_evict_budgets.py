"""Disruption budgets: one for all causes, and a ledger of how many are healthy."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Remove
from tests.furnished import DRAINS, ROLLOUTS, Furnished
from tests.plane import SCHEDULER, WORKLOADS, accepted, refused, template
from tests.unit.commit.budgets import ledger, tight


def gone(it: Furnished, replica: Any) -> None:
    """Released, and cleared away."""
    it.moved(replica, State.RELEASED)
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    assert it.get(replica) is None


def test_drains_rollouts_and_preemptions_share_one_budget() -> None:
    """[G4]"""
    it = Furnished()
    made = template(priority_class="low")
    low = it.plane.workload(
        "tight", template=made, replicas=4, disruption=Disruption(max_unavailable=2)
    )
    high = it.of_class("high", cpu="8")
    other = it.plane.node("node-b")
    replicas = [it.ready(low, other), *(it.ready(low) for _ in range(3))]
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
    assert (ledger(it, "tight").replicas, ledger(it, "tight").healthy) == (4, 0)


def test_two_evictions_at_the_same_moment_cannot_both_take_the_last_of_a_budget() -> None:
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)
    it.draining()
    it.term(DRAINS), it.term(ROLLOUTS)
    first, second = it.plane.ask_all(
        (DRAINS, it.evict(one, Cause.DRAIN)), (ROLLOUTS, it.evict(two, Cause.ROLLOUT))
    )
    accepted(first)
    refused(second, Reason.DISRUPTION_BUDGET)


def test_a_replica_that_is_not_ready_counts_and_costs_nothing_to_stop() -> None:
    """From its birth on."""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.running(web)
    assert (ledger(it, "tight").replicas, ledger(it, "tight").healthy) == (2, 1)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.stopping(two, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_a_replica_that_is_no_longer_ready_counts_at_once() -> None:
    """In the transaction that reports it, even if the replica has failed."""
    it = Furnished()
    web = tight(it, 3)
    other = it.plane.node("node-b")
    _, two, three = it.ready(web, other), it.ready(web), it.ready(web)
    failed = it.moved(two, State.FAILED)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    gone(it, failed)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    four = it.ready(web)
    unready = it.at_stage(four, Stage.STARTING)
    refused(it.ask(ROLLOUTS, it.evict(three, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.at_stage(unready, Stage.READY)
    it.yes(ROLLOUTS, it.evict(three, Cause.ROLLOUT))


def test_a_loss_counts_until_its_successor_works() -> None:
    """At no moment in between can a second one be taken: while it stops, after it is gone, when the
    next one is born, and while that starts."""
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web), it.ready(web)

    def refuses() -> None:
        refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)

    born: list[Any] = []
    stopped = it.stopping(one, Cause.ROLLOUT)
    refuses()
    gone(it, stopped)
    refuses()
    born.append(it.running(web))
    refuses()
    it.at_stage(born[0], Stage.READY)
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_what_is_too_many_makes_up_for_what_is_missing() -> None:
    """A rollout that starts the new one first takes the old one without a budget's leave."""
    it = Furnished()
    web = tight(it, 2, allowed=0)
    replicas = [it.ready(web) for _ in range(3)]
    refused(it.ask(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    it.yes(ROLLOUTS, it.evict(replicas[0], Cause.ROLLOUT))
    it.yes(ROLLOUTS, it.evict(replicas[1], Cause.ROLLOUT))
    refused(it.ask(ROLLOUTS, it.evict(replicas[2], Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)


def test_a_job_counts_only_what_was_taken_from_it() -> None:
    """Its replicas start and end by themselves."""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.JOB, replicas=8, disruption=Disruption(max_unavailable=1)
    )
    one, two, _ = it.ready(made), it.ready(made), it.pending(made)
    assert (ledger(it, "tight").replicas, ledger(it, "tight").healthy) == (3, 3)
    it.draining()
    stopped = it.stopping(one, Cause.DRAIN)
    refused(it.ask(DRAINS, it.evict(two, Cause.DRAIN)), Reason.DISRUPTION_BUDGET)
    # Released ones of a job stay for a while, to be looked at.
    it.moved(stopped, State.RELEASED)
    it.yes(DRAINS, it.evict(two, Cause.DRAIN))


def test_one_per_node_is_not_missed_on_a_node_that_was_emptied() -> None:
    """Or one drained node would hold up the drain of the next."""
    it = Furnished()
    made = it.plane.workload(
        "tight", type=WorkloadType.PER_NODE, disruption=Disruption(max_unavailable=1)
    )
    one, two = it.ready(made), it.ready(made, it.plane.node("node-b"))
    stopped = it.stopping(one, Cause.ROLLOUT)
    refused(it.ask(ROLLOUTS, it.evict(two, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.moved(stopped, State.RELEASED)
    it.yes(ROLLOUTS, it.evict(two, Cause.ROLLOUT))


def test_a_budget_that_is_stated_later_finds_every_replica_counted() -> None:
    """What is healthy is counted with and without a budget."""
    it = Furnished()
    web = tight(it, 2)
    one = it.ready(web)
    it.updated(web, disruption=None)
    two = it.running(web)
    it.updated(web, disruption=Disruption(max_unavailable=1))
    assert (ledger(it, "tight").replicas, ledger(it, "tight").healthy) == (2, 1)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    gone(it, it.stopping(two))
    assert (ledger(it, "tight").replicas, ledger(it, "tight").healthy) == (1, 1)


def test_one_that_is_out_of_contact_counts_until_it_is_ready_again() -> None:
    it = Furnished()
    web = tight(it, 2)
    one, two = it.ready(web, it.plane.node("node-b")), it.ready(web)
    lost = it.unknown(two)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.cleared()
    back = it.moved(lost, State.RUNNING)
    refused(it.ask(ROLLOUTS, it.evict(one, Cause.ROLLOUT)), Reason.DISRUPTION_BUDGET)
    it.at_stage(back, Stage.READY)
    it.yes(ROLLOUTS, it.evict(one, Cause.ROLLOUT))


def test_victims_of_one_preemption_share_the_budget() -> None:
    """The second of them sees what the first has cost. [G4]"""
    it = Furnished()
    made = template(priority_class="low")
    low = it.plane.workload(
        "tight", template=made, replicas=2, disruption=Disruption(max_unavailable=1)
    )
    both = it.ready(low), it.ready(low)
    high = it.pending(it.of_class("high", cpu="8"))
    refused(it.ask(SCHEDULER, it.preempt(high, *both)), Reason.DISRUPTION_BUDGET)
    it.updated(low, disruption=Disruption(max_unavailable=2))
    it.yes(SCHEDULER, it.preempt(high, *both))


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
