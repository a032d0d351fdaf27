"""When a picture has caught up with what was written, and which object a request is about."""

from __future__ import annotations

import pytest

from holdfast.correct.controller_worker import Expected, after_writing, subject
from holdfast.model.errors import InvariantBroken
from holdfast.model.lifecycle import State
from holdfast.model.requests import (
    Accepted,
    Create,
    ForgetOperations,
    JudgeNode,
    Move,
    NodeAction,
    Remove,
)
from holdfast.observe.watch_events import Get
from tests.unit.correct.controller_rig import target
from tests.unit.correct.views import TERM, replica, view


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
def test_a_picture_has_caught_up_when_it_shows_the_object_or_its_end(
    revision: int, may_be_gone: bool, is_there: bool, told: int, is_met: bool
) -> None:
    """One without an object that was just made has not, unless its bookmark is later. [C3, N3]"""
    expected = Expected("replicas", "acme", "web-0-0", revision, may_be_gone)
    objects = (replica(),) if is_there else ()
    assert expected.is_met(view(*objects, told=told)) is is_met


def test_every_request_is_about_one_object() -> None:
    """That is what is read when its outcome is unknown."""
    it = replica()
    about = Get("replicas", "web-0-0", "acme")
    assert subject(Create(it)) == about
    assert subject(Move(target(it), State.RELEASED)) == about
    assert subject(Remove("replicas", "acme", "web-0-0")) == about
    assert subject(JudgeNode("node-a", "u", NodeAction.MARK, TERM)) == Get("nodes", "node-a")
    with pytest.raises(InvariantBroken):
        subject(ForgetOperations((), TERM))


def test_a_create_is_expected_to_be_seen_also_when_its_answer_shows_no_object() -> None:
    """Servers leave out what its sender receives anyway. [C3]"""
    it = replica()
    expected = [Expected("replicas", "acme", "web-0-0", 9, may_be_gone=False)]
    assert after_writing(Create(it), Accepted(9)) == expected
    assert after_writing(Move(target(it), State.RELEASED), Accepted(9)) == []
