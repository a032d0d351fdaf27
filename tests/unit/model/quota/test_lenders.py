"""What lenders claim: only what stays inside their nominal amounts, and gangs as wholes."""

from __future__ import annotations

from holdfast.model.kinds.replica import Pending, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.ledger import QuotaLedger, TenantLimits, TenantUse
from holdfast.model.quota.lenders import LenderClaims
from tests.plane import template

REASON = "CohortExhausted"


def waiting(
    name: str, cpu: str, *, gang: str = "", together: int = 1, why: str = REASON
) -> Replica:
    spec = ReplicaSpec(name, f"{gang or name}-uid", template(cpu=cpu), gang=gang)
    status = ReplicaStatus(pending=Pending(reasons={why: together}))
    meta = ObjectMeta(name=name, namespace="lender", uid=name)
    return Replica(meta, spec=spec, status=status)


def claimed(*replicas: Replica, nominal: int = 3, used: int = 0) -> int:
    ledger = QuotaLedger(
        {"lender": TenantLimits(hard={"cpu": nominal * 1_000})},
        {"lender": TenantUse(hard={"cpu": used * 1_000})},
    )
    found = LenderClaims(replicas).inside_nominal(ledger)
    return found.get("lender", {}).get("cpu", 0) // 1_000


def test_work_larger_than_what_is_left_of_the_nominal_amount_claims_nothing() -> None:
    """It would borrow itself, so that nobody holds anything back for it. [G1, V2]"""
    assert claimed(waiting("a", "2"), nominal=3, used=2) == 0
    assert claimed(waiting("a", "2"), waiting("b", "1"), nominal=3, used=2) == 1


def test_as_much_is_claimed_as_fits_together() -> None:
    """[G1]"""
    assert claimed(*(waiting(f"w{number}", "1") for number in range(5)), nominal=3) == 3
    assert claimed(waiting("a", "2"), waiting("b", "2"), nominal=3) == 2


def test_a_gang_claims_all_that_it_needs_at_once_or_nothing() -> None:
    """Its members report how many that is. [G1, G5]"""
    members = [waiting(f"g{number}", "1", gang="g", together=3) for number in range(4)]
    assert claimed(*members, nominal=3) == 3
    assert claimed(*members, nominal=2) == 0
    grows = [waiting(f"g{number}", "1", gang="g") for number in range(4)]
    assert claimed(*grows, nominal=2) == 2, "the rest of a gang that runs joins one by one"


def test_only_what_waits_for_the_cohort_is_a_claim() -> None:
    """[G1]"""
    claims = LenderClaims([waiting("a", "1"), waiting("b", "1", why="NodeFull")])
    ledger = QuotaLedger({"lender": TenantLimits(hard={"cpu": 9_000})})
    assert claims.inside_nominal(ledger)["lender"]["cpu"] == 1_000
    kept = claims.copy()
    claims.put("a", waiting("a", "1", why="NodeFull"))
    assert claims.inside_nominal(ledger) == {}
    assert kept.inside_nominal(ledger)["lender"]["cpu"] == 1_000
    assert kept.inside_nominal(QuotaLedger()) == {}, "another cohort"


def test_a_bound_replica_claims_nothing() -> None:
    """[G1]"""
    found = waiting("a", "1")
    bound = Replica(found.metadata, spec=found.spec, status=ReplicaStatus(state=State.BOUND))
    assert claimed(bound) == 0
