"""Holding capacity for a gang, which starts together or not at all."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds.reservation import Intent, ReservationPhase
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason
from holdfast.model.requests import BindTogether, CommitGang, Move, Unreserve
from tests.furnished import Furnished, counted
from tests.plane import REPAIR, SCHEDULER, WORKLOADS, accepted, refused, target
from tests.unit.commit.capacity_requests import ONE, drop, hold, used


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


def test_no_replica_joins_a_gang_that_is_committed_or_not_its_own() -> None:
    """[G5]"""
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
