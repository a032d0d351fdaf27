"""Holding capacity ahead of a bind: for one replica, for a gang, for recovery."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model import identity as who
from holdfast.model.identity import Identity
from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.placement import Taint
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason
from holdfast.model.requests import (
    BindTogether,
    CommitGang,
    DropReservation,
    HoldCapacity,
    Move,
    NodeWord,
    Remove,
    Unreserve,
    Update,
)
from tests.furnished import GARBAGE, Furnished, counted
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    accepted,
    refused,
    target,
    template,
)

RESERVES = who.controller("reserves")
ONE = {"cpu": 1000, "memory": 2**30, "replicas": 1}
GPU = (DeviceRequest(device_class="gpu", memory="16Gi"),)


def used(it: Furnished) -> dict[str, int]:
    found: dict[str, int] = it.plane.ledger("node-a").used
    return found


def hold(
    it: Furnished,
    *claims: Claim,
    intent: Intent = Intent.RECOVERY,
    of: Any = None,
    least: int = 0,
    after_s: float = 60,
    operation: str = "",
    identity: Identity = SCHEDULER,
) -> HoldCapacity:
    of = of or it.web
    owner = ReservationOwner(type(of).__name__, of.name, of.metadata.uid)
    deadline = it.plane.at(after_s)
    return HoldCapacity(
        of.namespace, owner, intent, claims, deadline, it.term(identity), least, operation
    )


def drop(it: Furnished, held: Any, identity: Identity = SCHEDULER, **more: Any) -> DropReservation:
    return DropReservation(
        held.namespace, held.name, held.metadata.uid, "over", it.term(identity), **more
    )


# One replica -------------------------------------------------------------------------------------


def test_a_reserved_place_is_charged_at_once_and_bound_without_a_second_charge() -> None:
    """[C6.5, D1, F7]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "1"})
    reserved = it.reserved()
    assert reserved.status.state is State.RESERVED
    assert used(it) == ONE
    held = it.reservation(reserved.status.reservation)
    assert (held.status.by, held.status.epoch) == (SCHEDULER.name, 1)
    assert (held.spec.owner.uid, held.status.claims[0].charge) == (reserved.metadata.uid, ONE)
    bound = it.yes(SCHEDULER, it.bind(reserved))
    assert used(it) == ONE
    assert bound.status.reservation == ""
    assert bound.status.binding.reservation == held.name
    assert it.get(held).status.phase is ReservationPhase.CONSUMED


def test_what_is_reserved_is_nobody_elses() -> None:
    """[C6.1, C6.8]"""
    it = Furnished(cpus=1)
    it.reserved()
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_FULL)
    refused(it.ask(SCHEDULER, it.reserve(it.pending())), Reason.NODE_FULL)


def test_only_its_owner_consumes_a_reservation() -> None:
    """[C6.8]"""
    it = Furnished()
    reserved = it.reserved()
    other, stranger = it.pending(), it.pending(it.plane.workload("other"))
    for replica in (other, stranger):
        request = it.bind(replica, reservation=reserved.status.reservation)
        refused(it.ask(SCHEDULER, request), Reason.PROTECTED_CAPACITY)
    away = it.plane.node("node-b")
    refused(it.ask(SCHEDULER, it.bind(reserved, away)), Reason.RESERVATION_MISSING)
    refused(it.ask(SCHEDULER, it.bind(other, reservation="none")), Reason.RESERVATION_MISSING)


