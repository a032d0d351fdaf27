"""What components really ask for, under faults, against the roles that are built in for them."""

from __future__ import annotations

import pytest

from holdfast.commit.access import authorize
from holdfast.commit.draft import Draft
from holdfast.correct.all_controllers import all_controllers
from holdfast.model.access.identity import Identity
from holdfast.model.access.rights import Permission, subjects_of
from holdfast.model.access.roles import built_in_roles
from holdfast.sim.run import find, play
from holdfast.sim.world import World

# Between them, these have every controller do something besides keeping its lease, but for those
# that need a failure that these do not have.
SCENARIO, SEEDS = "holdfast.sim.worlds.all_controllers.scenario:SCENARIO", (1, 2)
# What a run of these seeds asks for at least: a recording of little would prove little.
SORTS_MIN = 38


def test_no_component_asks_for_what_its_role_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request of every component is recorded on its way through the door. [C6.7]"""
    asked: set[tuple[str, str, str]] = set()
    refused: set[tuple[str, str, str]] = set()
    holds = authorize.is_permitted

    def recorded(draft: Draft, identity: Identity, deed: Permission) -> bool:
        is_held = holds(draft, identity, deed)
        if not subjects_of(identity):
            (asked if is_held else refused).add((identity.name, deed.verb, deed.what))
        return is_held

    monkeypatch.setattr(authorize, "is_permitted", recorded)
    for seed in SEEDS:
        play(find(SCENARIO), World(seed))
    assert refused == set()
    sorts = {(built_in_roles(Identity(name))[0][0], verb, what) for name, verb, what in asked}
    assert len(sorts) >= SORTS_MIN, sorted(sorts)
    team = {f"controller-{it.name}" for it in all_controllers()}
    assert team <= {role for role, _, _ in sorts}
    # A lease is what everybody asks for; writing something of its own is what a role is for.
    assert len({role for role, _, what in sorts if what != "leases"} & team) >= 8
