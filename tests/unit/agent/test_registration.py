"""How a life begins: what is asked, in which order, and under which id."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.node_facts import NodeFacts
from holdfast.agent.registration import Registration
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.node import Node, NodePhase, NodeStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, RegisterNode
from tests.unit.agent.rig import Half


def node(incarnation: int = 1, phase: NodePhase = NodePhase.READY) -> Node:
    status = NodeStatus(incarnation=incarnation, phase=phase)
    return Node(ObjectMeta(name="n1", uid="u1"), status=status)


def entry(name: str = "n1") -> Registration:
    it = Registration(name, f"system:node:{name}", NodeFacts(), Half())
    it.begin("boot-1", 5)
    return it


def registration(it: Registration, seen: Node | None, now_ms: int = 0) -> RegisterNode:
    """What it registers after it has seen this."""
    assert isinstance(it.due(now_ms, ()), Get)
    assert it.answered(GetResult(seen, 7), now_ms) is None
    request = it.due(now_ms, ("r1",))
    assert isinstance(request, RegisterNode)
    return request


def test_it_looks_before_it_registers_and_learns_its_life_from_the_answer() -> None:
    """The boot and what runs belong to the registration."""
    it = entry()
    request = registration(it, None)
    assert (request.node.name, request.node.status.boot_id) == ("n1", "boot-1")
    assert request.running == ("r1",)
    assert it.due(99_999, ()) is None, "one request at a time"
    assert it.answered(Accepted(8, (node(),)), 1) == node()


@pytest.mark.parametrize("lost", [Unavailable("x"), OutcomeUnknown("x")])
def test_a_try_whose_answer_was_lost_is_repeated_under_its_id(lost: Any) -> None:
    """Otherwise a delayed first try could begin an incarnation that no agent knows. [N1.1]"""
    it = entry()
    first = registration(it, node())
    assert it.answered(lost, 0) is None
    assert registration(it, node(), it.next_ms) == first


def test_a_try_that_was_refused_is_followed_by_another_one() -> None:
    """A refusal was a decision."""
    it = entry()
    first = registration(it, node())
    it.answered(Refusal(Reason.OPERATION_REUSED, "another request had it"), 0)
    assert registration(it, node(), it.next_ms).operation != first.operation


def test_the_return_from_a_fence_is_another_intention_than_a_registration() -> None:
    """Under one id the return would be answered with what was accepted before the fence."""
    it = entry()
    plain = registration(it, node())
    it.answered(Accepted(8, (node(),)), 0)
    it.again(0)
    assert not it.is_after_fence
    back = registration(it, node(phase=NodePhase.FENCED))
    assert it.is_after_fence
    assert plain.operation != back.operation


def test_what_was_accepted_before_is_read() -> None:
    """A repetition brings no object; a fence may have come since."""
    it = entry()
    registration(it, node())
    assert it.answered(Accepted(8, replayed=True), 0) is None
    assert isinstance(it.due(0, ()), Get)
    assert it.answered(GetResult(node(), 9), 0) == node()
    it.again(0)
    registration(it, node())
    it.answered(Accepted(8, replayed=True), 0)
    it.due(0, ())
    assert it.answered(GetResult(node(phase=NodePhase.FENCED), 9), 0) is None
    assert it.is_after_fence


def test_a_node_that_was_deleted_is_registered_under_another_id() -> None:
    """The servers remember the first registration for longer than the node was there: under its id
    they would answer that it was accepted before, again and again."""
    it = entry()
    first = registration(it, None)
    it.answered(Accepted(8, (node(),)), 0)
    it.again(0)
    again = registration(it, None)
    if again.operation == first.operation:
        it.answered(Accepted(8, replayed=True), 0)
        again = registration(it, None)
    assert again.operation != first.operation


def test_a_node_that_was_deleted_before_its_answer_came_is_registered_under_another_id() -> None:
    it = entry()
    first = registration(it, None)
    it.answered(OutcomeUnknown("x"), 0)
    assert registration(it, None, it.next_ms) == first, "it may not have happened"
    it.answered(Accepted(8, replayed=True), it.next_ms)
    assert registration(it, None, it.next_ms).operation != first.operation


def test_pauses_grow_up_to_a_bound() -> None:
    """All agents lose the servers at once. [E5, C7.5]"""
    it = entry()
    now_ms, pauses = 0, []
    for _ in range(12):
        assert it.due(now_ms, ()) is not None
        it.answered(Unavailable("x"), now_ms)
        pauses.append(it.next_ms - now_ms)
        now_ms = it.next_ms
    assert pauses[:3] == [150, 300, 600]
    assert pauses[-1] == 22_500


def test_the_longest_name_leaves_room_for_what_matters() -> None:
    """The authority takes no longer id."""
    request = registration(entry("n" * 253), node())
    assert request.operation.startswith("u1/1./register-")


def test_why_it_is_not_let_in_is_known_until_it_is() -> None:
    it = entry()
    registration(it, node())
    it.answered(Refusal(Reason.NOT_OWNER, "node n1 is run by another agent"), 0)
    assert it.trouble == "node n1 is run by another agent"
    registration(it, node(), it.next_ms)
    it.answered(Accepted(1, (node(),)), it.next_ms)
    assert it.trouble == ""
