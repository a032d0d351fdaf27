"""The law of a replica's life, walked in full.

LAW restates the table of the design by hand, in its own words: it must not be computed from the
code, or the walk would prove nothing.
"""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.model.lifecycle import (
    CAUSE_OWNER,
    CHARGED,
    EVICTORS,
    MAY_RUN,
    STAGES,
    TERMINAL,
    TRANSITIONS,
    Actor,
    Cause,
    State,
    next_moves,
    owners,
    transition,
)

AGENT, SCHEDULER, OPERATOR = "agent", "scheduler", "operator"
WORKLOAD, NODES, REPAIR = "controller:workload", "controller:nodes", "controller:repair"
EVICT = (
    *(WORKLOAD, "controller:rollout", "controller:drain", SCHEDULER, REPAIR, "user"),
    "controller:quota",
)

# From, to, and all actors that may propose it. The empty state is the one before it exists.
LAW: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Pending"): (WORKLOAD,),
    ("Pending", "Reserved"): (SCHEDULER,),
    ("Pending", "Bound"): (SCHEDULER,),
    ("Reserved", "Bound"): (SCHEDULER,),
    ("Reserved", "Pending"): (SCHEDULER, REPAIR),
    ("Pending", "Released"): (WORKLOAD,),
    ("Reserved", "Released"): (WORKLOAD,),
    ("Pending", "Failed"): (WORKLOAD,),
    ("Bound", "Running"): (AGENT,),
    ("Bound", "Failed"): (AGENT,),
    ("Bound", "Succeeded"): (AGENT,),
    ("Running", "Failed"): (AGENT,),
    ("Running", "Succeeded"): (AGENT,),
    ("Running", "Running"): (AGENT,),
    ("Bound", "Stopping"): EVICT,
    ("Running", "Stopping"): EVICT,
    ("Bound", "Unknown"): (NODES,),
    ("Running", "Unknown"): (NODES,),
    ("Stopping", "Unknown"): (NODES,),
    ("Unknown", "Running"): (AGENT,),
    ("Unknown", "Stopping"): (AGENT,),
    ("Unknown", "Succeeded"): (AGENT,),
    ("Unknown", "Failed"): (AGENT, REPAIR, OPERATOR),
    ("Failed", "Released"): (AGENT, REPAIR, OPERATOR),
    ("Succeeded", "Released"): (AGENT, REPAIR, OPERATOR),
    ("Stopping", "Released"): (AGENT, REPAIR, OPERATOR),
}

SOURCES: tuple[State | None, ...] = (None, *State)


@pytest.mark.parametrize("source", SOURCES, ids=lambda state: state or "before it exists")
def test_a_move_is_allowed_to_exactly_those_whom_the_law_names(source: State | None) -> None:
    """Every state, target and actor: one owner per transition, and no other actor. [A5, A9]"""
    for target, actor in product(State, Actor):
        allowed = actor.value in LAW.get((source or "", target.value), ())
        row = transition(source, target, actor)
        assert (row is not None) == allowed, (source, target, actor)
        if row is not None:
            assert (row.source, row.target) == (source, target)


def test_the_law_has_one_row_for_each_move_and_no_others() -> None:
    moves = [(row.source or "", row.target.value) for row in TRANSITIONS]
    assert len(set(moves)) == len(moves)
    assert set(moves) == set(LAW)


def test_owners_are_those_of_the_law_for_every_pair() -> None:
    for source, target in product(SOURCES, State):
        named = {actor.value for actor in owners(source, target)}
        assert named == set(LAW.get((source or "", target.value), ()))


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row.source}-{row.target}")
def test_every_row_says_on_what_evidence_by_when_and_what_if_not(row: object) -> None:
    """No state is left without a time-out and a repair rule [A7, A8]."""
    for field in ("evidence", "within", "overdue"):
        text = getattr(row, field)
        assert text == text.strip()
        assert len(text.split()) >= 2 or text == "startupDeadlineSeconds", (field, text)


def test_nothing_follows_released_and_every_other_state_has_a_way_out() -> None:
    """Unclear terminal states are a failure mode of their own [A7]."""
    assert frozenset({State.RELEASED}) == TERMINAL
    for state in State:
        leaves = [row.target for row in next_moves(state) if row.target is not state]
        assert bool(leaves) == (state not in TERMINAL), state


def test_every_state_is_reached_and_from_every_state_released_is_reached() -> None:
    """Work neither starts from nowhere nor is stuck anywhere [A7]."""

    def reached(start: State | None) -> set[State]:
        found: set[State] = set()
        pending: list[State | None] = [start]
        while pending:
            for row in next_moves(pending.pop()):
                if row.target not in found:
                    found.add(row.target)
                    pending.append(row.target)
        return found

    assert reached(None) == set(State)
    for state in State:
        assert state in TERMINAL or State.RELEASED in reached(state), state


def test_unknown_work_fails_only_by_its_agent_the_fence_or_an_operators_decision() -> None:
    """Neither a scheduler nor a controller may declare silent work dead."""
    may_end = {
        actor
        for target in (State.FAILED, State.SUCCEEDED, State.RELEASED)
        for actor in owners(State.UNKNOWN, target)
    }
    assert may_end == {Actor.AGENT, Actor.REPAIR, Actor.OPERATOR}
    assert owners(State.UNKNOWN, State.RELEASED) == ()
    assert owners(State.UNKNOWN, State.PENDING) == ()


def test_only_a_scheduler_binds_and_only_an_agent_runs() -> None:
    """The placement authority accepts bindings from schedulers alone [A10]."""
    binders = {actor for state in State for actor in owners(state, State.BOUND)}
    runners = {actor for state in State for actor in owners(state, State.RUNNING)}
    assert (binders, runners) == ({Actor.SCHEDULER}, {Actor.AGENT})


def test_every_cause_of_a_stop_belongs_to_one_actor_and_every_evictor_has_a_cause() -> None:
    """Who stops work, and why, is one question [A9]."""
    assert {cause.value: actor.value for cause, actor in CAUSE_OWNER.items()} == {
        "ScaleDown": WORKLOAD,
        "Deleted": WORKLOAD,
        "Rollout": "controller:rollout",
        "Drain": "controller:drain",
        "Taint": "controller:drain",
        "Preemption": SCHEDULER,
        "Repair": REPAIR,
        "Deadline": WORKLOAD,
        "UserDelete": "user",
        "Reclaim": "controller:quota",
    }
    assert set(CAUSE_OWNER) == set(Cause)
    assert {actor.value for actor in EVICTORS} == set(EVICT)
    assert len(EVICTORS) == len(set(EVICTORS))


def test_what_may_run_is_charged_and_what_is_released_is_neither() -> None:
    """Capacity is freed only when nothing can run on it any more."""
    assert MAY_RUN < CHARGED
    assert {State.RESERVED} == CHARGED - MAY_RUN
    assert set(State) - CHARGED == {State.PENDING, State.RELEASED}
    # Whatever an agent may report on may run, and only that.
    reported = {row.source for row in TRANSITIONS if Actor.AGENT in row.actors}
    assert reported == MAY_RUN


def test_stages_go_from_admitted_to_serving() -> None:
    """Each is completed on its own [A6]."""
    assert " ".join(STAGES) == "Admitted Queued Scheduled Bound Starting Ready Serving"
