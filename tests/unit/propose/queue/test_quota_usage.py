"""What tenants use of their quotas, as a scheduler sees it: checked before anything is sent."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.kinds.replica import Pending, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota, QuotaSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.propose.queue.quota_usage import QuotaUsage
from tests.plane import template
from tests.unit.propose.rig import Rig, Silence, refusal

HARD = CapacityClass.HARD


def quota(tenant: str = "acme", cohort: str = "", **hard: str) -> Quota:
    meta = ObjectMeta(name="default", namespace=tenant)
    return Quota(meta, spec=QuotaSpec(cohort=cohort, hard=dict(hard)))


def started(cpu: str, **more: str) -> Rig:
    rig = Rig()
    rig.node("node-a", cpu="64")
    rig.put(quota(cpu=cpu, **more))
    rig.start()
    return rig


def test_a_plane_without_quotas_counts_nothing() -> None:
    quota_usage = QuotaUsage()
    quota_usage.assume("u", "acme", HARD, {"cpu": 1_000}, "default")
    assert not quota_usage.is_counting
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 7) == (7, None)
    assert quota_usage.state("acme", HARD, "default") == ""


@pytest.mark.parametrize("most, allowed", [(1, 1), (3, 3), (4, 3), (1_000, 3)])
def test_as_many_are_allowed_as_the_quota_has_room_for(most: int, allowed: int) -> None:
    """[F2]"""
    quota_usage = QuotaUsage()
    quota_usage.limit("acme", quota(cpu="4"))
    quota_usage.assume("u", "acme", HARD, {"cpu": 500}, "default")
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", most) == (allowed, None)
    assert quota_usage.state("acme", HARD, "default") == "hard: cpu 500m of 4"


def test_a_full_quota_names_usage_and_limit() -> None:
    """[E3]"""
    quota_usage = QuotaUsage()
    quota_usage.limit("acme", quota(cpu="1"))
    quota_usage.assume("u", "acme", HARD, {"cpu": 1_000}, "default")
    allowed, no = quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 5)
    assert no is not None
    assert (allowed, no.reason) == (0, Reason.QUOTA_EXCEEDED)
    assert no.message == "tenant acme uses 1 of 1 cpu, 1 more is requested"
    assert quota_usage.unassume("u") == "acme"
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 5) == (1, None)


def test_tenants_of_one_cohort_share_what_they_have() -> None:
    quota_usage = QuotaUsage()
    lent = QuotaSpec(cohort="c", hard={"cpu": "2"}, borrowing={"cpu": "2"})
    quota_usage.limit("acme", msgspec.structs.replace(quota(), spec=lent))
    quota_usage.limit("other", msgspec.structs.replace(quota("other"), spec=lent))
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 9) == (4, None)
    quota_usage.assume("u", "other", HARD, {"cpu": 3_000}, "default")
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 9) == (1, None)


def lender(cpu: str, why: str = "CohortExhausted") -> Replica:
    """A replica of a lender that waits."""
    spec = ReplicaSpec("web", "w", template(cpu=cpu))
    meta = ObjectMeta(name="web-0-0", namespace="bob", uid="bob-0")
    return Replica(meta, spec=spec, status=ReplicaStatus(pending=Pending(reasons={why: 1})))


def test_only_what_a_lender_may_have_without_borrowing_is_kept_for_it() -> None:
    """Bob uses 2 of 3 and waits for 2 more, which he would have to borrow. [G1, V2]"""
    usage = QuotaUsage()
    for tenant, cpus in (("ada", "4"), ("bob", "3")):
        spec = QuotaSpec(cohort="c", hard={"cpu": cpus}, borrowing={"cpu": "9"})
        usage.limit(tenant, msgspec.structs.replace(quota(tenant), spec=spec))
    usage.assume("a", "ada", HARD, {"cpu": 4_000}, "default")
    usage.assume("b", "bob", HARD, {"cpu": 2_000}, "default")
    usage.notice(None, lender("2"))
    assert usage.room("ada", HARD, {"cpu": 500}, "default", 1) == (1, None)
    usage.notice(lender("2"), lender("1"))
    _, refused = usage.room("ada", HARD, {"cpu": 500}, "default", 1)
    assert refused is not None
    assert refused.reason is Reason.CLAIMED_BY_LENDERS
    assert usage.notice(lender("1"), lender("1", "NodeFull")), "others may have it now"
    assert usage.room("ada", HARD, {"cpu": 500}, "default", 1) == (1, None)


def budgeted(**classes: dict[str, str]) -> Rig:
    rig = Rig()
    rig.node("node-a", cpu="64")
    for name in classes:
        rig.put(PriorityClass(ObjectMeta(name=name)))
    spec = QuotaSpec(priority_classes=dict(classes))
    rig.put(Quota(ObjectMeta(name="default", namespace="acme"), spec=spec))
    rig.start()
    return rig


def test_a_budget_counts_the_work_of_its_priority_class_alone() -> None:
    """[B6]"""
    quota_usage = QuotaUsage()
    spec = QuotaSpec(hard={"cpu": "9"}, priority_classes={"high": {"cpu": "2"}})
    quota_usage.limit("acme", msgspec.structs.replace(quota(), spec=spec))
    quota_usage.assume("u", "acme", HARD, {"cpu": 1_000}, "high")
    quota_usage.assume("v", "acme", HARD, {"cpu": 1_000}, "default")
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "high", 5) == (1, None)
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "default", 9) == (7, None)
    assert (
        quota_usage.state("acme", HARD, "high")
        == "hard: cpu 2 of 9; priority class high: cpu 1 of 2"
    )
    quota_usage.unassume("u")
    assert quota_usage.room("acme", HARD, {"cpu": 1_000}, "high", 5) == (2, None)


def test_work_beyond_the_budget_of_its_class_waits_with_the_reason_and_is_not_sent() -> None:
    """[B6, D2, E3]"""
    rig = budgeted(high={"cpu": "1"})
    for number in range(3):
        rig.replica(f"web-{number}-0", template=template(priority_class="high"))
    rig.replica("other-0-0")
    assert [bind.target.name for bind in rig.binds] == ["web-0-0", "other-0-0"]
    pending = rig.get("web-1-0").status.pending
    assert pending.reasons == {"PriorityBudgetExceeded": 1}
    assert (pending.verdict, pending.owner) == ("BlockedBy", "operator")
    assert pending.smallest_change == (
        "1 more cpu in the budget of tenant acme for priority class high"
    )


def test_a_released_budget_is_taken_by_a_replica_that_waits_for_that_budget() -> None:
    """However many wait for another one, and have waited longer. [B6, C7.1, D2]"""
    rig = budgeted(high={"cpu": "1"}, low={"cpu": "1"})
    names = [f"low-{number}-0" for number in range(6)]
    for name in names:
        rig.replica(name, template=template(priority_class="low"), priority=1)
    for name in ("high-0-0", "high-1-0"):
        rig.replica(name, template=template(priority_class="high"), priority=2)
    assert [bind.target.name for bind in rig.binds] == ["low-0-0", "high-0-0"]
    rig.status(rig.get("high-0-0"), state=State.RELEASED)
    assert [bind.target.name for bind in rig.binds][2:] == ["high-1-0"]


def test_work_beyond_the_free_quota_is_not_even_sent() -> None:
    """It waits with the reason, the change that would help, and who acts next.
    [C7.1, D2, E3]"""
    rig = started("2")
    for number in range(5):
        rig.replica(f"web-{number}-0")
    assert len(rig.binds) == 2
    pending = rig.get("web-4-0").status.pending
    assert pending.reasons == {"QuotaExceeded": 1}
    assert (pending.verdict, pending.owner) == ("BlockedBy", "operator")
    assert pending.message == "tenant acme uses 2 of 2 cpu, 1 more is requested"
    assert pending.smallest_change == "1 more cpu in the quota of tenant acme"
    writes = len(rig.reports)
    rig.pass_time(600_000)
    assert len(rig.binds) == 2
    assert len(rig.reports) == writes, "an unchanged wait writes nothing"


def test_released_quota_is_taken_by_a_replica_that_waits() -> None:
    """[C7.1, D2]"""
    rig = started("2")
    for number in range(4):
        rig.replica(f"web-{number}-0")
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert len(rig.binds) == 3
    rig.put(quota(cpu="10"))
    assert len(rig.binds) == 4


def test_a_first_quota_counts_binds_in_flight() -> None:
    """They started when nothing was counted, and will be charged all the same. [F4]"""
    rig = Rig()
    rig.node("node-a", cpu="64")
    rig.start()
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.put(quota(cpu="1"))
    rig.replica("web-1-0")
    assert [bind.target.name for bind in rig.binds] == ["web-0-0"]
    assert rig.get("web-1-0").status.pending.reasons == {"QuotaExceeded": 1}


def test_a_bind_that_comes_to_nothing_gives_its_quota_back() -> None:
    """[C7.1]"""
    rig = started("1")
    rig.verdicts = [Silence()]
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert [bind.target.name for bind in rig.binds] == ["web-0-0"]
    rig.remove(rig.get("web-0-0"))
    assert [bind.target.name for bind in rig.binds] == ["web-0-0", "web-1-0"]


def test_a_quota_that_the_commit_sees_otherwise_is_not_retried_again_and_again() -> None:
    """Another charge is not seen yet: one refused bind, then its change. [D2, E5]"""
    rig = started("1")
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED, "no")] * 50
    rig.replica()
    rig.pass_time(30_000)
    assert len(rig.binds) == 1


def test_a_quota_that_comes_later_counts_what_is_there() -> None:
    rig = Rig()
    rig.node("node-a", cpu="64")
    rig.start()
    for number in range(3):
        rig.replica(f"web-{number}-0")
    rig.put(quota(cpu="4"))
    for number in range(3, 6):
        rig.replica(f"web-{number}-0")
    assert len(rig.binds) == 4


def test_more_than_the_whole_quota_is_never_had() -> None:
    """[E3, F2]"""
    rig = started("2")
    rig.replica(cpu="3")
    pending = rig.get("web-0-0").status.pending
    assert (pending.verdict, pending.owner) == ("Never", "user")
    assert pending.smallest_change == "1 more cpu in the quota of tenant acme"
