"""The rule of preemption, by example."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Binding, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Resources
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.preemption import Contender, Loss, eviction_refusal, loss_of, preempts_refusal
from holdfast.model.quota.ledger import QuotaLedger, TenantLimits, TenantUse
from holdfast.model.refusal import Reason
from holdfast.model.time import timestamp
from tests.plane import template

HARD, RECLAIMABLE, SOFT = CapacityClass


def cohort(risk: int, fraud: int) -> QuotaLedger:
    """Risk and fraud have a nominal 4 cpus each and lend them to each other."""
    limits = TenantLimits(hard={"cpu": 4_000}, borrowing={"cpu": 4_000})
    return QuotaLedger(
        limits={"risk": limits, "fraud": limits},
        used={"risk": TenantUse(hard={"cpu": risk}), "fraud": TenantUse(hard={"cpu": fraud})},
    )


def work(tenant: str, priority: int, of: CapacityClass, **more: Any) -> Contender:
    fields = {"cohort": "shared", "amounts": {"cpu": 1_000, "replicas": 1}, **more}
    return Contender(tenant, priority, of, **fields)


LENT = cohort(6_000, 2_000)


@pytest.mark.parametrize(
    "preemptor, victim, ledger, rule",
    [
        # Lower value, and charged as reclaimable.
        (work("fraud", 10, HARD), work("risk", 9, RECLAIMABLE), LENT, None),
        (work("fraud", 10, RECLAIMABLE), work("fraud", 9, RECLAIMABLE), LENT, None),
        (work("fraud", 10, HARD, cohort="a"), work("x", 9, RECLAIMABLE, cohort="b"), LENT, None),
        (work("fraud", 10, HARD), work("risk", 10, RECLAIMABLE), LENT, "Priority"),
        (work("fraud", 10, HARD), work("risk", 11, RECLAIMABLE), LENT, "Priority"),
        # Committed work inside its share is safe from any priority.
        (work("fraud", 10, HARD), work("fraud", 1, HARD), LENT, "Nominal"),
        (work("risk", 10, HARD), work("fraud", 1, HARD), LENT, "Nominal"),
        (work("fraud", 10, HARD), work("risk", 1, HARD), cohort(4_000, 2_000), "Nominal"),
        (work("fraud", 10, HARD), work("free", 1, HARD), LENT, "Nominal"),
        # The lender reclaims, whatever the priorities.
        (work("fraud", 10, HARD), work("risk", 99, HARD), LENT, None),
        (work("fraud", 10, HARD), work("risk", 1, HARD), LENT, None),
        # Not beyond its own share, not as reclaimable work, not of another cohort or resource.
        (work("fraud", 10, HARD), work("risk", 1, HARD), cohort(5_000, 3_500), "NoReclaim"),
        (work("fraud", 10, RECLAIMABLE), work("risk", 1, HARD), LENT, "NoReclaim"),
        (work("fraud", 10, HARD), work("risk", 1, HARD, cohort="b"), LENT, "Nominal"),
        (work("fraud", 10, HARD, amounts={"gpu": 1}), work("risk", 1, HARD), LENT, "NoReclaim"),
        (work("fraud", 10, HARD), work("risk", 1, HARD, amounts={"gpu": 1}), LENT, "NoReclaim"),
        (work("risk", 10, HARD), work("risk", 1, HARD), LENT, "NoReclaim"),
        (work("free", 10, HARD), work("risk", 1, HARD), LENT, "NoReclaim"),
    ],
)
def test_a_legal_victim_is_of_lower_value_or_borrowed(
    preemptor: Contender, victim: Contender, ledger: QuotaLedger, rule: str | None
) -> None:
    """[G1, G4, C6.8, D3]"""
    refusal = eviction_refusal(preemptor, victim, ledger)
    assert (refusal.details["rule"] if refusal is not None else None) == rule
    assert refusal is None or refusal.reason is Reason.VICTIM_PROTECTED


def test_only_a_class_that_says_so_preempts() -> None:
    """[G4]"""
    for spec, is_allowed in ((None, False), ({}, False), ({"preempts": True}, True)):
        found = None
        if spec is not None:
            found = PriorityClass(ObjectMeta(name="high"), spec=PriorityClassSpec(**spec))
        refusal = preempts_refusal(found, "high")
        assert (refusal is None) == is_allowed
        assert refusal is None or refusal.reason is Reason.MAY_NOT_PREEMPT


def lost(
    limits: Resources | None = None, *, began_s: int = 0, took_s: int = 0, restarts: int = 0
) -> Loss:
    """The loss of a replica that was bound at 100 s, began later and was ready after that."""
    bound, began = timestamp(100_000), timestamp(100_000 + began_s * 1_000)
    spec = ReplicaSpec("web", "uid", template(limits=limits or Resources()))
    status = ReplicaStatus(
        state=State.RUNNING,
        stage=Stage.READY,
        binding=Binding("n", "n-uid", at=bound),
        process=Process(started_at=began, restarts=restarts),
        ready_since=timestamp(100_000 + (began_s + took_s) * 1_000),
    )
    return loss_of(Replica(ObjectMeta(name="web-0-0"), spec=spec, status=status))


def test_work_that_takes_long_to_start_is_a_greater_loss() -> None:
    """As much as if it had worked for so long; one that restarted in place took less. [G4]"""
    assert lost(took_s=1) < lost(took_s=60)
    assert lost(began_s=10, restarts=1) < lost(restarts=1), "older work has done more"
    assert lost(began_s=50, restarts=1) < lost(began_s=50), "nothing was pulled for a restart"


def test_a_firmer_service_class_is_a_greater_loss() -> None:
    """Before how long it has run, and after its priority. [G4, A3]"""
    guaranteed = lost(Resources(cpu="1", memory="1Gi"))
    burstable = lost(began_s=-1_000)
    assert burstable < guaranteed
    assert guaranteed < msgspec.structs.replace(burstable, priority=1)