def test_the_holder_stops_a_skew_early_and_the_reclaimer_acts_a_skew_late() -> None:
    """[INV12, C7.6]"""
    it = Furnished()
    reserved = it.reserved(after_s=60)
    held = it.reservation(reserved.status.reservation)
    skew_ms = it.plane.settings.skew_ms
    it.plane.elapsed_ms += 60_000 - skew_ms - 1
    snapshot = it.snapshot()
    it.yes(SCHEDULER, it.bind(reserved))
    it.restore(snapshot)
    it.plane.elapsed_ms += 1
    refused(it.ask(SCHEDULER, it.bind(reserved)), Reason.RESERVATION_EXPIRED)
    it.plane.elapsed_ms += 2 * skew_ms - 1
    refused(it.ask(REPAIR, drop(it, held, REPAIR)), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 1
    it.yes(REPAIR, drop(it, held, REPAIR))
    assert used(it) == {}


def test_a_reservation_that_is_dead_on_arrival_is_refused() -> None:
    """[INV12]"""
    it = Furnished()
    skew_s = it.plane.settings.skew_ms / 1000
    for after_s in (-10, 0, skew_s):
        refused(
            it.ask(SCHEDULER, it.reserve(it.pending(), after_s=after_s)),
            Reason.RESERVATION_EXPIRED,
        )
        refused(it.ask(SCHEDULER, hold(it, after_s=after_s)), Reason.RESERVATION_EXPIRED)
    assert counted(it.plane) == {}


def test_a_scheduler_that_crashed_after_reserving_finds_its_own_and_makes_no_second() -> None:
    """[F7, C6.9]"""
    it = Furnished()
    replica = it.pending()
    request = it.reserve(replica, operation="one/reserve")
    it.yes(SCHEDULER, request)
    # It has forgotten everything, and so has the server.
    it.plane.authority = it.plane.new_authority()
    assert it.ask(SCHEDULER, request).replayed
    anew = msgspec.structs.replace(request, operation="")
    refused(it.ask(SCHEDULER, anew), Reason.STALE_REPLICA)
    again = msgspec.structs.replace(anew, target=target(it.get(replica)))
    refused(it.ask(SCHEDULER, again), Reason.WRONG_STATE)
    assert used(it) == ONE
    it.yes(SCHEDULER, it.bind(it.get(replica)))
    assert used(it) == ONE


def test_one_owner_holds_one_active_reservation_for_one_intent() -> None:
    """[C6.9, F7]"""
    it = Furnished()
    first = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500})))
    refusal = refused(
        it.ask(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500}))),
        Reason.RESERVATION_EXISTS,
    )
    assert refusal.details["uid"] == first.metadata.uid
    assert used(it) == {"cpu": 500}
    it.yes(SCHEDULER, drop(it, first))
    second = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 250})))
    assert (second.name, second.metadata.uid != first.metadata.uid) == (first.name, True)
    assert used(it) == {"cpu": 250}


def test_a_late_repetition_does_not_bring_an_ended_reservation_back() -> None:
    """The one that took its name remembers for it. [F7, INV3]"""
    it = Furnished()
    claim = Claim(node="node-a", charge={"cpu": 500})
    first = hold(it, claim, operation="first")
    it.yes(SCHEDULER, drop(it, it.yes(SCHEDULER, first)))
    second = it.yes(SCHEDULER, hold(it, claim, operation="second"))
    it.yes(SCHEDULER, drop(it, second))
    assert it.ask(SCHEDULER, first).replayed
    assert used(it) == {}


def test_a_conflict_gives_the_place_back_once() -> None:
    """[C6.5, C7.2]"""
    it = Furnished()
    reserved = it.reserved()
    request = Unreserve(target(reserved), "Conflict", it.term(SCHEDULER), "one/unreserve")
    after = it.yes(SCHEDULER, request)
    assert (after.status.state, after.status.reservation) == (State.PENDING, "")
    assert used(it) == {}
    assert it.ask(SCHEDULER, request).replayed
    assert it.reservation(reserved.status.reservation).status.phase is ReservationPhase.RELEASED
    again = it.yes(SCHEDULER, it.reserve(after))
    assert again.status.reservation == reserved.status.reservation


def test_when_the_work_is_not_wanted_any_more_its_place_is_free_at_once() -> None:
    """[F7, I5]"""
    it = Furnished()
    reserved = it.reserved()
    it.yes(WORKLOADS, Move(target(reserved), State.RELEASED, "ScaleDown", term=it.term(WORKLOADS)))
    assert used(it) == {}


def test_a_replica_that_is_being_deleted_gets_no_place() -> None:
    """[I5]"""
    it = Furnished()
    replica = it.pending()
    it.yes(WORKLOADS, Remove("replicas", "acme", replica.name))
    dying = it.get(replica)
    refused(it.ask(SCHEDULER, it.reserve(dying)), Reason.TERMINATING)
    refused(it.ask(SCHEDULER, it.bind(dying)), Reason.TERMINATING)
    refused(it.ask(SCHEDULER, hold(it, of=dying, intent=Intent.BIND)), Reason.TERMINATING)


