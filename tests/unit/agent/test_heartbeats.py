"""When an agent renews, and what each answer is worth."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.heartbeats import RENEWALS_MAX, Echo, Life, NodeHeartbeats
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import NodePhase
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import Renew, Renewed
from holdfast.model.refusal import Reason, Refusal
from tests.unit.agent.rig import Half

LIFE = Life("u1", 3)
RENEW = Renew("n1", "u1", 3)


def renewing(at_ms: int = 0) -> NodeHeartbeats:
    it = NodeHeartbeats("n1", Half())
    it.begin(LIFE, at_ms)
    return it


def answer(timing: FenceTiming | None = None, **changes: Any) -> Renewed:
    given = {"uid": "u1", "incarnation": 3, "phase": NodePhase.READY, "mark": 0, **changes}
    return Renewed(node="n1", timing=timing or FenceTiming(), **given)


def test_a_deadline_counts_from_the_sending_never_from_the_answer() -> None:
    """An answer that took an hour is worth no more than one that took a moment. [H7]"""
    it = renewing(1_000)
    assert it.due(1_000) == RENEW
    assert it.answered(RENEW, answer(), 1_000, 3_600_000) is Echo.ACKNOWLEDGED
    assert it.deadline_ms == 31_000


def test_an_older_acknowledgement_that_comes_later_moves_nothing_back() -> None:
    """Answers overtake each other. [H7]"""
    it = renewing()
    it.due(0)
    it.due(10_000)
    it.answered(RENEW, answer(), 10_000, 12_000)
    it.answered(RENEW, answer(), 0, 12_500)
    assert it.deadline_ms == 40_000


def test_a_shorter_heartbeat_interval_of_the_plane_takes_effect_at_once() -> None:
    """A second renewal after the usual time would come after the deadline of the first. An answer
    that is late calls for nothing more: a later renewal is on its way already."""
    it = renewing()
    it.due(0)
    hasty = FenceTiming(self_stop_after_ms=6_000)
    assert it.answered(RENEW, answer(hasty), 0, 50) is Echo.ACKNOWLEDGED
    assert (it.next_ms, it.deadline_ms) == (2_000, 6_000)
    it.due(2_000)
    it.due(4_000)
    it.answered(RENEW, answer(hasty), 2_000, 5_000)
    assert it.next_ms == 6_000


@pytest.mark.parametrize(
    "changes, echo",
    [
        ({"mark": 1, "phase": NodePhase.UNKNOWN}, Echo.NOTHING),
        ({"mark": 1}, Echo.NOTHING),
        ({"incarnation": 2}, Echo.NOTHING),
        ({"incarnation": 4}, Echo.OVER),
        ({"uid": "u2"}, Echo.OVER),
        ({"phase": NodePhase.FENCED, "mark": 1}, Echo.OVER),
        ({"phase": NodePhase.LOST, "mark": 1}, Echo.OVER),
        ({"phase": NodePhase.FENCED, "incarnation": 2}, Echo.NOTHING),
    ],
)
def test_an_answer_about_anything_but_this_trusted_life_gives_no_deadline(
    changes: dict[str, Any], echo: Echo
) -> None:
    """Only the node of this uid, in this life and without a mark, is let run on. [H4, K1]"""
    it = renewing()
    it.due(0)
    assert it.answered(RENEW, answer(**changes), 0, 10) is echo
    assert it.deadline_ms is None


@pytest.mark.parametrize("body", [Unavailable("no server"), OutcomeUnknown("no answer")])
def test_what_gets_no_answer_is_repeated_once_and_then_only_as_earned(body: Any) -> None:
    """However long no server answers, at most a tenth more heartbeats than usual. [E5, E6, I1]"""
    it = renewing()
    now_ms, pauses = 0, []
    for _ in range(34):
        assert it.due(now_ms) == RENEW
        assert it.answered(RENEW, body, now_ms, now_ms) is Echo.NOTHING
        assert it.next_ms is not None
        pauses.append(it.next_ms - now_ms)
        now_ms = it.next_ms
    every_ms = FenceTiming().renew_every_ms
    assert [at for at, pause_ms in enumerate(pauses) if pause_ms != every_ms] == [0, 10, 20, 30]
    assert {pause_ms for pause_ms in pauses if pause_ms != every_ms} == {187}


@pytest.mark.parametrize(
    "body, echo",
    [
        (Refusal(Reason.NOT_OWNER, "who are you"), Echo.NOTHING),
        (Refusal(Reason.NODE_MISSING, "no such node"), Echo.DOUBT),
    ],
)
def test_without_an_acknowledgement_it_tries_again_sooner_within_bounds(
    body: Any, echo: Echo
) -> None:
    """The pause grows, and never beyond the usual one. [E5, C7.5]"""
    it = renewing()
    now_ms, pauses = 0, []
    for _ in range(12):
        assert it.due(now_ms) == RENEW
        assert it.answered(RENEW, body, now_ms, now_ms) is echo
        assert it.next_ms is not None
        pauses.append(it.next_ms - now_ms)
        now_ms = it.next_ms
    assert pauses[:3] == [187, 375, 750]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 7_500


def test_what_was_acknowledged_for_one_life_counts_for_no_other() -> None:
    """A new life starts without a deadline, and late answers to the old one are nothing. [K1]"""
    it = renewing()
    it.due(0)
    it.answered(RENEW, answer(), 0, 5)
    it.due(10_000)
    it.begin(Life("u1", 4), 10_001)
    assert it.deadline_ms is None
    assert it.answered(RENEW, answer(), 10_000, 10_002) is Echo.NOTHING
    assert it.deadline_ms is None
    it.end()
    assert it.next_ms is None
    assert it.due(99_999) is None


def test_a_renewal_that_hangs_does_not_hold_up_the_next_and_few_hang_at_once() -> None:
    """Bounded on both sides."""
    it = renewing()
    sent = [it.due(at_ms) for at_ms in range(0, 60_000, 10_000)]
    assert [renew is not None for renew in sent] == [True] * RENEWALS_MAX + [False] * 3
    it.answered(RENEW, Unavailable("x"), 0, 60_000)
    assert it.due(70_000) == RENEW


def test_nothing_is_launched_shortly_before_its_deadline() -> None:
    """Work that starts then starts in vain."""
    it = renewing()
    assert not it.may_launch(0)
    it.due(0)
    it.answered(RENEW, answer(), 0, 5)
    assert it.may_launch(26_999)
    assert not it.may_launch(27_000)
    assert not it.may_launch(30_001)


def test_a_plane_without_any_time_does_not_make_its_agents_spin() -> None:
    """The timing comes from outside."""
    it = renewing()
    it.due(0)
    it.answered(RENEW, answer(FenceTiming(self_stop_after_ms=0)), 0, 0)
    it.due(10_000)
    assert it.next_ms == 10_100
    assert not it.may_launch(0)
