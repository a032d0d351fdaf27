"""Eviction: each cause has its owner, and must hold."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.placement import (
    Placement,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.lifecycle import CAUSE_OWNER, Cause, State
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Evict
from tests.furnished import AGENT, ANN, BOB, DRAINS, GARBAGE, ROLLOUTS, STOPPERS, Furnished
from tests.plane import NODES, SCHEDULER, refused, target, template
from tests.unit.commit.budgets import ledger

# These two need more than a running replica; they have tests of their own.
CAUSES = [cause for cause in Cause if cause not in (Cause.PREEMPTION, Cause.RECLAIM)]
HARSH = Taint("ill", effect=TaintEffect.NO_EXECUTE)


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_belongs_to_one_identity(cause: Cause) -> None:
    """[A9, C6.7]"""
    it = Furnished()
    running = it.running()
    it.draining()
    it.updated(it.node, taints=(HARSH,))
    owner = STOPPERS[CAUSE_OWNER[cause]]
    for identity in (*STOPPERS.values(), NODES, GARBAGE, AGENT):
        if identity == owner:
            continue
        leased = identity not in (ANN, AGENT)
        term = it.term(identity) if leased else it.term(owner) if owner != ANN else None
        answer = it.ask(identity, Evict(target(running), cause, "told", term))
        assert not isinstance(answer, Accepted), identity
    after = it.yes(owner, it.evict(running, cause))
    assert (after.status.state, after.status.cause) == (State.STOPPING, cause)
    assert after.status.transitions[-1].reason == cause.value
    assert (ledger(it).replicas, ledger(it).healthy) == (1, 0)


def test_a_person_stops_only_work_of_their_own_tenants() -> None:
    it = Furnished()
    running = it.running()
    stop = Evict(target(running), Cause.USER_DELETE)
    refused(it.ask(BOB, stop), Reason.NOT_ALLOWED)
    assert it.get(running).status.state is State.RUNNING
    it.yes(ANN, stop)


def test_a_preemption_is_not_an_eviction() -> None:
    """Nothing would say for whom, or that it is more important. [G4]"""
    it = Furnished()
    request = Evict(target(it.running()), Cause.PREEMPTION, term=it.term(SCHEDULER))
    refused(it.ask(SCHEDULER, request), Reason.NOT_ALLOWED)


def test_a_replica_stopped_as_idle_must_still_be_idle() -> None:
    """The caller has seen it idle, and has not counted what stopping it costs now."""
    it = Furnished()
    ready, running = it.ready(), it.running()
    refused(it.ask(ROLLOUTS, it.evict(ready, Cause.ROLLOUT, idle=True)), Reason.NOT_ALLOWED)
    assert it.get(ready).status.state is State.RUNNING
    it.yes(ROLLOUTS, it.evict(running, Cause.ROLLOUT, idle=True))


def test_a_drain_ends_when_the_operator_ends_it() -> None:
    """A stale drain controller stops nothing any more."""
    it = Furnished()
    running = it.running()
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.NOT_ALLOWED)
    it.draining()
    it.updated(it.node, drain=None)
    refused(it.ask(DRAINS, it.evict(running, Cause.DRAIN)), Reason.NOT_ALLOWED)


def test_a_taint_sends_away_what_does_not_tolerate_it_any_more() -> None:
    """By the taints of this moment and the servers' clock, whatever the controller has seen.
    [C6.7]"""
    it = Furnished()
    lasting = Toleration(
        "ill",
        TolerationOperator.EXISTS,
        effect=TaintEffect.NO_EXECUTE,
        toleration_seconds=30,
    )
    patient = it.plane.workload(
        "patient", template=template(placement=Placement(tolerations=(lasting,))), replicas=2
    )
    plain, patient_one = it.running(), it.running(patient)
    refused(it.ask(DRAINS, it.evict(plain, Cause.TAINT)), Reason.NOT_ALLOWED)
    it.updated(it.node, taints=(HARSH,))
    assert it.get(it.node).spec.taints[0].time_added is not None
    it.yes(DRAINS, it.evict(plain, Cause.TAINT))
    refused(it.ask(DRAINS, it.evict(patient_one, Cause.TAINT)), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 30_000 - it.plane.settings.skew_ms
    refused(it.ask(DRAINS, it.evict(patient_one, Cause.TAINT)), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 2 * it.plane.settings.skew_ms
    it.yes(DRAINS, it.evict(patient_one, Cause.TAINT))
    it.updated(it.node, taints=())
    other = it.running()
    refused(it.ask(DRAINS, it.evict(other, Cause.TAINT)), Reason.NOT_ALLOWED)
