"""Proofs of transitions: what a transition needs besides its actor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.node import Node, NodePhase, NodeStatus
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.meta import ConditionStatus, ObjectMeta, condition
from holdfast.model.nodes.installations import MAY_STILL_RUN
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted, Move, NodeAction, RegisterNode
from tests.furnished import AGENT, Furnished
from tests.plane import ADMIN, NODES, REPAIR, SCHEDULER, WORKLOADS, refused, target, template

OURS, OTHER = "a" * 32, "b" * 32


def kept(it: Furnished, replace_after_s: int | None = None) -> Any:
    """A running replica of work that goes on when its node is cut off."""
    workload = it.plane.workload(
        "kept",
        template=template(on_disconnect=OnDisconnect.KEEP, replace_after_seconds=replace_after_s),
        replicas=4,
    )
    return it.running(workload)


def test_running_work_is_stopped_by_evict_and_by_nothing_else() -> None:
    """A bare move names no cause and asks no budget. [A9]"""
    it = Furnished()
    running = it.running()
    for identity in (WORKLOADS, REPAIR, ADMIN):
        term = it.term(identity) if identity != ADMIN else None
        move = Move(target(running), State.STOPPING, term=term)
        refused(it.ask(identity, move), Reason.NOT_ALLOWED)
    # A scheduler moves nothing at all: it binds, reserves and makes way.
    move = Move(target(running), State.STOPPING, term=it.term(SCHEDULER))
    refused(it.ask(SCHEDULER, move), Reason.NOT_OWNER)


def test_places_are_taken_and_given_back_by_requests_of_their_own() -> None:
    """[A9]"""
    it = Furnished()
    pending, reserved = it.pending(), it.reserved()
    for replica, to in (
        (pending, State.RESERVED),
        (pending, State.BOUND),
        (reserved, State.PENDING),
        (reserved, State.BOUND),
    ):
        move = Move(target(replica), to, term=it.term(SCHEDULER))
        refused(it.ask(SCHEDULER, move), Reason.NOT_OWNER)
    move = Move(target(reserved), State.PENDING, term=it.term(REPAIR))
    refused(it.ask(REPAIR, move), Reason.NOT_ALLOWED)


@pytest.mark.parametrize("word", [NodeAction.CLEAR, NodeAction.FENCE])
def test_what_its_node_is_at_the_commit_decides_and_not_what_was_seen(word: NodeAction) -> None:
    """The reports of an agent and of repair about the same replica never both count. [C6.4, C3]"""
    it = Furnished()
    unknown = it.unknown()
    back = Move(target(unknown), State.RUNNING, incarnation=1)
    fail = it.repaired(unknown, State.FAILED)
    stale, it.plane.authority = it.plane.authority, it.plane.new_authority()
    it.yes(NODES, it.judge(word, mark=it.mark_of()))
    it.plane.authority = stale
    agents, repairs = it.plane.ask_all((AGENT, back), (REPAIR, fail))
    assert isinstance(agents, Accepted) == (word is NodeAction.CLEAR)
    assert isinstance(repairs, Accepted) == (word is NodeAction.FENCE)
    it.check()


def test_a_lost_node_is_as_good_as_a_fenced_one() -> None:
    """[H5]"""
    it = Furnished()
    unknown = it.unknown()
    it.fenced()
    it.yes(NODES, it.judge(NodeAction.LOSE))
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    it.yes(REPAIR, it.repaired(failed, State.RELEASED))


def test_repair_ends_nothing_on_a_node_that_is_well() -> None:
    """Work that has failed or is stopping there ends by its agent's proof. [C6.4]"""
    it = Furnished()
    for replica in (it.stopping(), it.moved(it.running(), State.FAILED)):
        refused(it.ask(REPAIR, it.repaired(replica, State.RELEASED)), Reason.NOT_FENCED)
        it.moved(replica, State.RELEASED)


