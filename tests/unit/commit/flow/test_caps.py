"""Caps on open watches and connections."""

from __future__ import annotations

import pytest

from holdfast.commit.flow.caps import Cap, Caps
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.model.errors import InvariantBroken

CAPS = dict.fromkeys(RequestClass, Cap(user_max=2, tenant_max=3))


def _flow(tenant: str, user: str) -> Flow:
    return Flow(RequestClass.TENANT, tenant, user)


def test_a_user_and_a_tenant_have_a_cap_each() -> None:
    """One user's watches leave room for colleagues, and one tenant's for others. [B6]"""
    caps = Caps(CAPS)
    wanted = [("acme", "ann")] * 3 + [("acme", "bob")] * 2 + [("other", "cid")]
    taken = [caps.take(_flow(*it)) for it in wanted]
    assert taken == [True, True, False, True, False, True]
    assert caps.tenants == {"acme": 3, "other": 1}
    assert caps.refused == 2


def test_what_is_closed_makes_room() -> None:
    """And nothing is remembered of users with nothing open."""
    caps = Caps(CAPS)
    ann = _flow("acme", "ann")
    assert caps.take(ann)
    assert caps.take(ann)
    assert not caps.take(ann)
    caps.give_back(ann)
    assert caps.take(ann)
    for _ in range(2):
        caps.give_back(ann)
    assert (len(caps), dict(caps.tenants)) == (0, {})
    with pytest.raises(InvariantBroken):
        caps.give_back(ann)


def test_all_together_have_a_cap() -> None:
    """A server has a limited number of file descriptors."""
    caps = Caps(CAPS, all_max=4)
    assert sum(caps.take(_flow(f"t{n}", "u")) for n in range(9)) == 4
    assert caps.take(Flow(RequestClass.SYSTEM, "agents", "n1")), "agents are let in all the same"