def test_dropping_a_reservation_sends_its_replica_back_to_the_queue() -> None:
    """Otherwise it would wait for a place that nobody holds for it. [C7.2, C7.6]"""
    it = Furnished()
    reserved = it.reserved()
    held = it.reservation(reserved.status.reservation)
    it.yes(SCHEDULER, drop(it, held))
    after = it.get(reserved)
    assert (after.status.state, after.status.reservation) == (State.PENDING, "")
    assert after.status.transitions[-1].by == SCHEDULER.name
    refused(it.ask(SCHEDULER, drop(it, held)), Reason.RESERVATION_MISSING)
    it.yes(SCHEDULER, it.bind(after))


def test_a_reservation_is_dropped_by_its_maker_or_past_its_deadline_or_without_its_owner() -> None:
    """Useful progress is told from a leak. [I3, I4, N1.8]"""
    it = Furnished()
    other = it.plane.workload("other")
    held = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500}), of=other))
    refused(it.ask(WORKLOADS, drop(it, held, WORKLOADS)), Reason.NOT_OWNER)
    for cleaner in (REPAIR, GARBAGE):
        refused(it.ask(cleaner, drop(it, held, cleaner)), Reason.NOT_ALLOWED)
    it.yes(SCHEDULER, drop(it, it.yes(SCHEDULER, hold(it, of=it.web, intent=Intent.REBALANCE))))
    gone(it, other)
    # One of that name comes back, and is not the owner.
    it.plane.workload("other")
    it.yes(GARBAGE, drop(it, held, GARBAGE))
    assert used(it) == {}


def gone(it: Furnished, workload: Any) -> None:
    """Delete a workload that has no replicas."""
    it.yes(ADMIN, Remove("workloads", workload.namespace, workload.name))
    dying = it.get(workload)
    metadata = msgspec.structs.replace(dying.metadata, finalizers=())
    it.yes(WORKLOADS, Update(msgspec.structs.replace(dying, metadata=metadata)))
    assert it.get(workload) is None


def test_a_drop_that_names_another_uid_drops_nothing() -> None:
    """[C6.7]"""
    it = Furnished()
    held = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500})))
    wrong = msgspec.structs.replace(drop(it, held), uid="another")
    refused(it.ask(SCHEDULER, wrong), Reason.RESERVATION_MISSING)
    assert used(it) == {"cpu": 500}


def test_binding_by_another_reservation_frees_the_first_one() -> None:
    """It needs one place, not two. [C6.5]"""
    it = Furnished()
    lane = it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge=ONE)))
    reserved = it.reserved()
    assert used(it)["replicas"] == 2
    it.yes(SCHEDULER, it.bind(reserved, reservation=lane.name))
    assert used(it) == ONE
    assert it.reservation(reserved.status.reservation).status.phase is ReservationPhase.RELEASED


def test_a_replica_that_is_named_twice_is_bound_once_or_not_at_all() -> None:
    """On a server that knows nothing yet, too: a half-made decision must not be taken for a bug of
    the books. [C6.5, C7.4]
    """
    it = Furnished()
    port = template(ports=(Port(name="http", port=80),))
    reserved = it.reserved(it.plane.workload("ported", template=port))
    it.plane.authority = it.plane.new_authority()
    twice = BindTogether((it.bind(reserved), it.bind(reserved)))
    refused(it.ask(SCHEDULER, twice), Reason.STALE_REPLICA)
    it.yes(SCHEDULER, it.bind(reserved))


# Held for an owner -------------------------------------------------------------------------------


def test_a_recovery_lane_is_consumed_by_its_workloads_replicas() -> None:
    """[D5, C6.8]"""
    it = Furnished(cpus=2)
    lane = it.yes(SCHEDULER, hold(it, *(Claim(node="node-a", charge=ONE) for _ in range(2))))
    others = it.pending(it.plane.workload("other"))
    refused(it.ask(SCHEDULER, it.bind(others)), Reason.NODE_FULL)
    refused(it.ask(SCHEDULER, it.bind(others, reservation=lane.name)), Reason.PROTECTED_CAPACITY)
    for left in (ReservationPhase.HELD, ReservationPhase.CONSUMED):
        it.yes(SCHEDULER, it.bind(it.pending(), reservation=lane.name))
        assert it.get(lane).status.phase is left
    assert used(it)["replicas"] == 2


