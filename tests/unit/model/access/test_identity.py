"""Who may act as whom."""

from __future__ import annotations

import pytest

from holdfast.model.access.identity import (
    ADMINS,
    ANONYMOUS,
    Identity,
    acts_as,
    agent,
    controller,
    scheduler,
    server,
)
from holdfast.model.lifecycle import Actor


@pytest.mark.parametrize(
    "name, actors",
    [
        ("system:server:s1", (Actor.AUTHORITY,)),
        ("system:scheduler:main", (Actor.SCHEDULER,)),
        ("system:controller:workload", (Actor.WORKLOAD,)),
        ("system:controller:nodes", (Actor.NODES,)),
        ("system:node:node-a.eu-west", (Actor.AGENT,)),
        ("alice", (Actor.USER, Actor.OPERATOR)),
        ("scheduler", (Actor.USER, Actor.OPERATOR)),
        ("controller:workload", (Actor.USER, Actor.OPERATOR)),
        ("System:server:s1", (Actor.USER, Actor.OPERATOR)),
        ("ѕystem:server:s1", (Actor.USER, Actor.OPERATOR)),  # The first letter is Cyrillic.
        (" system:server:s1", (Actor.USER, Actor.OPERATOR)),
        ("system：server:s1", (Actor.USER, Actor.OPERATOR)),  # The colon is a wide one.
        ("", ()),
        (" \t", ()),
        ("system:", ()),
        ("system:server:s1 ", ()),
        ("system:server:s1:x", ()),
        ("system:server", ()),
        ("system:server:", ()),
        ("system:authority", ()),
        ("system:server:s1\n", ()),
        ("system:scheduler", ()),
        ("system:scheduler:", ()),
        ("system:scheduler: ", ()),
        ("system:scheduler:a:b", ()),
        ("system:scheduler:ａ", ()),
        ("system:node:", ()),
        ("system:node:a/b", ()),
        ("system:node:../a", ()),
        ("system:node:a\n", ()),
        ("system:node:A", ()),
        ("system:controller:", ()),
        ("system:controller:unheard", ()),
        ("system:controller:workload ", ()),
        ("system:controller:Workload", ()),
        ("system:controller:controller:workload", ()),
        ("system:agent", ()),
        ("system:operator", ()),
        (ANONYMOUS, ()),
        (ADMINS, ()),
    ],
)
def test_a_name_is_one_actor_or_none(name: str, actors: tuple[Actor, ...]) -> None:
    """A look-alike of a system identity is at most a person, a partial one no actor. [A9, C6.7]"""
    assert acts_as(Identity(name=name)) == actors


def test_administrators_are_people_and_nothing_else() -> None:
    """Every person may be an operator, if roles allow it; no group makes a controller of a person,
    nor an operator of a component that was put into it. [C6.3, C6.7]"""
    assert acts_as(Identity("alice", groups=(ADMINS,))) == (Actor.USER, Actor.OPERATOR)
    assert acts_as(Identity("alice")) == (Actor.USER, Actor.OPERATOR)
    for name, actors in (
        ("system:node:a", (Actor.AGENT,)),
        ("system:server:s1", (Actor.AUTHORITY,)),
        (ANONYMOUS, ()),
        ("", ()),
    ):
        assert acts_as(Identity(name, groups=(ADMINS,))) == actors


def test_components_get_the_names_that_they_act_under() -> None:
    """Each constructor and the reading of its name agree."""
    assert acts_as(scheduler("s1")) == (Actor.SCHEDULER,)
    assert acts_as(controller("repair")) == (Actor.REPAIR,)
    assert acts_as(agent("node-a")) == (Actor.AGENT,)
    assert acts_as(server("s1")) == (Actor.AUTHORITY,)
    assert (agent("node-a").node, agent("node-a").server) == ("node-a", None)
    assert (server("s1").node, server("s1").server) == (None, "s1")


@pytest.mark.parametrize("actor", [a for a in Actor if not a.value.startswith("controller:")])
def test_no_controllers_name_makes_another_actor(actor: Actor) -> None:
    """There is no controller called authority, scheduler, agent or operator. [C6.3, C6.7]"""
    assert acts_as(controller(actor.value)) == ()


@pytest.mark.parametrize("name", ["", "alice", "system:node", "system:node:", "x:system:node:a"])
def test_no_other_caller_is_a_nodes_agent(name: str) -> None:
    """An agent without a node would match a replica without one. [C6.7]"""
    assert Identity(name).node is None
