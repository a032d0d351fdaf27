"""The requests that components really make under faults, against their built-in roles."""

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

# In these seeds every controller does something besides renewing its lease, except those that need
# a failure that does not happen here.
SCENARIO, SEEDS = "holdfast.sim.worlds.all_controllers.scenario:SCENARIO", (1, 2)
# The least number of different requests in these seeds: a short recording would prove little.
SORTS_MIN = 38


def test_no_component_needs_more_than_its_role_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test records each permission that is checked for a component. [C6.7]"""
    asked: set[tuple[str, str, str]] = set()
    refused: set[tuple[str, str, str]] = set()
    is_permitted = authorize.is_permitted

    def record(draft: Draft, identity: Identity, permission: Permission) -> bool:
        is_held = is_permitted(draft, identity, permission)
        if not subjects_of(identity):
            request = (identity.name, permission.verb, permission.what)
            (asked if is_held else refused).add(request)
        return is_held

    monkeypatch.setattr(authorize, "is_permitted", record)
    for seed in SEEDS:
        play(find(SCENARIO), World(seed))
    assert refused == set()
    sorts = {(built_in_roles(Identity(name))[0][0], verb, what) for name, verb, what in asked}
    assert len(sorts) >= SORTS_MIN, sorted(sorts)
    roles = {f"controller-{it.name}" for it in all_controllers()}
    assert roles <= {role for role, _, _ in sorts}
    # All of them ask for leases; a role matters for what its controller writes besides.
    assert len({role for role, _, what in sorts if what != "leases"} & roles) >= 8