def test_a_lane_may_hold_quota_alone_or_devices() -> None:
    """[D1, C6.1]"""
    it = Furnished()
    it.plane.quota(hard={"cpu": "2"})
    share = DeviceShare(device="gpu-0", device_class="gpu", milli=1000)
    it.yes(
        SCHEDULER,
        hold(
            it,
            Claim(charge={"cpu": 1500}),
            Claim(node="node-a", charge={"gpu": 1000}, devices=(share,)),
        ),
    )
    assert used(it) == {}
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    training = it.pending(it.plane.workload("train", template=template(devices=GPU, cpu="100m")))
    shares = (DeviceShare(device="gpu-0", device_class="gpu", milli=1000),)
    refused(it.ask(SCHEDULER, it.bind(training, devices=shares)), Reason.DEVICE_TAKEN)


@pytest.mark.parametrize(
    "owner",
    [
        ReservationOwner("Workload", "nobody", "u"),
        ReservationOwner("Workload", "web", "another uid"),
        ReservationOwner("Replica", "web-0-0", "u"),
    ],
)
def test_nothing_is_held_for_an_owner_that_is_not_there(owner: ReservationOwner) -> None:
    """It would be a leak from its first moment. [I5]"""
    it = Furnished()
    request = msgspec.structs.replace(hold(it), owner=owner)
    refused(it.ask(SCHEDULER, request), Reason.MISSING)


def test_an_owner_is_work() -> None:
    it = Furnished()
    for kind in ("Tenant", "Secret", "Nonsense"):
        request = msgspec.structs.replace(hold(it), owner=ReservationOwner(kind, "acme", "u"))
        refused(it.ask(SCHEDULER, request), Reason.INVALID)


def test_a_hold_is_judged_by_the_rules_of_a_bind() -> None:
    """Or protected capacity would be used up by waiting for it. [C6.8, C6.2]"""
    it = Furnished()
    claim = Claim(node="node-a", charge={"cpu": 500})
    it.updated(it.node, protected_for=Protection(tenants=("globex",)))
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.TENANCY_FORBIDDEN)
    it.updated(it.node, protected_for=None, taints=(Taint(key="gpu-only"),))
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.TAINTED)
    it.updated(it.node, taints=(), cordoned=True)
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.NODE_CORDONED)
    it.updated(it.node, cordoned=False)
    refused(it.ask(SCHEDULER, hold(it, Claim(node="none"))), Reason.NODE_MISSING)
    refused(
        it.ask(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 9000}))), Reason.NODE_FULL
    )
    it.yes(SCHEDULER, hold(it, claim))


def test_a_lane_is_charged_in_the_class_of_its_owners_work() -> None:
    """[D3]"""
    it = Furnished()
    spot = it.of_class("spot")
    it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500}), of=spot))
    assert counted(it.plane)["reclaimable acme"] == {"cpu": 500}


def test_a_hold_of_many_nodes_is_one_decision() -> None:
    """[C7.4]"""
    it = Furnished()
    claims = [Claim(node=it.plane.node(f"n{i}").name, charge={"cpu": 100}) for i in range(40)]
    it.plane.authority = it.plane.new_authority()
    held = it.yes(SCHEDULER, hold(it, *claims))
    it.plane.authority = it.plane.new_authority()
    it.yes(SCHEDULER, drop(it, held))
    assert counted(it.plane) == {}


@pytest.mark.parametrize("least", [0, 3])
def test_only_a_gang_states_how_many_it_needs(least: int) -> None:
    it = Furnished()
    intent = Intent.GANG if not least else Intent.RECOVERY
    refused(it.ask(SCHEDULER, hold(it, intent=intent, least=least)), Reason.INVALID)


