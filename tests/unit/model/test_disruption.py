"""How much of a workload may be taken away at once, by example."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.disruption import (
    BUDGETED,
    absent,
    allowed_missing,
    counts_missing,
    desired_of,
    disrupted,
    disruption_refusal,
    lost,
    made_up,
)
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Disruption, Workload, WorkloadSpec, WorkloadType
from holdfast.model.ledger import DisruptionLedger
from holdfast.model.lifecycle import Cause
from holdfast.model.meta import ObjectMeta
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
    """Both percentages round up, so that what must stay is never one too few. [A3]"""
    assert allowed_missing(budget, desired) == allowed


def test_one_budget_serves_all_causes() -> None:
    """A rollout that took one leaves none for a drain, until that loss is made up for. [G4, H2]"""
    ledger = disrupted(DisruptionLedger(allowed=1), "a", Cause.ROLLOUT)
    refusal = disruption_refusal(ledger, "b", Cause.DRAIN)
    assert refusal is not None
    assert refusal.reason is Reason.DISRUPTION_BUDGET
    assert refusal.details == {"missing": "1", "allowed": "1"}
    assert disruption_refusal(made_up(ledger, "a"), "b", Cause.DRAIN) is None


def test_what_is_down_already_counts_once_and_costs_nothing_to_take() -> None:
    """A drain waits while another node is down, but may clear the very replica that is. [H2]"""
    ledger = lost(DisruptionLedger(allowed=1), "a")
    assert disruption_refusal(ledger, "b", Cause.DRAIN) is not None
    assert disruption_refusal(ledger, "a", Cause.DRAIN, available=False) is None
    both = disrupted(ledger, "a", Cause.DRAIN)
    assert lost(both, "a") == both
    assert disruption_refusal(both, "b", Cause.DRAIN) is not None
    assert made_up(both, "a") == DisruptionLedger(allowed=1)


def test_two_missing_for_two_reasons_count_as_two() -> None:
    """Counting only one of the lists would let a third go. [G4]"""
    ledger = disrupted(DisruptionLedger(allowed=2, missing=("a",)), "b", Cause.DRAIN)
    assert disruption_refusal(ledger, "c", Cause.PREEMPTION) is not None


def test_a_place_without_a_replica_is_missing_and_one_too_many_is_not() -> None:
    """What should be there is compared with what works. [G4]"""
    ledger = DisruptionLedger(allowed=1, desired=3, replicas=3)
    assert absent(ledger) == 0
    assert absent(msgspec.structs.replace(ledger, replicas=2)) == 1
    assert absent(lost(msgspec.structs.replace(ledger, replicas=4), "a")) == 0
    assert absent(lost(disrupted(ledger, "a", Cause.DRAIN), "b")) == 2


def test_work_that_ends_by_itself_has_no_count_to_fall_short_of() -> None:
    """Nor is its work missing before it is ready; one per node has no count either. [G4]"""
    budget = Disruption(max_unavailable=1)
    counted = {
        type_: (desired_of(it), counts_missing(it))
        for type_ in WorkloadType
        for it in [
            Workload(
                ObjectMeta(name="w"),
                spec=WorkloadSpec(template=Template(), type=type_, replicas=4, disruption=budget),
            )
        ]
    }
    assert counted == {
        WorkloadType.SERVICE: (4, True),
        WorkloadType.PER_NODE: (None, True),
        WorkloadType.JOB: (None, False),
        WorkloadType.CRON: (None, False),
    }


@pytest.mark.parametrize("cause", Cause)
def test_only_those_who_serve_somebody_else_must_ask(cause: Cause) -> None:
    """The owner's own wishes, and clearing away what failed, are counted but never refused."""
    spent = DisruptionLedger(allowed=0)
    assert (disruption_refusal(spent, "a", cause) is not None) is (cause in BUDGETED)
    assert disruption_refusal(DisruptionLedger(), "a", cause) is None
    assert disrupted(spent, "a", cause).out == {"a": cause}
    assert frozenset({Cause.DRAIN, Cause.ROLLOUT, Cause.PREEMPTION}) == BUDGETED
