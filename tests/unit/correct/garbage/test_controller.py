"""controller:garbage: leaks are removed, useful objects stay, and evidence tells them apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import Controller
from holdfast.correct.garbage.controller import ACTS_BURST, ACTS_PER_S, LATE_MS, GarbageController
from holdfast.correct.garbage.event_retention import (
    EVENT_KEPT_MS,
    EVENTS_PER_TENANT_MAX,
    TELL_WITHIN_MS,
)
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.kinds.access import Token, TokenPurpose, TokenSpec
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import HoldCapacity, Propagation, Remove, Reserve
from tests.plane import ADMIN, SCHEDULER, accepted
from tests.unit.correct.controller_rig import LOST_AFTER, LOST_BEFORE, Rig, target


def rig(*more: Controller) -> Rig:
    made = Rig([GarbageController(), *more])
    made.plane.tenant()
    made.run()
    return made


def secret(on: Rig, name: str, *owners: Any, blocks: bool = False, tenant: str = "acme") -> Any:
    references = tuple(
        OwnerReference(
            API_VERSION, type(it).__name__, it.name, it.metadata.uid, block_owner_deletion=blocks
        )
        for it in owners
    )
    metadata = ObjectMeta(name=name, namespace=tenant, owner_references=references)
    return on.plane.create(Secret(metadata))


def remove(on: Rig, plural: str, name: str, **more: Any) -> None:
    accepted(on.plane.ask(ADMIN, Remove(plural, "acme", name, **more)))


# How often servers confirm that nothing is missing; before that it is not certain.
TOLD_MS = 16_000


def names(on: Rig, plural: str) -> list[str]:
    return [it.name for it in on.all(plural)]


def told(on: Rig) -> list[tuple[str, str, str]]:
    return [(it.involved_object.name, it.reason, it.type.value) for it in on.all("events")]


# Owners ------------------------------------------------------------------------------------------


def test_what_outlived_all_its_owners_goes_and_is_reported() -> None:
    """One living owner is enough to stay; so is none at all. [I4, I5, SC13, M1]"""
    on = rig()
    one, two = secret(on, "one"), secret(on, "two")
    secret(on, "of-both", one, two)
    secret(on, "of-one", one)
    on.run(TOLD_MS)
    assert on.writes() == []
    remove(on, "secrets", "one")
    on.run()
    assert names(on, "secrets") == ["of-both", "two"]
    assert told(on) == [("of-one", "Collected", "Normal")]
    assert on.all("events")[0].message == "its owner is gone: Secret one"
    remove(on, "secrets", "two")
    on.run()
    assert names(on, "secrets") == []


def test_an_owner_of_the_same_name_is_another_one() -> None:
    """[I3]"""
    on = rig()
    secret(on, "child", secret(on, "owner"))
    remove(on, "secrets", "owner")
    secret(on, "owner")
    on.run(TOLD_MS)
    assert names(on, "secrets") == ["owner"]


def test_owners_of_kinds_that_are_not_ours_are_taken_to_be_there() -> None:
    """Nothing goes for want of knowledge. [I3]"""
    on = rig()
    node = on.plane.node("node-a")
    secret(on, "child", node)
    on.run(120_000)
    assert names(on, "secrets") == ["child"]
    assert on.writes() == []


def test_what_is_missing_may_just_not_have_arrived_yet() -> None:
    """Kinds arrive on streams of their own: the controller waits for the other one. [C3, I3]"""
    on = rig()
    on.untold = {"workloads"}
    workload = on.plane.workload()
    secret(on, "child", workload)
    on.run(10_000)
    assert on.writes() == []
    on.untold = set()
    on.run(30_000)
    assert names(on, "secrets") == ["child"]


def test_foreground_deletion_takes_the_dependents_first() -> None:
    """[A2, I5]"""
    on = rig()
    owner = secret(on, "owner")
    middle = secret(on, "middle", owner, blocks=True)
    secret(on, "leaf", middle)
    remove(on, "secrets", "owner", propagation=Propagation.FOREGROUND)
    on.run(TOLD_MS)
    assert names(on, "secrets") == []


def test_orphans_stay_without_their_owner() -> None:
    """As in Kubernetes. [A2]"""
    on = rig()
    secret(on, "child", secret(on, "owner"))
    remove(on, "secrets", "owner", propagation=Propagation.ORPHAN)
    on.run()
    assert names(on, "secrets") == ["child"]
    assert on.all("secrets")[0].metadata.owner_references == ()


@pytest.mark.parametrize("propagation", [Propagation.FOREGROUND, Propagation.ORPHAN])
def test_what_another_tenant_says_of_an_owner_does_not_hold_up_its_deletion(
    propagation: Propagation,
) -> None:
    """A uid is no secret. An owner is looked for in the namespace of its dependent. [I4]"""
    on = rig()
    on.plane.tenant("globex")
    owner = secret(on, "owner")
    secret(on, "own", owner, blocks=True)
    # It has a living owner as well, so that no collector takes it away.
    there = secret(on, "there", tenant="globex")
    secret(on, "foreign", there, owner, blocks=True, tenant="globex")
    on.run(TOLD_MS)
    remove(on, "secrets", "owner", propagation=propagation)
    on.run(TOLD_MS)
    kept = ["foreign", "there"]
    assert sorted(names(on, "secrets")) == (
        kept if propagation is Propagation.FOREGROUND else ["foreign", "own", "there"]
    )


def test_a_workload_deleted_in_the_foreground_waits_for_its_replicas() -> None:
    """[A2, I5]"""
    on = rig(WorkloadController())
    on.plane.node("node-a")
    on.plane.workload(replicas=2)
    on.turn()
    remove(on, "workloads", "web", propagation=Propagation.FOREGROUND)
    on.run()
    assert names(on, "workloads") == ["web"]
    on.turn()
    assert names(on, "workloads") == names(on, "replicas") == []


def test_leaks_are_cleared_at_a_pace() -> None:
    """An incident leaves many at once; the plane has better things to do then. [I1, I4, SC13]"""
    on = rig()
    owner = secret(on, "owner")
    for at in range(120):
        secret(on, f"child-{at:03}", owner)
    on.run(TOLD_MS)
    remove(on, "secrets", "owner")
    on.run(1_000)
    gone = 120 - len(on.all("secrets"))
    assert ACTS_BURST <= gone <= ACTS_BURST + 2 * ACTS_PER_S
    on.run(10_000)
    assert on.all("secrets") == []


# Deadlines ---------------------------------------------------------------------------------------


def held(on: Rig, workload: Any, after_s: float) -> Any:
    """Capacity held for a workload, for this time."""
    uid = workload.metadata.uid
    return accepted(
        on.plane.ask(
            SCHEDULER,
            HoldCapacity(
                "acme",
                ReservationOwner("Workload", workload.name, uid, 1),
                Intent.RECOVERY,
                (Claim(node="node-a", charge={"cpu": 1_000}),),
                on.plane.at(after_s),
                on.plane.term(SCHEDULER),
            ),
        )
    )


def test_held_capacity_goes_back_after_its_deadline_and_not_before() -> None:
    """Useful progress looks like a leak until then. [I3, I4, INV12, SC13, N1.8]"""
    on = rig(WorkloadController())
    on.plane.node("node-a")
    held(on, on.plane.workload(replicas=0), 60)
    on.run(59_000)
    assert on.plane.ledger("node-a").used == {"cpu": 1_000}
    assert on.writes() == []
    on.run(LATE_MS + 2_000)
    assert not on.plane.ledger("node-a").used
    on.run(TOLD_MS)
    assert names(on, "reservations") == []
    assert [it[1:] for it in told(on)] == [("Expired", "Normal")]


def test_held_capacity_goes_back_when_its_owner_is_gone() -> None:
    """[I5, F7]"""
    on = rig(WorkloadController())
    on.plane.node("node-a")
    held(on, on.plane.workload(replicas=0), 3_600)
    remove(on, "workloads", "web")
    on.run(TOLD_MS)
    assert not on.plane.ledger("node-a").used
    assert [it[1:] for it in told(on)] == [("Ownerless", "Normal")]


def test_the_place_of_a_reserved_replica_is_left_to_repair() -> None:
    """It can say of whom it takes it; garbage may not move replicas. [A9, C6.7]"""
    on = rig(WorkloadController())
    node = on.plane.node("node-a")
    on.plane.workload(replicas=1)
    on.run()
    on.writes()
    term, waiting = on.plane.term(SCHEDULER), on.all("replicas")[0]
    reserve = Reserve(target(waiting), "node-a", node.metadata.uid, term, on.plane.at(10))
    accepted(on.plane.ask(SCHEDULER, reserve))
    on.run(60_000)
    assert on.states() == {"web-0-0": "Reserved"}
    assert on.writes() == []


def test_tokens_go_once_they_have_expired() -> None:
    on = rig()
    for name, after_s in (("short", 60), ("long", 86_400)):
        spec = TokenSpec(
            purpose=TokenPurpose.JOIN,
            hash="sha256:" + "0" * 64,
            expires=on.plane.at(after_s),
            single_use=True,
        )
        on.plane.create(Token(ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE), spec=spec))
    on.run(60_000)
    assert names(on, "tokens") == ["long", "short"]
    on.run(LATE_MS + 1_000)
    assert names(on, "tokens") == ["long"]


# Tenants -----------------------------------------------------------------------------------------


def furnished(on: Rig) -> None:
    on.plane.node("node-a")
    on.plane.workload(replicas=2)
    on.plane.quota()
    secret(on, "s")
    on.plane.tenant("other")
    secret(on, "kept", tenant="other")


def test_a_tenant_that_goes_is_emptied_and_says_what_it_waits_for() -> None:
    """Workloads stop in their own time; nothing of others is touched."""
    on = rig(WorkloadController())
    furnished(on)
    on.turn()
    accepted(on.plane.ask(ADMIN, Remove("tenants", "", "acme")))
    on.run()
    tenant = on.get("tenants", "acme")
    assert tenant.status.phase.value == "Terminating"
    (condition,) = tenant.status.conditions
    assert (condition.type, condition.status.value) == ("Emptied", "False")
    assert condition.message.startswith("waits for the removal of replicas, workloads")
    assert sorted(on.states().values()) == ["Stopping", "Stopping"]
    on.turn()
    assert on.get("tenants", "acme") is None
    assert names(on, "secrets") == ["kept"]
    assert names(on, "workloads") == names(on, "replicas") == names(on, "quotas") == []
    on.writes()
    on.run(600_000)
    assert on.writes() == []


def ends_emptied(on: Rig) -> None:
    on.turn(12)
    on.run(60_000)
    assert on.get("tenants", "acme") is None
    assert names(on, "secrets") == ["kept"]


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE])
def test_a_tenant_is_emptied_though_every_answer_is_lost_once(fate: str) -> None:
    """[C7.5, N1.1]"""
    on = rig(WorkloadController())
    furnished(on)
    on.turn()
    lost: set[str] = set()

    def spoil(ask: Any) -> str:
        what = repr(msgspec.structs.astuple(ask.body))
        if what in lost:
            return "done"
        lost.add(what)
        return fate

    on.fate = spoil
    accepted(on.plane.ask(ADMIN, Remove("tenants", "", "acme")))
    ends_emptied(on)


@pytest.mark.parametrize("write", range(1, 13))
def test_a_tenant_is_emptied_though_its_controllers_die_after_any_write(write: int) -> None:
    """[C7.4, K2]"""
    on = rig(WorkloadController())
    furnished(on)
    on.turn()
    on.sent = []
    on.crash_after = write
    accepted(on.plane.ask(ADMIN, Remove("tenants", "", "acme")))
    ends_emptied(on)
    assert on.crash_after is None


# Events ------------------------------------------------------------------------------------------


def event(on: Rig, name: str, tenant: str = "acme") -> Any:
    about = ObjectReference(kind="Workload", name="web")
    moment = on.plane.at()
    made = Event(
        ObjectMeta(name=name, namespace=tenant),
        involved_object=about,
        reason="Up",
        first_timestamp=moment,
        last_timestamp=moment,
    )
    return on.plane.create(made, SCHEDULER)


def test_events_are_kept_for_an_hour_since_they_last_happened() -> None:
    on = rig()
    event(on, "first")
    on.run(EVENT_KEPT_MS // 2)
    event(on, "second")
    on.run(EVENT_KEPT_MS // 2 - 1_000)
    assert names(on, "events") == ["first", "second"]
    assert on.writes() == []
    on.run(61_000)
    assert names(on, "events") == ["second"]
    on.run(EVENT_KEPT_MS)
    assert names(on, "events") == []


def test_a_tenant_keeps_a_bounded_number_of_events_and_another_has_its_own() -> None:
    """The oldest are removed, but none that would be recorded again. [B6]"""
    on = rig()
    on.plane.tenant("other")
    event(on, "theirs", "other")
    for at in range(EVENTS_PER_TENANT_MAX + 70):
        event(on, f"e-{at:04}")
    on.run(TELL_WITHIN_MS // 2)
    assert len(on.all("events")) == EVENTS_PER_TENANT_MAX + 71
    on.run(TELL_WITHIN_MS)
    assert len(on.all("events")) == EVENTS_PER_TENANT_MAX + 1
    assert on.get("events", "theirs", "other") is not None


def test_a_tenant_of_that_name_may_come_again() -> None:
    """Nothing of the first is left for it to inherit."""
    on = rig(WorkloadController())
    furnished(on)
    event(on, "old")
    on.turn()
    accepted(on.plane.ask(ADMIN, Remove("tenants", "", "acme")))
    on.turn(6)
    on.plane.create(Tenant(ObjectMeta(name="acme")))
    on.run()
    assert [it.name for it in on.all("events")] == []
    on.plane.workload(replicas=1)
    on.turn()
    assert on.states() == {"web-0-0": "Running"}
