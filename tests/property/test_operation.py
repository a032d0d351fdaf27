"""The operation machine under any sequence of outcomes: bounded, patient, and never blind."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Conflict, Forbidden, OutcomeUnknown, Unavailable
from holdfast.model.operation_evidence import Evidence
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
)
from holdfast.observe.retry import RetryPolicy

ABSENT, DONE = Evidence.ABSENT, Evidence.DONE
AFTER = st.sampled_from([0, 0, 100, 2_000])
SENT = st.one_of(
    st.builds(Failed, st.just(Unavailable("down")), AFTER),
    st.builds(Failed, st.just(OutcomeUnknown("lost")), AFTER),
    st.builds(Failed, st.just(OutcomeUnknown("lost")), AFTER),
    st.builds(Failed, st.just(Conflict("stale"))),
    st.builds(Failed, st.just(Forbidden("no"))),
    st.just(Replied("yes")),
)
LOOKED = st.one_of(
    st.just(Looked(ABSENT)),
    st.just(Looked(ABSENT)),
    st.just(Looked(DONE, "found")),
    st.just(Looked(Evidence.OVERTAKEN)),
    st.builds(LookFailed, st.just(Unavailable("down")), AFTER),
)
POLICIES = st.builds(
    RetryPolicy,
    tries_max=st.integers(1, 6),
    looks_max=st.integers(1, 6),
    deadline_ms=st.integers(1, 20_000),
    try_ms=st.integers(1, 5_000),
    pause_ms=st.integers(1, 500),
    pause_max_ms=st.integers(1, 3_000),
    looks_at_once=st.booleans(),
    repeats_undone=st.booleans(),
)


def run(
    data: st.DataObject, policy: RetryPolicy, nature: Nature, seed: int
) -> list[tuple[int, Any, Any]]:
    """Everything that happened: (moment, stimulus, effect), to the end."""
    machine = OperationMachine(policy, nature, random.Random(seed))
    story: list[tuple[int, Any, Any]] = []
    now_ms, stimulus = 5_000, Begun()
    while True:
        effect = machine.step(stimulus, now_ms)
        story.append((now_ms, stimulus, effect))
        match effect:
            case Finish() | GiveUp():
                return story
            case Pause(duration_ms=duration_ms):
                now_ms += duration_ms
                stimulus = Paused()
            case Send(timeout_ms=timeout_ms):
                now_ms += data.draw(st.integers(0, timeout_ms))
                stimulus = data.draw(SENT)
            case LookForOperation(timeout_ms=timeout_ms):
                now_ms += data.draw(st.integers(0, timeout_ms))
                stimulus = data.draw(LOOKED)


@given(st.data(), POLICIES, st.sampled_from(Nature), st.integers(0, 99))
def test_tries_looks_and_time_are_bounded(
    data: st.DataObject, policy: RetryPolicy, nature: Nature, seed: int
) -> None:
    """[E5]"""
    story = run(data, policy, nature, seed)
    effects = [effect for _, _, effect in story]
    assert sum(isinstance(e, Send) for e in effects) <= policy.tries_max
    assert sum(isinstance(e, LookForOperation) for e in effects) <= policy.looks_max
    # Nothing is begun after the deadline, and a look that it ended in is the last.
    assert story[-1][0] - story[0][0] <= policy.deadline_ms + 2


@given(st.data(), POLICIES, st.sampled_from([Nature.WRITE, Nature.CHANGE]), st.integers(0, 99))
def test_an_unknown_outcome_is_never_followed_by_a_try_without_a_look(
    data: st.DataObject, policy: RetryPolicy, nature: Nature, seed: int
) -> None:
    """[E5]"""
    unresolved = False
    for _, stimulus, effect in run(data, policy, nature, seed):
        if isinstance(stimulus, Failed) and isinstance(stimulus.error, OutcomeUnknown):
            unresolved = True
        elif isinstance(stimulus, Looked):
            unresolved = False
        assert not (unresolved and isinstance(effect, Send))


@given(st.data(), POLICIES, st.sampled_from([Nature.WRITE, Nature.CHANGE]), st.integers(0, 99))
def test_unavailable_is_said_only_when_no_try_can_have_taken_effect(
    data: st.DataObject, policy: RetryPolicy, nature: Nature, seed: int
) -> None:
    """[E5]"""
    story = run(data, policy, nature, seed)
    last = story[-1][2]
    lost = any(
        isinstance(stimulus, Failed) and isinstance(stimulus.error, OutcomeUnknown)
        for _, stimulus, _ in story
    )
    if lost and isinstance(last, GiveUp):
        assert not isinstance(last.error, Unavailable)


@given(st.integers(1, 30), st.sampled_from([0, 50, 4_000]), POLICIES, st.integers(0, 99))
def test_a_pause_is_never_shorter_than_asked_and_half_of_it_is_chance(
    failures: int, after_ms: int, policy: RetryPolicy, seed: int
) -> None:
    """[E5]"""
    rng = random.Random(seed)
    pauses = [policy.pause(failures, after_ms, rng) for _ in range(8)]
    full = min(policy.pause_max_ms, policy.pause_ms * 2 ** (failures - 1))
    assert all(pause >= max(1, after_ms, full // 2) for pause in pauses)
    assert all(pause <= after_ms + max(1, full) for pause in pauses)
    if full >= 1_000:
        assert len(set(pauses)) > 1
