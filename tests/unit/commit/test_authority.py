"""The authority: groups, conflicts, lost answers, and any number of authorities over one store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.authority import FATE_TRIES_MAX, GroupLimits
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.machine import Answered, Asked, FateOf, Txn, Withdrawn
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Create, Update
from holdfast.model.transaction import ABSENT, Compare, CompareFailed, Put, Transaction
from tests.plane import ADMIN, SCHEDULER, Plane, accepted, bind, refused


def warm() -> Plane:
    """A plane whose authority has read the format, as it does once in its life."""
    plane = Plane()
    plane.tenant("warm")
    plane.transactions.clear()
    return plane


def tenants(count: int) -> list[tuple[Identity, Any]]:
    return [(ADMIN, Create(Tenant(ObjectMeta(name=f"t{i}")))) for i in range(count)]


def test_requests_that_arrive_together_are_committed_as_one_group() -> None:
    """All but the first, which does not wait for others."""
    plane = warm()
    answers = plane.ask_all(*tenants(40))
    assert all(isinstance(answer, Accepted) for answer in answers)
    first, *others = (answer.revision for answer in answers)
    assert set(others) == {first + 1}


def test_a_new_object_costs_one_transaction_and_no_reading() -> None:
    """That its name is free is supposed, and compared. [C2]"""
    plane = warm()
    accepted(plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="a")), operation="once")))
    (transaction,) = plane.transactions
    assert Compare("objects/tenants/a", ABSENT) in transaction.compares
    assert transaction.writes


def test_a_name_that_was_supposed_to_be_free_and_is_not_is_refused() -> None:
    """Another server has made it. Nothing is written over it."""
    plane = Plane()
    made = accepted(plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="a")))))
    plane.authority = plane.new_authority()
    others = [(ADMIN, Create(Tenant(ObjectMeta(name=name)))) for name in ("a", "b")]
    before = len(plane.transactions)
    taken, free = plane.ask_all(*others)
    assert refused(taken, Reason.EXISTS).details["uid"] == made.metadata.uid
    assert isinstance(free, Accepted)
    assert plane.get(made).metadata.uid == made.metadata.uid
    # One that failed and brought the record, one that confirmed the refusal, one for the other.
    assert len(plane.transactions) - before <= 3


def test_a_group_never_outgrows_what_the_store_takes() -> None:
    plane = Plane(limits=GroupLimits(requests_max=100, compares_max=12))
    answers = plane.ask_all(*tenants(30))
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert max(len(t.compares) for t in plane.transactions) <= 12


def test_a_later_request_sees_what_an_earlier_one_of_its_group_wrote() -> None:
    """[C2]"""
    plane = Plane()
    first, second, third = plane.ask_all(tenants(1)[0], *tenants(1), *tenants(1))
    accepted(first)
    refused(second, Reason.EXISTS)
    refused(third, Reason.EXISTS)


def test_a_view_that_is_old_costs_a_second_try_and_no_correctness() -> None:
    """[C3, C6.1, N1.7]"""
    plane = Plane()
    plane.region()
    plane.tenant()
    term = plane.term(SCHEDULER)
    node = plane.node(capacity={"cpu": "1", "memory": "4Gi"})
    workload = plane.workload(replicas=2)
    one, two = plane.replica(workload, 0), plane.replica(workload, 1)
    stale = plane.authority
    plane.authority = plane.new_authority()
    accepted(plane.ask(SCHEDULER, bind(one, node, term)))
    plane.authority = stale
    refused(plane.ask(SCHEDULER, bind(two, node, term)), Reason.NODE_FULL)
    assert plane.ledger("node-a").used["cpu"] == 1000


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_answer_is_settled_by_its_token_before_anything_else(committed: bool) -> None:
    """[E5, N1.1]"""
    plane = Plane()
    plane.tenant("warm")
    lost: list[Txn] = []

    def lose(effect: Txn | FateOf) -> Any:
        if isinstance(effect, FateOf) or not effect.transaction.writes or lost:
            return None
        lost.append(effect)
        if committed:
            plane.store.txn(effect.transaction, token=effect.token)
        return OutcomeUnknown("the answer was lost")

    plane.spoil = lose
    (answer,) = plane.ask_all(*tenants(1))
    assert accepted(answer).name == "t0"
    assert len(lost) == 1
    refused(plane.ask(*tenants(1)[0]), Reason.EXISTS)


def test_when_the_outcome_is_unknown_the_caller_learns_that() -> None:
    """[N1.1]"""
    plane = Plane()
    plane.tenant("warm")
    asked = 0

    def silence(effect: Txn | FateOf) -> Any:
        nonlocal asked
        if isinstance(effect, FateOf):
            asked += 1
            return Unavailable("no quorum")
        return OutcomeUnknown("lost") if effect.transaction.writes else None

    plane.spoil = silence
    (answer,) = plane.ask_all(*tenants(1))
    assert isinstance(answer, OutcomeUnknown)
    assert asked == FATE_TRIES_MAX


def test_a_store_that_is_away_is_said_to_be_away_and_nothing_is_half_done() -> None:
    """[C7.5]"""
    plane = Plane()
    plane.tenant("warm")
    plane.spoil = lambda effect: Unavailable("away")
    (answer,) = plane.ask_all(*tenants(1))
    assert isinstance(answer, Unavailable)
    plane.spoil = None
    accepted(plane.ask(*tenants(1)[0]))


def test_under_contention_groups_shrink_until_something_gets_through() -> None:
    plane = Plane()
    made = [plane.tenant(f"c{i}") for i in range(13)]
    sizes: list[int] = []

    def meddle(effect: Txn | FateOf) -> Any:
        """While a large group is in flight, another server rewrites one of its keys first."""
        if isinstance(effect, Txn) and effect.transaction.writes:
            # One of them is the audit stamp.
            sizes.append(len(effect.transaction.writes) - 1)
            if sizes[-1] > 4:
                key = effect.transaction.compares[0].key
                record = plane.store.get(key)
                assert record is not None
                same = Transaction((Compare(key, record.modified),), (Put(key, record.value),))
                plane.store.txn(same)
        return None

    plane.spoil = meddle
    answers = plane.ask_all(*[(ADMIN, labelled(obj)) for obj in made])
    assert all(isinstance(answer, Accepted) for answer in answers)
    # The first goes alone, as nothing else waits yet; the other twelve are tried three times, then
    # in halves, until the halves are small enough to be left alone.
    assert sizes[:8] == [1, 12, 12, 12, 6, 6, 6, 3]


def labelled(obj: Any) -> Update:
    metadata = msgspec.structs.replace(obj.metadata, labels={"x": "y"}, resource_version="")
    return Update(msgspec.structs.replace(obj, metadata=metadata))


def test_an_abandoned_request_is_not_decided() -> None:
    """After a stall abandoned requests are not processed; what was sent is settled."""
    plane = warm()
    authority, now = plane.authority, plane.now
    calls = [Asked(n, *pair) for n, pair in enumerate(tenants(4), start=100)]
    effects = [effect for asked in calls for effect in authority.step(asked, now)]
    (first,) = [effect for effect in effects if isinstance(effect, Txn)]
    # The first is on its way, so that giving it up comes too late.
    assert not authority.step(Withdrawn((100, 102, 103)), now)
    work: list[Any] = [Answered(first.call, plane.store.txn(first.transaction, token=first.token))]
    answers: dict[int, Any] = {}
    while work:
        plane.perform(authority.step(work.pop(0), now), work, answers)
    assert sorted(answers) == [100, 101]
    assert all(isinstance(answer, Accepted) for answer in answers.values())
    assert authority.idle


@pytest.mark.parametrize("came_of_it", ["conflict", "lost and not applied"])
def test_what_is_withdrawn_on_its_way_is_not_sent_again(came_of_it: str) -> None:
    """It was given up, so that a conflict or a lost answer is the end of it. [INV3]"""
    plane = warm()
    authority, now = plane.authority, plane.now
    calls = [Asked(n, *pair) for n, pair in enumerate(tenants(2), start=100)]
    effects = [effect for asked in calls for effect in authority.step(asked, now)]
    (first,) = [effect for effect in effects if isinstance(effect, Txn)]
    if came_of_it == "conflict":
        there = [plane.store.get(it.key) for it in first.transaction.compares]
        body: Any = CompareFailed(plane.store.revision, tuple(there))
    else:
        body = OutcomeUnknown("silence")
    work: list[Any] = [Withdrawn((100,)), Answered(first.call, body)]
    answers: dict[int, Any] = {}
    while work:
        plane.perform(authority.step(work.pop(0), now), work, answers)
    assert sorted(answers) == [101]
    made = [put.key for put in plane.transactions[-1].writes if isinstance(put, Put)]
    withdrawn, kept = (keys.key_of(asked.body.object) for asked in calls)
    assert withdrawn not in made
    assert kept in made
    assert plane.store.get(withdrawn) is None
    assert authority.idle
