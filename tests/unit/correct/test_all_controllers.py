"""Every controller is one that the authority knows, with a name and a lease of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast import correct
from holdfast.correct.all_controllers import all_controllers, controller_class
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.access.roles import ROLES
from holdfast.model.kinds.access import Rule
from holdfast.model.lifecycle import CONTROLLERS, PLANNED, Actor
from holdfast.model.registry import kind_of_plural

ONE_MORE = """
from holdfast.correct.controller import Controller, ReconcilePlan
from holdfast.model.lifecycle import Actor


class PolicyController(Controller):
    actor = Actor.POLICY
    follows = ("schedulerpolicies",)

    def reconcile(self, view, key, term, now):
        return ReconcilePlan()
"""


def test_each_actor_has_its_controller_or_is_planned() -> None:
    """[A9]"""
    assert [it.actor for it in all_controllers()] == [it for it in CONTROLLERS if it not in PLANNED]
    for actor in PLANNED:
        with pytest.raises(ImportError):
            controller_class(actor)


def test_a_controller_is_its_actor_and_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No third file names it: its class, its name and its role follow from the two. [A9, C6.7]"""
    (tmp_path / "policy.py").write_text(ONE_MORE)
    monkeypatch.setattr(correct, "__path__", [*correct.__path__, str(tmp_path)])
    try:
        found = controller_class(Actor.POLICY)()
    finally:
        sys.modules.pop("holdfast.correct.policy", None)
    assert (found.name, found.identity) == ("policy", "system:controller:policy")
    assert ROLES["controller-policy"] == (
        Rule(("schedulerpolicies/status", "overrides/status"), ("update", "patch")),
    )


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
