"""The operation machine, outcome by outcome."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.errors import (
    Conflict,
    Expired,
    Forbidden,
    HoldfastError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Unavailable,
)
from holdfast.model.operation_evidence import Evidence
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.operation import (
    Begun,
    Failed,
    Finish,
    GiveUp,
    Looked,
    LookFailed,
    LookForOperation,
    Nature,
    OperationMachine,
    Pause,
    Paused,
    Replied,
    Send,
    Why,
)
from holdfast.observe.retry import RetryPolicy

ABSENT, DONE = Evidence.ABSENT, Evidence.DONE
POLICY = RetryPolicy(tries_max=4, looks_max=3, deadline_ms=10_000, try_ms=2_000)
DOWN = Unavailable("no server is reachable")
LOST = OutcomeUnknown("the connection broke")


class Half:
    """A random source that always returns one half."""

    def random(self) -> float:
        return 0.5


class Run:
    """A machine with a clock that moves only by its pauses."""

    def __init__(self, nature: Nature, policy: RetryPolicy = POLICY) -> None:
        self.machine = OperationMachine(policy, nature, Half())
        self.at_ms = 1_000
        self.effects: list[Any] = []

    def received(self, *stimuli: Any) -> Any:
        """The last effect; pauses are slept through."""
        for stimulus in stimuli:
            self.step(stimulus)
            while isinstance(self.effects[-1], Pause):
                self.at_ms += self.effects[-1].duration_ms
                self.step(Paused())
        return self.effects[-1]

    def step(self, stimulus: Any) -> None:
        self.effects.append(self.machine.step(stimulus, self.at_ms))

    def pauses(self) -> list[int]:
        return [e.duration_ms for e in self.effects if isinstance(e, Pause)]


BROKEN = Unavailable("formats/plane cannot be read", code=Reason.RECORD_UNREADABLE)


@pytest.mark.parametrize("nature", list(Nature))
def test_what_only_a_person_can_repair_fails_at_once(nature: Nature) -> None:
    """A user at a terminal does not wait half a minute for an answer that cannot change. [E5]"""
    run = Run(nature)
    assert run.received(Begun(), Failed(BROKEN)) == GiveUp(BROKEN, 1, Why.UNDONE)
    assert run.pauses() == []


@pytest.mark.parametrize("then", [LookFailed(BROKEN), Looked(ABSENT)])
def test_what_may_have_happened_before_stays_in_doubt_where_a_record_is_damaged(then: Any) -> None:
    """[E5, N1.1]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(LOST), then)
    if isinstance(then, Looked):
        run.received(Failed(BROKEN))
    ended = run.effects[-1]
    assert isinstance(ended, GiveUp)
    assert isinstance(ended.error, OutcomeUnknown)
    assert BROKEN.message in ended.error.message


def test_a_yes_ends_it() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    assert run.received(Begun()) == Send(2_000)
    assert run.received(Replied("done")) == Finish("done", 1)


def test_what_did_not_happen_is_sent_again_after_growing_pauses() -> None:
    """[E5, C7.5]"""
    run = Run(Nature.WRITE)
    last = run.received(Begun(), Failed(DOWN), Failed(DOWN), Failed(DOWN), Failed(DOWN))
    assert isinstance(last, GiveUp)
    assert last == GiveUp(DOWN, 4, Why.UNDONE)
    assert run.pauses() == [37, 75, 150]


def test_a_server_that_asks_for_patience_gets_it() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(DOWN, retry_after_ms=3_000))
    assert run.pauses()[0] >= 3_000


def test_patience_beyond_the_deadline_is_not_waited_for() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    assert run.received(Begun(), Failed(DOWN, retry_after_ms=60_000)) == GiveUp(DOWN, 1, Why.UNDONE)


def test_the_last_try_gets_no_more_time_than_is_left() -> None:
    """[E5]"""
    run = Run(Nature.READ, RetryPolicy(deadline_ms=3_000, try_ms=2_000, pause_ms=2_000))
    effect = run.received(Begun(), Failed(DOWN))
    assert effect == Send(1_500)


