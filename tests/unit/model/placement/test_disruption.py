"""How much of a workload may be taken away at once, by example."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Disruption, Workload, WorkloadSpec, WorkloadType
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.disruption import (
    BUDGETED,
    allowed_missing,
    count_change,
    desired_of,
    disruption_refusal,
    is_missing,
    missing_count,
)
from holdfast.model.quota.ledger import DisruptionLedger
from holdfast.model.refusal import Reason


@pytest.mark.parametrize(
    "budget, desired, allowed",
    [
        (None, 5, None),
        (Disruption(), 5, None),
        (Disruption(max_unavailable=2), 5, 2),
        (Disruption(max_unavailable=0), 5, 0),
        (Disruption(max_unavailable="25%"), 5, 2),
        (Disruption(max_unavailable="1%"), 1, 1),
        (Disruption(max_unavailable="0%"), 5, 0),
        (Disruption(min_available=4), 5, 1),
        (Disruption(min_available=9), 5, 0),
        (Disruption(min_available=0), 5, 5),
        (Disruption(min_available="50%"), 5, 2),
        (Disruption(min_available="100%"), 5, 0),
        (Disruption(min_available="1%"), 1, 0),
        (Disruption(min_available=0), 0, 0),
    ],
)
def test_a_budget_means_what_it_means_in_kubernetes(
    budget: Disruption | None, desired: int, allowed: int | None
) -> None:
    """Both percentages round up, so that what must stay is never one too few."""
    assert allowed_missing(budget, desired) == allowed


def changed(ledger: DisruptionLedger, **changes: Any) -> DisruptionLedger:
    return msgspec.structs.replace(ledger, **changes)


def test_what_is_missing_already_leaves_less_and_costs_nothing_to_take() -> None:
    """A drain waits while another node is down, but may clear the very replica that is."""
    ledger = DisruptionLedger(allowed=1, desired=3, replicas=3, healthy=2)
    refusal = disruption_refusal(ledger, Cause.DRAIN)
    assert refusal is not None
    assert refusal.reason is Reason.DISRUPTION_BUDGET
    assert refusal.details == {"missing": "1", "allowed": "1"}
    assert disruption_refusal(ledger, Cause.DRAIN, available=False) is None
    assert disruption_refusal(changed(ledger, healthy=3), Cause.DRAIN) is None
    assert disruption_refusal(changed(ledger, allowed=2), Cause.DRAIN) is None


def test_a_place_without_a_replica_is_missing_and_one_too_many_is_not() -> None:
    """What should be there is compared with what works."""
    ledger = DisruptionLedger(allowed=1, desired=3, replicas=3, healthy=3)
    assert missing_count(ledger) == 0
    assert missing_count(changed(ledger, replicas=2, healthy=2)) == 1
    assert missing_count(changed(ledger, replicas=4, healthy=3)) == 0
    assert missing_count(changed(ledger, replicas=4, healthy=4)) == 0


def test_a_ledger_that_counts_nothing_healthy_holds_every_replica_in_place() -> None:
    """As one from before there was this count: its evictions wait for a recount."""
    for desired in (None, 3):
        old = DisruptionLedger(allowed=1, desired=desired, replicas=3)
        assert disruption_refusal(old, Cause.DRAIN) is not None


def replica(state: State, stage: Stage = Stage.READY, cause: Cause | None = None) -> Replica:
    status = ReplicaStatus(state=state, stage=stage, cause=cause)
    spec = ReplicaSpec(workload="w", workload_uid="u", template=Template())
    return Replica(ObjectMeta(name="w-0-0", namespace="acme"), spec=spec, status=status)


@pytest.mark.parametrize(
    "one, missing",
    [
        (replica(State.PENDING, Stage.QUEUED), "service node"),
        (replica(State.RUNNING, Stage.STARTING), "service node"),
        (replica(State.RUNNING), ""),
        (replica(State.RUNNING, Stage.SERVING), ""),
        (replica(State.UNKNOWN), "service node"),
        (replica(State.STOPPING, cause=Cause.DRAIN), "service node job"),
        (replica(State.FAILED), "service node"),
        (replica(State.RELEASED), "service"),
        (replica(State.RELEASED, cause=Cause.DRAIN), "service"),
    ],
)
def test_who_counts_as_missing_where(one: Replica, missing: str) -> None:
    """At a place of a service whatever does not work; where work may end for good, until it is
    released; of a job only what was taken from it."""
    types = {
        "service": WorkloadType.SERVICE,
        "node": WorkloadType.PER_NODE,
        "job": WorkloadType.JOB,
    }
    assert [name for name, of in types.items() if is_missing(of, one)] == missing.split()
    for of in types.values():
        ledger = DisruptionLedger(type=of)
        born = count_change(ledger, None, one)
        assert (born.replicas, born.healthy) == (1, int(not is_missing(of, one)))
        assert count_change(born, one, None) == ledger


def test_work_that_ends_by_itself_has_no_count_to_fall_short_of() -> None:
    """One per node has no count either, nor has work without a budget."""
    budget = Disruption(max_unavailable=1)
    wanted = {
        (of, is_stated): desired_of(
            Workload(
                ObjectMeta(name="w"),
                spec=WorkloadSpec(
                    template=Template(),
                    type=of,
                    replicas=4,
                    disruption=budget if is_stated else None,
                ),
            )
        )
        for of in WorkloadType
        for is_stated in (True, False)
    }
    stated = wanted.pop((WorkloadType.SERVICE, True))
    assert (stated, {*wanted.values()}) == (4, {None})


@pytest.mark.parametrize("cause", Cause)
def test_only_replicas_that_serve_others_must_ask(cause: Cause) -> None:
    """The owner's own wishes, and clearing away what failed, are counted but never refused."""
    spent = DisruptionLedger(allowed=0)
    assert (disruption_refusal(spent, cause) is not None) is (cause in BUDGETED)
    assert disruption_refusal(DisruptionLedger(), cause) is None
    others = {Cause.DRAIN, Cause.TAINT, Cause.ROLLOUT, Cause.PREEMPTION}
    assert others == BUDGETED