def test_repair_clears_away_what_was_never_bound() -> None:
    """[I4]"""
    it = Furnished()
    failed = it.yes(
        WORKLOADS, Move(target(it.pending()), State.FAILED, "JobDeadline", term=it.term(WORKLOADS))
    )
    refused(it.ask(AGENT, Move(target(failed), State.RELEASED, incarnation=1)), Reason.MISSING)
    it.yes(REPAIR, it.repaired(failed, State.RELEASED))


@pytest.mark.parametrize("phase", [NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST])
def test_keep_work_without_a_wait_ends_only_by_proof_or_an_operators_statement(
    phase: NodePhase,
) -> None:
    """No fence ends it, so it may not be replaced without its owner's consent. [C6.4, I3]"""
    it = Furnished()
    unknown = it.unknown(kept(it))
    if phase is not NodePhase.UNKNOWN:
        it.fenced()
    if phase is NodePhase.LOST:
        it.yes(NODES, it.judge(NodeAction.LOSE))
    it.plane.elapsed_ms += 10_000_000
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.yes(ADMIN, Move(target(unknown), State.FAILED, word="it is under the river"))
    refused(it.ask(REPAIR, it.repaired(it.get(unknown), State.RELEASED)), Reason.NOT_FENCED)


def test_keep_work_of_an_earlier_life_is_failed_and_freed_when_its_agent_proves_its_end() -> None:
    """[C6.4]"""
    it = Furnished()
    unknown = it.unknown(kept(it))
    it.fenced()
    it.registered()
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    refused(it.ask(REPAIR, it.repaired(failed, State.RELEASED)), Reason.NOT_FENCED)
    it.moved(failed, State.RELEASED, incarnation=2)
    assert it.plane.ledger("node-a").used == {}


def another_machine(it: Furnished, installation: str = OTHER) -> Any:
    """The node's name passes to another installation after a fence."""
    it.fenced()
    return installed(it, installation)


def installed(it: Furnished, installation: str) -> Any:
    node = it.get(it.node)
    status = NodeStatus(installation=installation, address=f"{installation}:7000")
    given = Node(ObjectMeta(name=node.name), spec=node.spec, status=status)
    return it.yes(AGENT, RegisterNode(given, (), f"register-{installation}-{node.status.marks}"))


def proof(replica: Any, incarnation: int | None, installation: str) -> Move:
    to = State.RELEASED
    return Move(target(replica), to, incarnation=incarnation, installation=installation)


def test_another_machine_under_the_name_proves_nothing_about_keep_work() -> None:
    """Neither by its return nor by its report; the first one does, with or without the name.
    [INV2, C6.4, I3]
    """
    it = Furnished()
    installed(it, OURS)
    running = kept(it)
    assert running.status.binding.installation == OURS
    unknown = it.unknown(running)
    another_machine(it)
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    failed = Move(target(unknown), State.FAILED, incarnation=2, installation=OTHER)
    refused(it.ask(AGENT, failed), Reason.STALE_INCARNATION)
    it.plane.elapsed_ms += 10_000_000
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    given_up = it.yes(AGENT, msgspec.structs.replace(failed, incarnation=None, installation=OURS))
    for incarnation, installation in ((2, OTHER), (2, ""), (None, ""), (None, OTHER), (1, OTHER)):
        answer = it.ask(AGENT, proof(given_up, incarnation, installation))
        refused(answer, Reason.NOT_OWNER)
    it.yes(AGENT, proof(given_up, None, OURS))
    assert it.plane.ledger("node-a").used == {}


def test_stop_work_is_proven_gone_by_any_later_life() -> None:
    """The fence has ended it, whatever machine comes next. [H5]"""
    it = Furnished()
    installed(it, OURS)
    unknown = it.unknown()
    another_machine(it)
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    it.yes(AGENT, proof(failed, 2, OTHER))