def test_an_unknown_outcome_is_looked_up_and_found() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    assert run.received(Begun(), Failed(LOST)) == LookForOperation(2_000)
    assert run.received(Looked(DONE, "it is there")) == Finish("it is there", 1, looked=True)


def test_an_unknown_outcome_without_a_trace_is_sent_again_once_it_was_looked_up() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(LOST))
    assert isinstance(run.received(Looked(ABSENT)), Send)
    assert run.received(Replied("done")) == Finish("done", 2)


def test_a_look_that_fails_is_repeated_and_never_replaced_by_a_try() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(LOST))
    assert isinstance(run.received(LookFailed(DOWN)), LookForOperation)
    assert isinstance(run.received(LookFailed(LOST)), LookForOperation)
    last = run.received(LookFailed(DOWN))
    assert isinstance(last, GiveUp)
    assert isinstance(last.error, OutcomeUnknown)
    assert last.tries == 1


def test_giving_up_in_doubt_never_means_that_it_did_not_happen() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(LOST), Looked(ABSENT))
    last = run.received(Failed(DOWN), Failed(DOWN), Failed(DOWN))
    assert isinstance(last, GiveUp)
    assert isinstance(last.error, OutcomeUnknown)


def test_a_refusal_in_doubt_may_be_the_doing_of_the_lost_try() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    run.received(Begun(), Failed(LOST), Looked(ABSENT))
    assert isinstance(run.received(Failed(Conflict("changed"))), LookForOperation)
    assert run.received(Looked(DONE, "by us")) == Finish("by us", 2, looked=True)


def test_a_refusal_in_doubt_without_a_trace_is_an_answer() -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    refusal = Forbidden("no quota", code=Reason.QUOTA_EXCEEDED)
    run.received(Begun(), Failed(LOST), Looked(ABSENT), Failed(refusal))
    assert run.received(Looked(ABSENT)) == GiveUp(refusal, 2, Why.REFUSED)


def test_an_id_that_was_accepted_for_another_form_is_looked_up() -> None:
    """[E5]"""
    run = Run(Nature.CHANGE)
    reused = Conflict("used before", code=Reason.OPERATION_REUSED)
    assert isinstance(run.received(Begun(), Failed(reused)), LookForOperation)


def test_a_conflict_leads_to_a_fresh_read_where_the_caller_can_decide_again() -> None:
    """[E5]"""
    run = Run(Nature.CHANGE)
    assert run.received(Begun()) == Send(2_000, fresh=True)
    again = run.received(Failed(Conflict("stale")))
    assert isinstance(again, Send)
    assert again.fresh


def test_a_change_in_doubt_is_computed_afresh_when_there_is_no_trace() -> None:
    """[E5]"""
    run = Run(Nature.CHANGE)
    again = run.received(Begun(), Failed(LOST), Looked(ABSENT))
    assert isinstance(again, Send)
    assert again.fresh


@pytest.mark.parametrize(
    "error",
    [Conflict("stale"), Forbidden("no"), Invalid("bad"), Missing("none"), Expired("old")],
)
def test_a_refusal_is_an_answer(error: HoldfastError) -> None:
    """[E5]"""
    run = Run(Nature.WRITE)
    assert run.received(Begun(), Failed(error)) == GiveUp(error, 1, Why.REFUSED)


@pytest.mark.parametrize("error", [Missing("none"), Expired("old"), Invalid("bad")])
def test_a_refused_read_is_an_answer(error: HoldfastError) -> None:
    """[E5]"""
    run = Run(Nature.READ)
    assert run.received(Begun(), Failed(error)) == GiveUp(error, 1, Why.REFUSED)


def test_a_read_is_repeated_whatever_became_of_it() -> None:
    """[E5]"""
    run = Run(Nature.READ)
    assert isinstance(run.received(Begun(), Failed(LOST)), Send)
    assert isinstance(run.received(Failed(DOWN)), Send)


# An owner with the policy of binds: it looks at once, and decides anew what did not happen.
PLACES = RetryPolicy(
    tries_max=3,
    looks_max=None,
    deadline_ms=None,
    try_ms=2_000,
    pause_ms=1_000,
    pause_max_ms=30_000,
    looks_at_once=True,
    repeats_undone=False,
)


