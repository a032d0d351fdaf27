"""Every controller is one that the authority knows, with a name and a lease of its own."""

from __future__ import annotations

from holdfast.correct.all_controllers import all_controllers
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.registry import kind_of_plural


def test_every_controller_acts_as_itself() -> None:
    """An identity that the authority does not know could do nothing at all. [A9, A10]"""
    for it in all_controllers():
        assert [actor.value for actor in acts_as(Identity(name=it.identity))] == [
            f"controller:{it.name}"
        ]


def test_every_controller_follows_kinds_that_exist() -> None:
    """And keeps indexes of what it follows only."""
    for it in all_controllers():
        assert [kind_of_plural(plural).plural for plural in it.follows] == list(it.follows)
        assert {index.plural for index in it.indexes} <= set(it.follows)


def test_controllers_are_new_each_time() -> None:
    """What one process has observed is no ground for another to act on. [K2]"""
    first, second = all_controllers(), all_controllers()
    assert [a is b for a, b in zip(first, second, strict=True)] == [False] * len(first)
