"""The machine as a whole: what waits for a place, and what wakes it."""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.node import NodeDrain
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant, TenantSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.time import timestamp
from tests.unit.propose.rig import Rig, refusal, small


def test_a_replica_without_a_place_says_why_and_is_woken_by_a_new_node() -> None:
    """[E1, E3, V3]"""
    rig = small()
    rig.replica("web-0-0", cpu="4")
    pending = rig.get("web-0-0").status.pending
    assert pending.reasons == {"NodeFull": 1}
    assert pending.verdict == "NotWithThisFleet"
    assert pending.owner == "operator"
    assert pending.nearest_miss == "node node-0: needs 4 cpu, 1 is free"
    assert pending.since is not None
    rig.node("node-1")
    assert rig.where("web-0-0") == "node-1"


def test_a_replica_without_a_place_is_woken_by_one_that_was_released() -> None:
    """[E1]"""
    rig = small()
    rig.replica("web-0-0")
    rig.replica("web-1-0")
    assert rig.get("web-1-0").status.pending.verdict == "Waiting"
    rig.status(rig.get("web-0-0"), state=State.STOPPING)
    assert len(rig.binds) == 1, "what is being stopped still holds its place"
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert rig.where("web-1-0") == "node-0"


def test_a_drain_that_ends_wakes_the_replicas_that_it_kept_away() -> None:
    """[E1, F2]"""
    rig = Rig()
    node = rig.node("node-0", drain=NodeDrain(reason="repair"))
    rig.start()
    rig.replica()
    assert rig.get("web-0-0").status.pending.reasons == {"NodeDraining": 1}
    spec = msgspec.structs.replace(node.spec, drain=None)
    rig.put(msgspec.structs.replace(node, spec=spec))
    assert rig.where("web-0-0") == "node-0"


def test_a_rule_that_changes_is_evaluated_again() -> None:
    """Results under the old one are invalid. [E1]"""
    rig = Rig()
    rig.node("node-0", region="eu")
    acme = rig.objects["tenants"]["", "acme"]
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("us",))))
    rig.start()
    rig.replica("web-0-0")
    assert rig.get("web-0-0").status.pending.reasons == {"ResidencyForbidden": 1}
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("eu",))))
    assert rig.where("web-0-0") == "node-0"
    rig.put(msgspec.structs.replace(acme, spec=TenantSpec(regions=("us",))))
    rig.replica("web-1-0")
    assert rig.where("web-1-0") == ""


def test_events_that_cannot_help_cost_no_decision() -> None:
    """Heartbeats that a node's status shows, and nodes that are too small."""
    rig = small()
    rig.replica("web-0-0", cpu="4")
    entry = rig.scheduler.queue.get(("acme", "web-0-0"))
    assert entry is not None
    turns = entry.turns
    node = rig.objects["nodes"]["", "node-0"]
    for version in range(50):
        status = msgspec.structs.replace(node.status, agent_version=str(version))
        rig.put(msgspec.structs.replace(node, status=status))
    rig.node("node-1", cpu="2")
    assert entry.turns == turns


def test_a_lost_event_is_found_by_the_resync() -> None:
    """[E1, V2]"""
    rig = small(slots=4)
    rig.is_deaf = True
    rig.replica()
    rig.pass_time(20_000)
    assert rig.binds == []
    rig.is_deaf = False
    rig.pass_time(60_000)
    assert rig.where("web-0-0") == "node-0"


def test_every_parked_replica_gets_another_turn_at_the_resync() -> None:
    """Whatever event was missed. [E1]"""
    rig = small(slots=4)
    rig.verdicts = [refusal(Reason.GRANT_EXPIRED)]
    rig.replica()
    assert len(rig.binds) == 1
    rig.pass_time(61_000)
    assert rig.where("web-0-0") == "node-0"


def limited(cpu: str) -> Rig:
    rig = small(slots=100)
    rig.put(Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": cpu})))
    return rig


def test_a_release_tries_one_of_those_that_the_servers_refused_unexpectedly() -> None:
    """A thousand that are refused again would be a storm. [D2, E5]"""
    rig = limited("50")
    rig.replica("web-0-0")
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED)] * 21
    for index in range(1, 21):
        rig.replica(f"web-{index}-0")
    sent = len(rig.binds)
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert len(rig.binds) == sent + 1
    rig.replica("other-0-0")
    rig.status(rig.get("other-0-0"), state=State.RELEASED)
    assert len(rig.binds) == sent + 22, "one is accepted, and then all that are like it follow"


def test_what_fits_the_quota_is_tried_whatever_else_waits() -> None:
    """Large ones that came first and do not fit take no turn of others. [C7.1, D2, E1]"""
    rig = limited("8")
    for index in range(8):
        rig.replica(f"there-{index}-0")
    for index in range(6):
        rig.replica(f"large-{index}-0", cpu="8")
    rig.replica("small-0-0")
    rig.status(rig.get("there-0-0"), state=State.RELEASED)
    assert rig.where("small-0-0") == "node-0"
    assert not any(rig.where(f"large-{index}-0") for index in range(6))


def test_a_reservation_that_ends_releases_place_and_quota() -> None:
    """[D2, E1]"""
    rig = small(slots=2)
    spec = ReservationSpec(
        owner=ReservationOwner(kind="Workload", name="web", uid="w"),
        intent=Intent.RECOVERY,
        deadline=timestamp(rig.now.wall_ms + 60_000),
    )
    claims = (Claim(node="node-0", charge={"cpu": 1000, "replicas": 1}),)
    meta = ObjectMeta(name="web-recovery", namespace="acme")
    held = rig.put(Reservation(meta, spec=spec, status=ReservationStatus(claims=claims)))
    rig.verdicts = [refusal(Reason.QUOTA_EXCEEDED)]
    rig.replica("web-0-0")
    rig.replica("web-1-0", cpu="2")
    assert len(rig.binds) == 1
    rig.remove(held)
    rig.pass_time(1_000)
    assert rig.where("web-0-0") == "node-0"
    assert len(rig.binds) == 2


def test_work_of_a_cohort_wakes_its_other_tenants_only() -> None:
    """[D2]"""
    rig = small(slots=100)
    for tenant, cohort in (("acme", "x"), ("kin", "x"), ("alien", "y"), ("loner", "")):
        rig.put(Tenant(ObjectMeta(name=tenant)))
        spec = QuotaSpec(cohort=cohort)
        rig.put(Quota(ObjectMeta(name="default", namespace=tenant), spec=spec))
    rig.replica("web-0-0")
    rig.verdicts = [refusal(Reason.COHORT_EXHAUSTED)] * 3
    for tenant in ("kin", "alien", "loner"):
        rig.replica("web-0-0", tenant=tenant)
    rig.status(rig.get("web-0-0"), state=State.RELEASED)
    assert [rig.where("web-0-0", tenant) for tenant in ("kin", "alien", "loner")] == [
        "node-0",
        "",
        "",
    ]