def test_an_owner_may_look_at_once_and_pause_before_the_next_copy() -> None:
    """[E5, F6]"""
    run = Run(Nature.WRITE, PLACES)
    run.received(Begun())
    run.step(Failed(LOST))
    assert run.effects[-1] == LookForOperation(2_000)
    run.step(Looked(ABSENT))
    assert run.effects[-1] == Pause(750, sends=True)
    assert run.received(Paused()) == Send(2_000)


def test_an_owner_that_decides_again_gets_what_did_not_happen_back() -> None:
    """[E5]"""
    run = Run(Nature.WRITE, PLACES)
    assert run.received(Begun(), Failed(DOWN)) == GiveUp(DOWN, 1, Why.UNDONE)


def test_what_did_not_happen_settles_nothing_while_an_earlier_copy_may_have() -> None:
    """[E5, F6]"""
    run = Run(Nature.WRITE, PLACES)
    run.received(Begun(), Failed(LOST), Looked(ABSENT))
    assert run.received(Failed(DOWN)) == LookForOperation(2_000)
    assert run.received(Looked(DONE, "bound")) == Finish("bound", 2, looked=True)


def test_copies_without_a_trace_are_given_up_after_the_last() -> None:
    """[E5, F6]"""
    run = Run(Nature.WRITE, PLACES)
    run.received(Begun())
    for _ in range(3):
        run.received(Failed(LOST), Looked(ABSENT))
    ended = run.effects[-1]
    assert isinstance(ended, GiveUp)
    assert (ended.tries, ended.why) == (3, Why.NO_TRACE)
    assert run.pauses() == [750, 1_500]


def test_looks_without_a_bound_go_on_as_long_as_servers_are_away() -> None:
    """An outcome that is unknown is never taken for a failure. [E5, F6]"""
    run = Run(Nature.WRITE, PLACES)
    run.received(Begun(), Failed(LOST))
    for _ in range(50):
        assert run.received(LookFailed(DOWN)) == LookForOperation(2_000)
    assert max(run.pauses()) <= PLACES.pause_max_ms


def test_an_object_that_has_moved_on_settles_it() -> None:
    """[E5, F6]"""
    run = Run(Nature.WRITE, PLACES)
    ended = run.received(Begun(), Failed(LOST), Looked(Evidence.OVERTAKEN))
    assert isinstance(ended, GiveUp)
    assert ended.why is Why.OVERTAKEN


@pytest.mark.parametrize("before", [(), (Failed(LOST),), (Failed(LOST), LookFailed(DOWN))])
def test_a_snapshot_that_shows_the_outcome_settles_it_whenever_it_comes(before: Any) -> None:
    """[E5]"""
    run = Run(Nature.WRITE, PLACES)
    run.received(Begun(), *before)
    assert run.received(Looked(DONE)) == Finish(None, 1, looked=True)


def test_a_refusal_as_a_value_is_an_answer_too() -> None:
    """[E5]"""
    full = Refusal(Reason.NODE_FULL, "no room")
    assert Run(Nature.WRITE, PLACES).received(Begun(), Failed(full)) == GiveUp(full, 1, Why.REFUSED)


# An owner whose next request depends on what happens meanwhile: one copy, and no look.
REPORTS = RetryPolicy(tries_max=1, looks_max=0, looks_at_once=True, repeats_undone=False)


def test_an_owner_without_looks_learns_at_once_that_the_outcome_is_unknown() -> None:
    """It sends the same again, under the same id, if nothing has changed. [E5]"""
    ended = Run(Nature.WRITE, REPORTS).received(Begun(), Failed(LOST))
    assert isinstance(ended, GiveUp)
    assert (ended.tries, ended.why) == (1, Why.UNKNOWN)
    reused = Refusal(Reason.OPERATION_REUSED, "")
    ended = Run(Nature.WRITE, REPORTS).received(Begun(), Failed(reused))
    assert ended == GiveUp(reused, 1, Why.REFUSED)
