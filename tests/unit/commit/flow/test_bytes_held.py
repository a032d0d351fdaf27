"""The limit of bytes held for bodies that are still arriving."""

from __future__ import annotations

import pytest

from holdfast.commit.flow.caps import BytesHeld
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.model.errors import InvariantBroken

ANN = Flow(RequestClass.TENANT, "acme", "ann")
AGENT = Flow(RequestClass.SYSTEM, "agents", "n1")
BOB = Flow(RequestClass.TENANT, "other", "bob")


def test_a_tenant_and_all_together_have_a_bound() -> None:
    """One tenant's bodies leave room for those of others. [B6]"""
    held = BytesHeld(all_max=100, tenant_max=60)
    assert held.take(ANN, 50)
    assert not held.take(ANN, 11)
    assert held.take(BOB, 50)
    assert not held.take(BOB, 1)
    assert (held.all, held.refused) == (100, 2)
    assert held.take(AGENT, 5), "a renewal finds room all the same"
    held.give_back(AGENT, 5)
    held.give_back(ANN, 50)
    assert held.take(BOB, 10)
    with pytest.raises(InvariantBroken):
        held.give_back(ANN, 1)