def test_a_recovery_lane_is_renewed_moved_and_refilled_in_one_step() -> None:
    """By its own controller alone; a place that stays is not given back meanwhile. [D5, C6.9]"""
    it = Furnished()
    it.plane.node("node-b")
    one, other = (Claim(node=name, charge=ONE) for name in ("node-a", "node-b"))
    first = it.yes(RESERVES, hold(it, one, one, identity=RESERVES))
    again = hold(it, one, other, identity=RESERVES, after_s=120)
    second = it.yes(RESERVES, again)
    assert second.metadata.uid == first.metadata.uid
    assert second.status.claims == (one, other)
    assert second.spec.deadline == it.plane.at(120)
    assert used(it) == ONE
    # One that comes late shortens nothing.
    third = it.yes(RESERVES, hold(it, one, other, identity=RESERVES, after_s=30))
    assert third.spec.deadline == it.plane.at(120)
    refused(it.ask(SCHEDULER, hold(it, one)), Reason.RESERVATION_EXISTS)
    # A replica of the owner binds into it, and what it used is held again.
    it.yes(SCHEDULER, it.bind(it.pending(), reservation=first.name))
    assert used(it) == ONE
    filled = it.yes(RESERVES, hold(it, one, other, identity=RESERVES))
    assert filled.status.claims == (other, one)
    assert used(it)["cpu"] == 2000
    it.yes(RESERVES, drop(it, filled, RESERVES))
    assert used(it) == ONE


def test_a_recovery_lane_that_finds_no_room_stays_as_it_was() -> None:
    """[C6.9, INV12]"""
    it = Furnished(cpus=1)
    one = Claim(node="node-a", charge=ONE)
    held = it.yes(RESERVES, hold(it, one, identity=RESERVES))
    refused(it.ask(RESERVES, hold(it, one, one, identity=RESERVES)), Reason.NODE_FULL)
    assert it.reservation(held.name).status.claims == (one,)
    # Nobody else's work gets in, and only the owner's may use it.
    other = it.pending(it.plane.workload("other"))
    refused(it.ask(SCHEDULER, it.bind(other)), Reason.NODE_FULL)
    refused(it.ask(SCHEDULER, it.bind(other, reservation=held.name)), Reason.PROTECTED_CAPACITY)
    it.yes(SCHEDULER, it.bind(it.pending(), reservation=held.name))


def test_who_places_nothing_holds_nothing() -> None:
    """[C6.7]"""
    it = Furnished()
    refused(it.ask(NODES, hold(it, identity=NODES)), Reason.NOT_OWNER)


# Gangs -------------------------------------------------------------------------------------------


class Gang:
    """Three replicas that start together or not at all."""

    def __init__(self, it: Furnished, least: int = 3) -> None:
        self.it = it
        self.held = it.yes(SCHEDULER, hold(it, intent=Intent.GANG, least=least))
        self.members: list[Any] = []

    def join(self, workload: Any = None) -> Any:
        member = self.it.pending(workload)
        answer = self.it.ask(
            SCHEDULER, self.it.reserve(member, gang=self.held.name, intent=Intent.GANG)
        )
        self.members.append(self.it.get(member))
        return answer

    def commit(self, **more: Any) -> CommitGang:
        term = self.it.term(SCHEDULER)
        return CommitGang("acme", self.held.name, self.held.metadata.uid, term, **more)

    @property
    def phase(self) -> ReservationPhase:
        found: ReservationPhase = self.it.get(self.held).status.phase
        return found


def test_no_member_of_a_gang_is_bound_before_it_is_committed() -> None:
    """[G5]"""
    it = Furnished()
    gang = Gang(it)
    accepted(gang.join())
    accepted(gang.join())
    refused(it.ask(SCHEDULER, it.bind(gang.members[0])), Reason.GANG_INCOMPLETE)
    refused(it.ask(SCHEDULER, gang.commit()), Reason.GANG_INCOMPLETE)
    accepted(gang.join())
    refused(it.ask(SCHEDULER, it.bind(gang.members[0])), Reason.GANG_INCOMPLETE)
    it.yes(SCHEDULER, gang.commit(operation="go"))
    assert it.ask(SCHEDULER, gang.commit(operation="go")).replayed
    refused(it.ask(SCHEDULER, gang.commit()), Reason.WRONG_STATE)
    it.ask(SCHEDULER, BindTogether(tuple(it.bind(member) for member in gang.members)))
    assert gang.phase is ReservationPhase.CONSUMED
    assert used(it)["replicas"] == 3