def test_keep_work_on_a_machine_without_the_name_is_replaced_when_its_owner_wants_that() -> None:
    """Status names the machine until its installation has spoken. [C6.4]"""
    it = Furnished()
    installed(it, OURS)
    unknown = it.unknown(kept(it, replace_after_s=60))
    another_machine(it)
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    failed = it.yes(REPAIR, it.repaired(unknown, State.FAILED))
    said = condition(failed.status.conditions, MAY_STILL_RUN)
    assert said.status is ConditionStatus.TRUE
    assert OURS in said.message
    assert f"{OURS}:7000" in said.message
    released = it.yes(AGENT, proof(failed, None, OURS))
    assert condition(released.status.conditions, MAY_STILL_RUN).status is ConditionStatus.FALSE


def test_keep_work_is_adopted_under_a_later_life_of_its_own_installation() -> None:
    """While it is Unknown nothing replaces it. Repair leaves it to its agent. [H8, C6.4, A9]"""
    it = Furnished()
    installed(it, OURS)
    unknown = it.unknown(kept(it))
    stale = Move(target(unknown), State.RUNNING, incarnation=2, installation=OURS)
    it.fenced()
    refused(it.ask(AGENT, stale), Reason.STALE_MARK)
    installed(it, OURS)
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    for incarnation, installation in ((1, OURS), (3, OURS), (2, OTHER), (2, "")):
        move = Move(
            target(unknown), State.RUNNING, incarnation=incarnation, installation=installation
        )
        refused(it.ask(AGENT, move), Reason.STALE_INCARNATION)
    adopted = it.yes(AGENT, stale)
    assert adopted.status.state is State.RUNNING
    assert adopted.status.binding == msgspec.structs.replace(
        unknown.status.binding, node_incarnation=2
    )
    # From then on it is work of that life like any other.
    it.moved(it.moved(adopted, State.FAILED, incarnation=2), State.RELEASED, incarnation=2)
    assert it.plane.ledger("node-a").used == {}


def test_stop_work_and_work_that_was_given_up_are_not_adopted() -> None:
    """[INV2, C6.4]"""
    it = Furnished()
    installed(it, OURS)
    works = it.running(), kept(it, replace_after_s=60)
    stopped, given_up = (it.unknown(replica) for replica in works)
    it.fenced()
    it.plane.elapsed_ms += 60_000 + it.plane.settings.skew_ms
    failed = it.yes(REPAIR, it.repaired(given_up, State.FAILED))
    installed(it, OURS)
    for replica, reason in ((stopped, Reason.STALE_INCARNATION), (failed, Reason.WRONG_STATE)):
        move = Move(target(replica), State.RUNNING, incarnation=2, installation=OURS)
        refused(it.ask(AGENT, move), reason)


def test_a_machine_without_the_name_cannot_say_that_its_work_goes_on() -> None:
    """The life that it would run in is over. [A9]"""
    it = Furnished()
    installed(it, OURS)
    unknown = it.unknown(kept(it))
    another_machine(it)
    for incarnation in (None, 1, 2):
        move = Move(target(unknown), State.RUNNING, incarnation=incarnation, installation=OURS)
        refused(it.ask(AGENT, move), Reason.STALE_INCARNATION)


def test_the_wait_for_keep_work_starts_when_it_was_given_up_and_not_before() -> None:
    """[C6.4]"""
    it = Furnished()
    running = kept(it, replace_after_s=60)
    it.plane.elapsed_ms += 1_000_000
    unknown = it.unknown(running)
    it.plane.elapsed_ms += 60_000
    refused(it.ask(REPAIR, it.repaired(unknown, State.FAILED)), Reason.NOT_FENCED)
    it.plane.elapsed_ms += it.plane.settings.skew_ms
    it.yes(REPAIR, it.repaired(unknown, State.FAILED))


def test_an_operators_statement_fails_only_unknown_work() -> None:
    """[A9]"""
    it = Furnished()
    for replica in (it.pending(), it.bound(), it.running(), it.stopping()):
        move = Move(target(replica), State.FAILED, word="because I say so")
        answer = it.ask(ADMIN, move)
        assert answer.reason in (Reason.NOT_OWNER, Reason.WRONG_STATE)
