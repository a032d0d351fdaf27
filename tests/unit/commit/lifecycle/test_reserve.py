"""Reserving capacity ahead of a bind, for one replica."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds.reservation import Claim, Intent, ReservationPhase
from holdfast.model.kinds.template import Port
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason
from holdfast.model.requests import BindTogether, Move, NodeAction, Remove, Unreserve, Update
from tests.furnished import GARBAGE, Furnished, counted
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, refused, target, template
from tests.unit.commit.capacity_requests import ONE, drop, hold, used


def test_a_reserved_place_is_charged_at_once_and_bound_without_a_second_charge() -> None:
    """[C6.5, D1]"""
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


def test_a_reserved_place_is_for_its_owner_alone() -> None:
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
    without_operation = msgspec.structs.replace(request, operation="")
    refused(it.ask(SCHEDULER, without_operation), Reason.STALE_REPLICA)
    again = msgspec.structs.replace(without_operation, target=target(it.get(replica)))
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
    """Otherwise it would wait for a place that is not held for it. [C7.6]"""
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
    """Useful progress is distinguished from a leak. [I3, I4, N1.8]"""
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
    the books. [C6.5]
    """
    it = Furnished()
    port = template(ports=(Port(name="http", port=80),))
    reserved = it.reserved(it.plane.workload("ported", template=port))
    it.plane.authority = it.plane.new_authority()
    twice = BindTogether((it.bind(reserved), it.bind(reserved)))
    refused(it.ask(SCHEDULER, twice), Reason.STALE_REPLICA)
    it.yes(SCHEDULER, it.bind(reserved))


def test_no_place_is_kept_on_a_node_that_is_being_emptied() -> None:
    """The reservation stands, but the bind on it is refused. [C4]"""
    it = Furnished()
    reserved = it.reserved()
    it.yes(NODES, it.judge(NodeAction.SUSPECT))
    refused(it.ask(SCHEDULER, it.bind(reserved)), Reason.NODE_NOT_READY)
    it.yes(NODES, it.judge(NodeAction.TRUST))
    it.yes(SCHEDULER, it.bind(reserved))