def test_nobody_joins_a_gang_that_is_committed_or_not_his_own() -> None:
    """[G5, C6.8]"""
    it = Furnished()
    gang = Gang(it, least=1)
    refused(gang.join(it.plane.workload("other")), Reason.PROTECTED_CAPACITY)
    accepted(gang.join())
    it.yes(SCHEDULER, gang.commit())
    refused(gang.join(), Reason.RESERVATION_MISSING)


def test_a_gang_that_is_overdue_is_neither_joined_nor_committed() -> None:
    """[C7.6]"""
    it = Furnished()
    gang = Gang(it, least=1)
    accepted(gang.join())
    it.plane.elapsed_ms += 60_000 - it.plane.settings.skew_ms
    refused(gang.join(), Reason.RESERVATION_EXPIRED)
    refused(it.ask(SCHEDULER, gang.commit()), Reason.RESERVATION_EXPIRED)
    it.plane.elapsed_ms += 2 * it.plane.settings.skew_ms
    it.yes(REPAIR, drop(it, gang.held, REPAIR))
    assert [it.get(m).status.state for m in gang.members] == [State.PENDING] * 2
    assert used(it) == {}


def test_a_member_that_leaves_gives_back_its_own_place_only() -> None:
    """[G5, C6.5]"""
    it = Furnished()
    gang = Gang(it)
    accepted(gang.join())
    accepted(gang.join())
    leaver, other = gang.members
    it.yes(SCHEDULER, Unreserve(target(leaver), "Conflict", it.term(SCHEDULER)))
    assert used(it) == ONE
    assert gang.phase is ReservationPhase.HELD
    it.yes(WORKLOADS, Move(target(other), State.RELEASED, "ScaleDown", term=it.term(WORKLOADS)))
    assert used(it) == {}


def test_what_is_left_of_a_gang_is_given_back_and_what_is_bound_stays() -> None:
    """[G5, C6.5]"""
    it = Furnished()
    gang = Gang(it, least=2)
    accepted(gang.join())
    accepted(gang.join())
    it.yes(SCHEDULER, gang.commit())
    it.yes(SCHEDULER, it.bind(gang.members[0]))
    it.yes(SCHEDULER, drop(it, gang.held))
    assert used(it) == ONE
    assert gang.phase is ReservationPhase.RELEASED
    states = [it.get(member).status.state for member in gang.members]
    assert states == [State.BOUND, State.PENDING]


def test_a_gang_of_reclaimable_work_is_charged_as_such() -> None:
    """[D3]"""
    it = Furnished()
    spot = it.of_class("spot")
    gang = it.yes(SCHEDULER, hold(it, intent=Intent.GANG, least=1, of=spot))
    it.yes(SCHEDULER, it.reserve(it.pending(spot), gang=gang.name, intent=Intent.GANG))
    assert "hard acme" not in counted(it.plane)
    assert counted(it.plane)["reclaimable acme"]["cpu"] == 1000


def test_a_reservation_is_not_a_gang_and_a_gang_is_committed_by_its_scheduler() -> None:
    """[C6.7]"""
    it = Furnished()
    lane = it.yes(SCHEDULER, hold(it))
    term = it.term(SCHEDULER)
    refused(
        it.ask(SCHEDULER, CommitGang("acme", lane.name, lane.metadata.uid, term)),
        Reason.WRONG_STATE,
    )
    gang = Gang(it, least=1)
    request = msgspec.structs.replace(gang.commit(), term=it.term(REPAIR))
    refused(it.ask(REPAIR, request), Reason.NOT_OWNER)


def test_no_place_is_kept_on_a_node_that_is_being_emptied() -> None:
    """The reservation stands, but the bind on it is refused. [C4]"""
    it = Furnished()
    reserved = it.reserved()
    it.yes(NODES, it.judge(NodeWord.SUSPECT))
    refused(it.ask(SCHEDULER, it.bind(reserved)), Reason.NODE_NOT_READY)
    it.yes(NODES, it.judge(NodeWord.TRUST))
    it.yes(SCHEDULER, it.bind(reserved))
