"""One controller's office: from when it acts, and when a key is given back."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from holdfast.correct.controller_worker import TAKEOVER_WAIT_MS, ControllerWorker
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.errors import InvariantBroken, OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.lifecycle import State
from holdfast.model.machine import Question
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, Move, Term
from tests.unit.correct.controller_rig import target
from tests.unit.correct.views import NOW, later, meta, replica, view

KEY = ("acme", "web")
MOVE = Move(target(replica()), State.RELEASED)


def member(revision: int = 500) -> ControllerWorker:
    """A member that has just acquired its lease at a revision."""
    made = ControllerWorker(WorkloadController(), random.Random(3))
    spec = LeaseSpec(scope="controller:workload", holder=made.identity, epoch=4)
    answer = Accepted(revision, (Lease(meta("controller-workload"), spec=spec),))
    made.lease_acquired(revision, NOW)
    made.election.answered(AcquireLease(spec.scope, 15_000), answer, NOW.monotonic_ms, NOW)
    return made


def test_after_taking_office_it_looks_on_for_a_while() -> None:
    """What its predecessor did last may not have been told yet. [K2, C3]"""
    made = member(revision=500)
    old = view(told=499)
    assert made.term(old, NOW) is None
    assert made.term(old, later(TAKEOVER_WAIT_MS - 1)) is None
    assert made.term(old, later(TAKEOVER_WAIT_MS)) == Term("controller:workload", 4)


def test_a_snapshot_as_new_as_the_lease_need_not_wait() -> None:
    """All that the predecessor did is in it."""
    assert member(revision=500).term(view(told=500), NOW) == Term("controller:workload", 4)


def flown(*answers: Any, plane: str = "") -> tuple[ControllerWorker, Get | None]:
    """A member and what it sends after the answers to its request and to the read of it."""
    made = member()
    made.queue.add(KEY, 0)
    assert made.queue.take(0) == KEY
    (operation,) = made.takes_off(KEY, [(plane, MOVE)], None, NOW)
    sent: Question = MOVE
    read: Get | None = None
    for answer in answers:
        read = made.answered(KEY, operation, sent, answer, NOW)
        sent = read or sent
    return made, read


@pytest.mark.parametrize("reason", [Reason.STALE_REPLICA, Reason.STALE_EPOCH])
def test_a_refused_key_waits_and_only_a_stale_epoch_costs_the_lease(reason: Reason) -> None:
    """A refusal is a value to react to. [K1]"""
    made, get = flown(Refusal(reason, "no"))
    assert get is None
    assert (made.asked, made.queue.failures(KEY)) == (0, 1)
    assert (made.election.term is None) is (reason is Reason.STALE_EPOCH)


@pytest.mark.parametrize("answer", [Unavailable("down"), Accepted(9, replayed=True)])
def test_what_did_not_happen_now_is_tried_after_a_pause(answer: Any) -> None:
    """By a fault, or because it was so before. [C7.5, E5]"""
    made, get = flown(answer)
    assert (get, made.queue.failures(KEY), made.is_behind(KEY, view(told=1))) == (None, 1, False)


def test_an_unknown_outcome_is_read_before_anything_else_is_decided() -> None:
    """The key stays taken until then, and waits until its snapshot is as new as the read. [N1.1]"""
    made, get = flown(OutcomeUnknown("lost"))
    assert get == Get("replicas", "web-0-0", "acme")
    made.queue.add(KEY, 0)
    assert made.queue.take(10**9) is None
    newer = replica()
    metadata = meta("web-0-0", "acme", revision=30)
    found = GetResult(type(newer)(metadata, spec=newer.spec), 40)
    made, get = flown(OutcomeUnknown("lost"), found)
    assert get is None
    assert (made.asked, made.queue.failures(KEY)) == (0, 1)
    assert made.is_behind(KEY, view(replica(), told=20))
    assert not made.is_behind(KEY, view(replica(), told=30))


def test_an_effect_in_another_plane_is_seen_in_the_cache_of_that_plane() -> None:
    """The revisions of the own plane say nothing about it, nor does one never listed."""
    newer = replica()
    found = GetResult(type(newer)(meta("web-0-0", "acme", revision=30), spec=newer.spec), 40)
    shows = ({}, {"globe": view(replica(), told=20)}, {"globe": view(replica(), told=30)})
    behind = []
    for abroad in shows:
        made, _ = flown(OutcomeUnknown("lost"), found, plane="globe")
        there = msgspec.structs.replace(view(replica(), told=90), abroad=abroad)
        behind.append(made.is_behind(KEY, there))
    assert behind == [True, True, False]


def test_a_stale_epoch_in_another_plane_costs_no_lease() -> None:
    """The lease is one of the own plane."""
    made, _ = flown(Refusal(Reason.STALE_EPOCH, "no"), plane="globe")
    assert made.election.term is not None


@pytest.mark.parametrize("failed", [Unavailable("down"), Refusal(Reason.NOT_ALLOWED, "no")])
def test_a_read_that_fails_gives_the_key_back_after_a_pause(failed: Any) -> None:
    """Then the same state makes the same request under the same id. [N1.1, E5]"""
    made, get = flown(OutcomeUnknown("lost"), failed)
    assert (get, made.asked, made.queue.failures(KEY)) == (None, 0, 1)
    assert not made.is_behind(KEY, view(told=1))


def test_what_is_no_answer_is_our_own_bug() -> None:
    """Nothing is guessed."""
    with pytest.raises(InvariantBroken):
        flown("yes")
