"""The rules of transitions: every state, every target, every caller, on every node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.model.access import identity as who
from holdfast.model.access.identity import ADMINS, Identity, acts_as
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, Stage, State, owners
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Evict, Move, NodeAction, Remove, Unreserve, Update
from holdfast.model.validation.text import SENTENCE_MAX
from tests.furnished import AGENT, ANN, ANONYMOUS, Furnished
from tests.plane import (
    ADMIN,
    NODES,
    REPAIR,
    SCHEDULER,
    WORKLOADS,
    accepted,
    refused,
    target,
    template,
)

CONTROLLERS = tuple(
    who.controller(actor.value.partition(":")[2])
    for actor in Actor
    if actor.value.startswith("controller:")
)
# All possible callers, and the incarnation that an agent reports for.
CALLERS: tuple[tuple[Identity, int | None], ...] = (
    (SCHEDULER, None),
    *((controller, None) for controller in CONTROLLERS),
    (AGENT, 1),
    (AGENT, 0),
    (AGENT, 2),
    (AGENT, None),
    (who.agent("node-b"), 1),
    (ANN, None),
    (ADMIN, None),
    (who.server("a"), None),
    (ANONYMOUS, None),
)
# What may be believed of the node meanwhile.
PLAIN, MARKED, FENCED = NodePhase.READY, NodePhase.UNKNOWN, NodePhase.FENCED


def failed_pending(it: Furnished) -> Any:
    return it.yes(
        WORKLOADS, Move(target(it.pending()), State.FAILED, "JobDeadline", term=it.term(WORKLOADS))
    )


# Ways into each state, by legal transitions. A replica may have been asked to stop before it was
# lost.
WAYS: dict[str, Callable[[Furnished], Any]] = {
    "Pending": lambda it: it.pending(),
    "Reserved": lambda it: it.reserved(),
    "Bound": lambda it: it.bound(),
    "Running": lambda it: it.running(),
    "Stopping": lambda it: it.stopping(),
    "Unknown": lambda it: it.unknown(),
    "Unknown while it stopped": lambda it: it.unknown(it.stopping()),
    "Failed": lambda it: it.moved(it.bound(), State.FAILED),
    "Failed before it was bound": failed_pending,
    "Succeeded": lambda it: it.moved(it.running(), State.SUCCEEDED),
    "Released": lambda it: it.released(),
}


def arranged(way: str, phase: NodePhase) -> tuple[Furnished, Any]:
    """A replica that came this way, on a node of this phase."""
    it = Furnished()
    it.term(SCHEDULER)
    for controller in CONTROLLERS:
        it.term(controller)
    replica = WAYS[way](it)
    marked = it.mark_of() != 0
    if phase is PLAIN and marked:
        it.cleared()
    elif phase is MARKED and not marked:
        it.marked()
    elif phase is FENCED:
        it.fenced()
    if replica.status.state in (State.BOUND, State.RUNNING):
        # Only from such a node may a drain take it.
        it.draining()
    return it, it.get(replica)


def request(it: Furnished, replica: Any, to: State, identity: Identity, life: int | None) -> Any:
    """The best case that this identity can make for this move."""
    actors = acts_as(identity)
    leased = bool(actors) and actors[0] not in (Actor.AGENT, Actor.USER, Actor.AUTHORITY)
    term = it.term(identity) if leased else None
    match to:
        case State.RESERVED:
            return it.reserve(replica)
        case State.BOUND:
            return it.bind(replica)
        case State.PENDING:
            return Unreserve(target(replica), "Conflict", term)
        case State.STOPPING if replica.status.state is not State.UNKNOWN:
            mine = [cause for cause, owner in CAUSE_OWNER.items() if owner in actors]
            return Evict(target(replica), (mine or [Cause.DRAIN])[0], "told so", term)
        case _:
            return Move(
                target(replica),
                to,
                "Because",
                "what was seen",
                incarnation=life,
                mark=it.mark_of(),
                word="the machine is scrap",
                term=term,
            )


def lawful(replica: Any, to: State, identity: Identity, life: int | None, phase: NodePhase) -> bool:
    """Whether the table, and the proof that goes with its row, allow it; computed without src."""
    source, stopped = replica.status.state, replica.status.cause is not None
    actor = next((a for a in acts_as(identity) if a in owners(source, to)), None)
    match actor:
        case None:
            return False
        case Actor.AGENT:
            mine = identity == AGENT and replica.status.binding is not None
            # Any later life may prove that work has stopped.
            spoken = life == 1 or (to is State.RELEASED and life == 2)
            if source is State.UNKNOWN:
                goes_on = (
                    stopped if to is State.STOPPING else not stopped or to is not State.RUNNING
                )
                return mine and spoken and phase is PLAIN and goes_on
            return mine and spoken
        case Actor.SCHEDULER if to in (State.RESERVED, State.BOUND):
            return phase is PLAIN
        case Actor.SCHEDULER if to is State.STOPPING:
            # A preemption has a request of its own.
            return False
        case Actor.QUOTA:
            # The tenant has borrowed nothing here; `tests/unit/correct/test_quota.py` has that.
            return False
        case Actor.NODES:
            return phase is not PLAIN
        case Actor.REPAIR if to is State.PENDING:
            # Its deadline has not passed here.
            return False
        case Actor.OPERATOR if ADMINS not in identity.groups:
            # An editor of a namespace may not do this: it is a permission of its own.
            return False
        case Actor.OPERATOR if to is State.RELEASED:
            # As long as an agent could speak for it, a person cannot.
            return phase is FENCED or replica.status.binding is None
        case Actor.REPAIR if to in (State.FAILED, State.RELEASED):
            return phase is FENCED or replica.status.binding is None
        case _:
            return True


def tries(it: Furnished, replica: Any) -> Iterator[tuple[State, Identity, int | None, Any]]:
    for to in State:
        for identity, life in CALLERS:
            yield to, identity, life, request(it, replica, to, identity, life)


@pytest.mark.parametrize("phase", [PLAIN, MARKED, FENCED])
@pytest.mark.parametrize("way", WAYS)
def test_the_commit_accepts_exactly_what_the_table_allows(way: str, phase: NodePhase) -> None:
    """For every caller and target, with the best evidence. [A8, A9, C6.3, C6.7, INV6]"""
    it, replica = arranged(way, phase)
    snapshot = it.snapshot()
    accepted_moves = 0
    for to, identity, life, asked in tries(it, replica):
        before = it.plane.store.revision
        seen = it.plane.store.get(f"objects/replicas/acme/{replica.name}")
        answer = it.plane.ask(identity, asked)
        allowed = lawful(replica, to, identity, life, phase)
        said = f"{identity.name} in life {life}, {way} to {to.value} on {phase.value}: {answer}"
        assert isinstance(answer, Accepted) == allowed, said
        if not allowed:
            assert it.plane.store.revision == before, said
            continue
        accepted_moves += 1
        after = it.get(replica)
        last = after.status.transitions[-1]
        assert seen is not None
        assert (last.from_state, last.to) == (replica.status.state, to), said
        assert (last.by, last.at) == (identity.name, it.plane.at()), said
        assert last.revision == seen.modified, said
        assert last.reason, said
        assert last.evidence, said
        assert after.status.transition_number == replica.status.transition_number + 1
        it.check()
        it.restore(snapshot)
    # A test of the law that never sees it obeyed would prove little.
    assert accepted_moves or (way, phase) in SILENT


# Where nothing can happen by these requests: at the end, and where only others may act.
SILENT = {
    ("Released", PLAIN),
    ("Released", MARKED),
    ("Released", FENCED),
}


def test_a_replica_is_created_by_its_workloads_controller_alone() -> None:
    """[A9, C6.7]"""
    it = Furnished()
    for identity, _ in CALLERS:
        if identity == WORKLOADS:
            continue
        if identity.name.startswith(("system:controller:", "system:scheduler:")):
            it.term(identity)
        before = it.plane.store.revision
        answer = it.plane.ask(identity, it.birth(it.web))
        assert not isinstance(answer, Accepted), identity
        assert it.plane.store.revision == before
    born = accepted(it.plane.ask(WORKLOADS, it.birth(it.web)))
    assert born.status.state is State.PENDING
    assert born.status.transitions[-1].by == WORKLOADS.name


def test_a_transition_from_an_older_step_is_refused_with_both_numbers() -> None:
    """[C2]"""
    it = Furnished()
    bound = it.bound()
    it.moved(bound, State.RUNNING)
    refusal = refused(
        it.ask(AGENT, Move(target(bound), State.FAILED, incarnation=1)), Reason.STALE_REPLICA
    )
    assert (refusal.details["number"], refusal.details["expected"]) == ("2", "1")


def test_a_successor_of_the_same_name_is_another_replica() -> None:
    """The next workload of the name begins with the same names of replicas."""
    it = Furnished()
    web = it.plane.workload("api")
    old = it.plane.replica(web, 0)
    it.yes(ADMIN, Remove("workloads", "acme", "api"))
    it.yes(WORKLOADS, Remove("replicas", "acme", old.name))
    it.yes(WORKLOADS, Move(target(it.get(old)), State.RELEASED, term=it.term(WORKLOADS)))
    metadata = msgspec.structs.replace(it.get(web).metadata, finalizers=())
    it.yes(WORKLOADS, Update(msgspec.structs.replace(it.get(web), metadata=metadata)))
    new = it.plane.replica(it.plane.workload("api"), 0)
    assert (new.name, new.status.transition_number) == (old.name, old.status.transition_number)
    refused(it.ask(SCHEDULER, it.bind(old)), Reason.STALE_REPLICA)
    it.yes(SCHEDULER, it.bind(new))


def test_a_repeated_move_is_answered_and_not_made_again() -> None:
    """[C2, E5, INV3]"""
    it = Furnished()
    bound = it.bound()
    move = Move(target(bound), State.RUNNING, incarnation=1, operation="agent/run")
    it.yes(AGENT, move)
    again = it.ask(AGENT, move)
    assert again.replayed
    assert it.get(bound).status.transition_number == 2


def test_a_restart_in_place_is_counted_by_the_commit() -> None:
    """[A8]"""
    it = Furnished()
    running = it.running()
    ready = it.moved(running, State.RUNNING, process=Process(id="7", restarts=99, exit_code=1))
    assert (ready.status.process.restarts, ready.status.process.exit_code) == (1, 1)
    assert ready.status.stage is Stage.STARTING
    assert it.moved(ready, State.RUNNING).status.process.restarts == 2


def test_the_last_transitions_stay_and_no_more() -> None:
    """An object does not grow for ever. [A8]"""
    for kept in (1, 4):
        it = Furnished(settings=PlaneSettings(transitions_kept=kept))
        replica = it.running()
        for _ in range(6):
            replica = it.moved(replica, State.RUNNING)
        numbers = [record.to for record in replica.status.transitions]
        assert numbers == [State.RUNNING] * kept


def test_evidence_that_is_too_long_is_cut_and_not_refused() -> None:
    """A move must not fail for its wording, nor a record grow without bound. [A8]"""
    it = Furnished()
    after = it.moved(it.bound(), State.FAILED, reason="x" * 5_000, evidence="y" * 100_000)
    last = after.status.transitions[-1]
    assert (len(last.reason), len(last.evidence)) == (SENTENCE_MAX, SENTENCE_MAX)


def test_an_operators_statement_is_recorded() -> None:
    """It stands in for proof, so its author and reason must stay. [A8]"""
    it = Furnished()
    unknown = it.unknown()
    silent = Move(target(unknown), State.FAILED, evidence="none", word="  ")
    refused(it.ask(ADMIN, silent), Reason.NOT_ALLOWED)
    after = it.yes(ADMIN, Move(target(unknown), State.FAILED, word="I pulled the plug"))
    last = after.status.transitions[-1]
    assert last.by == ADMIN.name
    assert "I pulled the plug" in last.evidence


def test_a_released_replica_whose_deletion_was_asked_for_is_gone() -> None:
    """[I5]"""
    it = Furnished()
    running = it.running()
    it.yes(ANN, Remove("replicas", "acme", running.name))
    it.moved(it.get(running), State.RELEASED)
    assert it.get(running) is None


def test_two_moves_of_one_group_both_name_the_revision_that_was_there_before() -> None:
    """A revision of zero would say that the decision rested on nothing. [A8]"""
    it = Furnished()
    replica = it.pending()
    seen = it.plane.store.get(f"objects/replicas/acme/{replica.name}")
    assert seen is not None
    first = it.reserve(replica)
    named = target(replica)
    later = type(named)(named.namespace, named.name, named.uid, named.number + 1)
    second = Unreserve(later, "Conflict", it.term(SCHEDULER))
    answers = it.plane.ask_all((SCHEDULER, first), (SCHEDULER, second))
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert {answer.revision for answer in answers} == {it.plane.store.revision}
    revisions = [record.revision for record in it.get(replica).status.transitions[1:]]
    assert revisions == [seen.modified, seen.modified]


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.SCALE_DOWN])
def test_work_that_was_asked_to_stop_keeps_stopping_when_its_node_is_back(cause: Cause) -> None:
    """Its place may be promised to other work. [G4]"""
    it = Furnished()
    running = it.running(it.of_class("low"))
    if cause is Cause.PREEMPTION:
        it.yes(SCHEDULER, it.preempt(it.pending(it.of_class("high", cpu="8")), running))
    else:
        it.stopping(running, cause)
    unknown = it.unknown(it.get(running))
    it.cleared()
    refused(it.ask(AGENT, Move(target(unknown), State.RUNNING, incarnation=1)), Reason.WRONG_STATE)
    back = it.moved(unknown, State.STOPPING)
    it.moved(back, State.RELEASED)
    assert it.plane.ledger("node-a").leaving == {}


def test_unreserve_is_for_repair_only_past_the_deadline_and_the_skew() -> None:
    """[INV12, C7.6]"""
    it = Furnished()
    reserved = it.reserved(after_s=60)
    request = Unreserve(target(reserved), "Expired", it.term(REPAIR))
    skew_ms = it.plane.settings.skew_ms
    it.plane.elapsed_ms += 60_000 + skew_ms - 1
    refused(it.ask(REPAIR, request), Reason.NOT_ALLOWED)
    it.plane.elapsed_ms += 1
    assert it.yes(REPAIR, request).status.state is State.PENDING


def test_keep_work_is_replaced_only_after_its_owners_wait_and_never_freed_without_proof() -> None:
    """[I3, C6.4]"""
    it = Furnished()
    kept = it.plane.workload(
        "kept", template=template(on_disconnect=OnDisconnect.KEEP, replace_after_seconds=300)
    )
    unknown = it.unknown(it.running(kept))
    it.fenced()
    wait_ms = 300_000 + it.plane.settings.skew_ms
    it.plane.elapsed_ms += wait_ms - 1
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.plane.elapsed_ms += 1
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    refused(it.ask(REPAIR, it.repaired(failed, State.RELEASED)), Reason.NOT_FENCED)
    assert it.plane.ledger("node-a").used["replicas"] == 1
    it.registered()
    it.moved(failed, State.RELEASED, incarnation=2)
    assert it.plane.ledger("node-a").used == {}


def test_keep_work_whose_node_is_back_in_contact_is_not_given_up() -> None:
    """Its agent speaks for it now, however long it was away. [C6.4]"""
    it = Furnished()
    kept = it.plane.workload(
        "kept", template=template(on_disconnect=OnDisconnect.KEEP, replace_after_seconds=1)
    )
    unknown = it.unknown(it.running(kept))
    it.plane.elapsed_ms += 60_000
    it.cleared()
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.moved(unknown, State.RUNNING)


def test_a_replica_becomes_unknown_only_under_the_mark_its_node_has() -> None:
    """[H5]"""
    it = Furnished()
    running = it.running()
    refused(it.ask(NODES, it.to_unknown(running, 0)), Reason.STALE_MARK)
    mark = it.marked()
    it.cleared()
    it.yes(NODES, it.judge(NodeAction.MARK))
    refused(it.ask(NODES, it.to_unknown(running, mark)), Reason.STALE_MARK)
    it.yes(NODES, it.to_unknown(running, mark + 1))
