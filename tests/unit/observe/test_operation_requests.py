"""Typed requests as operations: what is sent next, and when a snapshot has caught up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import InvariantBroken, OutcomeUnknown, Unavailable
from holdfast.model.kinds.replica import Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Create, ForgetOperations, Move, Target
from holdfast.observe.operation import (
    Expected,
    Finish,
    GiveUp,
    Pause,
    RequestOperation,
    Why,
    expected_after,
)
from holdfast.observe.retry import RetryPolicy
from holdfast.observe.snapshot import ObjectTable, Snapshot
from tests.plane import template

NOW = 1_000
LOST, DOWN = OutcomeUnknown("lost"), Unavailable("down")
MOVE = Move(Target("acme", "web-0-0", "uid", 4), State.RELEASED, operation="mine")
READ = Get("replicas", "web-0-0", "acme")
POLICY = RetryPolicy(
    tries_max=2, looks_max=None, deadline_ms=None, looks_at_once=True, repeats_undone=False
)


class Half:
    """A random source that always returns one half."""

    def random(self) -> float:
        return 0.5


def shown(revision: int, *objects: Object) -> Snapshot:
    """A snapshot that is complete up to a revision, and shows more of some objects."""
    return Snapshot(ObjectTable({"replicas": objects}), revision)


def replica(number: int = 4, revision: int = 7, *, remembers: bool = False) -> Replica:
    done = Operation(id="mine", digest="", at=datetime(2030, 1, 1, tzinfo=UTC))
    meta = ObjectMeta(
        name="web-0-0",
        namespace="acme",
        uid="uid",
        resource_version=object_version(revision),
        operations=(done,) if remembers else (),
    )
    spec = ReplicaSpec(workload="web", workload_uid="w", template=template())
    status = ReplicaStatus(state=State.STOPPING, transition_number=number)
    return Replica(meta, spec=spec, status=status)


def operation(request: Any = MOVE) -> RequestOperation:
    return RequestOperation(request, POLICY, Half(), NOW)


def test_a_lost_answer_leads_to_a_read_and_that_to_the_same_request() -> None:
    """[E5]"""
    it = operation()
    assert it.answered(MOVE, LOST, NOW) == READ
    pause = it.answered(READ, GetResult(replica(), 9), NOW)
    assert isinstance(pause, Pause)
    assert pause.sends
    assert it.resume(NOW) == MOVE
    assert it.tries == 2
    assert it.answered(MOVE, Accepted(12), NOW) == Finish(Accepted(12), 2)


def test_what_the_subject_remembers_is_done() -> None:
    """[E5]"""
    it = operation()
    it.answered(MOVE, LOST, NOW)
    found = GetResult(replica(5, remembers=True), 9)
    assert it.answered(READ, found, NOW) == Finish(found, 1, looked=True)


@pytest.mark.parametrize("failed", [DOWN, LOST, Refusal(Reason.NOT_ALLOWED, "no")])
def test_a_read_that_fails_says_nothing_about_the_request(failed: Any) -> None:
    """It is read again, and not sent again. [E5]"""
    it = operation()
    it.answered(MOVE, LOST, NOW)
    assert isinstance(it.answered(READ, failed, NOW), Pause)
    assert it.resume(NOW) == READ


def test_a_snapshot_settles_it_only_when_it_shows_a_change() -> None:
    """An unchanged object may be one from before the request. [E5, C3]"""
    assert operation().seen(replica(), NOW) is None
    assert isinstance(operation().seen(replica(5, remembers=True), NOW), Finish)
    for found in (None, replica(5)):
        end = operation().seen(found, NOW)
        assert isinstance(end, GiveUp)
        assert end.why is Why.OVERTAKEN


def test_a_request_that_no_object_remembers_is_sent_again_by_its_preconditions() -> None:
    """[E5]"""
    forget = ForgetOperations(("a",))
    it = operation(forget)
    assert isinstance(it.answered(forget, LOST, NOW), Pause)
    assert it.resume(NOW) == forget


def test_what_answers_no_request_is_our_own_bug() -> None:
    """Nothing is guessed."""
    with pytest.raises(InvariantBroken):
        operation().answered(MOVE, 7, NOW)


# Catching up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "revision, may_be_gone, is_there, told, is_met",
    [
        (7, False, True, 3, True),
        (8, False, True, 3, False),
        (8, True, True, 3, False),
        (8, False, False, 3, False),
        (8, True, False, 3, True),
        (8, False, False, 8, True),
    ],
)
def test_a_snapshot_has_caught_up_when_it_shows_the_object_or_its_end(
    revision: int, may_be_gone: bool, is_there: bool, told: int, is_met: bool
) -> None:
    """One without an object that was just made has not, unless its bookmark is later. [C3, N3]"""
    expected = Expected("replicas", "acme", "web-0-0", revision, may_be_gone)
    objects = (replica(),) if is_there else ()
    assert expected.is_met(shown(told, *objects)) is is_met


def test_a_create_is_expected_to_be_seen_also_when_its_answer_shows_no_object() -> None:
    """Servers leave out what its sender receives anyway. [C3]"""
    it = replica()
    expected = [Expected("replicas", "acme", "web-0-0", 9, may_be_gone=False)]
    assert list(expected_after(Create(it), Accepted(9))) == expected
    assert not expected_after(MOVE, Accepted(9))


def test_a_snapshot_must_become_as_new_as_the_look_for_a_lost_answer() -> None:
    """[C3, N1.1]"""
    (there,) = expected_after(MOVE, GetResult(replica(revision=30), 40))
    assert not there.is_met(shown(20, replica(revision=29)))
    assert there.is_met(shown(20, replica(revision=30)))
    (gone,) = expected_after(Create(replica()), GetResult(None, 40))
    assert gone.is_met(shown(20))
    assert not gone.is_met(shown(20, replica(revision=39)))
