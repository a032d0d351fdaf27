"""Gangs in the commit: all or nothing at the start, and an end for what is left of a broken one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.access.identity import agent
from holdfast.model.kinds.node import Node, NodeStatus
from holdfast.model.kinds.reservation import Intent, ReservationPhase
from holdfast.model.kinds.template import Port
from holdfast.model.kinds.workload import Gang, Job, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.gang import PORTS_FIRST, PORTS_LAST, member_variables
from holdfast.model.refusal import Reason
from holdfast.model.requests import BindTogether, CommitGang, RegisterNode, Unreserve
from tests.furnished import GARBAGE, Furnished
from tests.plane import SCHEDULER, refused, target, template
from tests.unit.commit.capacity_requests import drop, hold, used


class Ring:
    """A workload of four members that needs three of them."""

    def __init__(self, least: int = 3, **spec: Any) -> None:
        self.it = Furnished()
        status = NodeStatus(address="10.0.0.1")
        node = Node(ObjectMeta(name="node-a"), spec=self.it.node.spec, status=status)
        self.it.yes(agent("node-a"), RegisterNode(node))
        self.workload = self.it.plane.workload(
            "ring", replicas=4, gang=Gang(min_available=least), **spec
        )

    def pending(self, count: int) -> list[Any]:
        return [self.it.pending(self.workload) for _ in range(count)]

    def together(self, members: list[Any], **more: Any) -> Any:
        return self.it.ask(SCHEDULER, BindTogether(tuple(map(self.it.bind, members)), **more))

    def formed(self, count: int = 3) -> list[Any]:
        members = self.pending(count)
        self.together(members)
        return [self.it.get(member) for member in members]

    @property
    def record(self) -> Any:
        return self.it.reservation("ring-gang")

    @property
    def names(self) -> list[str]:
        return [claim.replica for claim in self.record.status.claims]


def test_members_are_bound_together_and_never_fewer_than_needed() -> None:
    """[G5]"""
    ring = Ring()
    first, second, third, fourth = ring.pending(4)
    refused(ring.it.ask(SCHEDULER, ring.it.bind(first)), Reason.GANG_INCOMPLETE)
    refused(ring.together([first, second]), Reason.GANG_INCOMPLETE)
    assert used(ring.it) == {}
    ring.together([first, second, third])
    assert ring.names == [first.name, second.name, third.name]
    assert ring.record.status.phase is ReservationPhase.CONSUMED
    ring.it.yes(SCHEDULER, ring.it.bind(fourth))
    assert ring.names[-1] == fourth.name


def test_a_second_copy_of_the_same_bind_forms_no_second_gang() -> None:
    """[G5, E5]"""
    ring = Ring()
    members = ring.pending(3)
    binds = tuple(ring.it.bind(it, operation=f"bind-{it.name}") for it in members)
    ring.it.ask(SCHEDULER, BindTogether(binds))
    before = ring.record
    ring.it.ask(SCHEDULER, BindTogether(binds))
    assert ring.record == before
    assert used(ring.it)["replicas"] == 3


def test_a_member_that_is_named_twice_counts_once() -> None:
    """[G5, E5]"""
    ring = Ring()
    first, second = ring.pending(2)
    binds = [ring.it.bind(it, operation=f"bind-{it.name}") for it in (first, second)]
    answer = ring.it.ask(SCHEDULER, BindTogether((*binds, *binds)))
    assert "needs 3 members, 2 are bound" in refused(answer, Reason.GANG_INCOMPLETE).message
    assert used(ring.it) == {}


def test_a_member_that_was_bound_before_forms_no_second_gang() -> None:
    """[G5, E5]"""
    ring = Ring(least=2)
    members = ring.pending(3)
    binds = [ring.it.bind(it, operation=f"bind-{it.name}") for it in members]
    ring.it.ask(SCHEDULER, BindTogether(tuple(binds[:2])))
    ring.it.stopping(ring.it.get(members[0]))
    assert ring.record.status.phase is ReservationPhase.RELEASED
    refused(ring.it.ask(SCHEDULER, BindTogether(tuple(binds))), Reason.GANG_INCOMPLETE)
    assert ring.names == [members[1].name]


@pytest.mark.parametrize("cause", [Cause.SCALE_DOWN, Cause.REPAIR])
def test_a_gang_goes_on_without_spare_members_and_ends_with_too_few(cause: Cause) -> None:
    """[G5]"""
    ring = Ring()
    one, two, *_ = ring.formed(4)
    ring.it.stopping(one, cause)
    assert one.name not in ring.names
    assert ring.record.status.phase is ReservationPhase.CONSUMED
    ring.it.stopping(two, cause)
    assert ring.record.status.phase is ReservationPhase.RELEASED
    assert "2 of 3 members are left" in ring.record.status.reason
    late = ring.pending(1)[0]
    refused(ring.it.ask(SCHEDULER, ring.it.bind(late)), Reason.GANG_INCOMPLETE)


def test_a_gang_starts_again_as_a_whole_and_not_while_its_record_lives() -> None:
    """[G5]"""
    ring = Ring()
    members = ring.formed()
    refused(
        ring.it.ask(SCHEDULER, hold(ring.it, intent=Intent.GANG, of=ring.workload, least=3)),
        Reason.RESERVATION_EXISTS,
    )
    for member in members:
        ring.it.stopping(member)
    again = ring.formed()
    assert ring.names == [it.name for it in again]
    assert ring.record.status.phase is ReservationPhase.CONSUMED


def test_a_lowered_minimum_counts_at_once() -> None:
    """[G5]"""
    ring = Ring()
    one, *_ = ring.formed()
    ring.it.updated(ring.workload, gang=Gang(min_available=2))
    ring.it.stopping(one)
    assert ring.record.status.phase is ReservationPhase.CONSUMED


def test_members_of_a_job_that_have_done_their_work_count() -> None:
    """[G5]"""
    ring = Ring(type=WorkloadType.JOB, template=template(restart="OnFailure"))
    one, two, three = ring.formed()
    done = ring.it.moved(ring.it.moved(one, State.RUNNING), State.SUCCEEDED)
    ring.it.moved(done, State.RELEASED)
    assert ring.record.status.succeeded == 1
    assert ring.record.status.phase is ReservationPhase.CONSUMED
    ring.it.moved(ring.it.moved(two, State.RUNNING), State.FAILED)
    assert ring.record.status.phase is ReservationPhase.RELEASED
    assert ring.names == [three.name]


def test_the_members_of_two_gangs_are_not_bound_by_one_request() -> None:
    """[G5]"""
    ring = Ring(least=1)
    other = ring.it.plane.workload("other", gang=Gang(min_available=1))
    mixed = [*ring.pending(1), ring.it.pending(other)]
    refused(ring.together(mixed), Reason.INVALID)


def test_each_member_has_ports_of_its_own_that_the_record_names() -> None:
    ring = Ring(template=template(ports=(Port(name="rdzv"), Port(name="http", port=0))))
    members = ring.formed()
    found = [claim.ports for claim in ring.record.status.claims]
    numbers = [int(key.partition("/")[2]) for keys in found for key in keys]
    assert len(set(numbers)) == 6
    assert all(PORTS_FIRST <= it <= PORTS_LAST for it in numbers)
    assert [it.status.binding.ports for it in members] == found
    told = member_variables(ring.record, ring.workload.spec.template)
    assert told["HOLDFAST_GANG_SIZE"] == "3"
    assert told["HOLDFAST_MEMBERS"].split(",") == [it.name for it in members]


def test_the_pieces_of_a_job_learn_of_each_other_only_if_it_is_indexed() -> None:
    for indexed in (True, False):
        ring = Ring(
            type=WorkloadType.JOB, job=Job(indexed=indexed), template=template(restart="Never")
        )
        ring.formed()
        told = member_variables(ring.record, ring.workload.spec.template)
        assert ("HOLDFAST_MEMBERS" in told) is indexed


def test_the_record_of_a_gang_that_runs_is_no_garbage() -> None:
    """[G5, C7.6]"""
    ring = Ring()
    ring.formed()
    ring.it.plane.elapsed_ms += 3_600_000
    record = ring.record
    refused(ring.it.ask(GARBAGE, drop(ring.it, record, GARBAGE)), Reason.RESERVATION_MISSING)


def test_what_a_broken_gang_still_holds_is_given_back_and_not_lost() -> None:
    """A member loses its place after the commit: no other is bound, and nothing leaks. [C6.5]"""
    ring = Ring()
    it = ring.it
    held = it.yes(SCHEDULER, hold(it, intent=Intent.GANG, of=ring.workload, least=3))
    members = ring.pending(3)
    for member in members:
        it.yes(SCHEDULER, it.reserve(member, gang=held.name, intent=Intent.GANG))
    commit = CommitGang("acme", held.name, held.metadata.uid, it.term(SCHEDULER))
    it.yes(SCHEDULER, commit)
    first, second, third = (it.get(member) for member in members)
    it.yes(SCHEDULER, it.bind(first))
    it.yes(SCHEDULER, Unreserve(target(second), "Conflict", it.term(SCHEDULER)))
    assert ring.record.status.phase is ReservationPhase.HELD
    refused(it.ask(SCHEDULER, it.bind(third)), Reason.GANG_INCOMPLETE)
    it.yes(SCHEDULER, drop(it, ring.record))
    assert ring.record.status.phase is ReservationPhase.RELEASED
    assert it.get(third).status.state is State.PENDING
    assert used(it)["replicas"] == 1
