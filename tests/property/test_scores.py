"""Scores for many nodes at once against a plain reading of one node, on random fleets and work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.placement import TaintEffect
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import TenantSpec
from holdfast.model.placement.placement_rules import tolerates
from holdfast.model.selection.selectors import holds
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.unschedulable import candidate_at
from holdfast.propose.filters import first_refusal
from holdfast.propose.fleet_snapshot import PendingWork
from holdfast.propose.scores import SCORERS
from tests.property.test_placing import MOVES, NODES, WORK, World, replica, viewed
from tests.scale import examples


def _headroom(work: PendingWork, site: NodeState, node: Node) -> float:
    amounts = dict(work.demand.amounts)
    for request in work.demand.devices:
        amounts.pop(request.device_class, None)
    shares = [
        (site.ledger.free(resource) - units) / max(1, site.ledger.allocatable.get(resource, 0))
        for resource, units in amounts.items()
    ]
    return 100 * sum(shares) / len(shares)


def _preference(work: PendingWork, site: NodeState, node: Node) -> float:
    wishes = work.placement.prefer
    met = 0
    for wish in wishes:
        fits = all(holds(each, node.metadata.labels) for each in wish.expressions)
        met += wish.weight if fits != wish.avoid else 0
    return 100 * met / sum(wish.weight for wish in wishes)


def _welcome(work: PendingWork, site: NodeState, node: Node) -> float:
    mild = [it for it in node.spec.taints if it.effect is TaintEffect.PREFER_NO_SCHEDULE]
    borne = [any(tolerates(one, it) for one in work.placement.tolerations) for it in mild]
    return 100 if all(borne) else 0


def _cost(work: PendingWork, site: NodeState, node: Node) -> float:
    return 100 / (1 + {0: 0, "1": 1, "2500m": 2.5}[node.spec.cost_per_hour])


def _has_image(replica: Replica, node: Node) -> bool:
    image, status = replica.spec.template.image, node.status
    return image in status.images or f"{replica.namespace} {image}" in status.images


PLAIN: dict[str, Callable[[PendingWork, NodeState, Node], float]] = {
    "headroom": _headroom,
    "packing": lambda *one: 100 - _headroom(*one),
    "preference": _preference,
    "taints": _welcome,
    "scarce": lambda work, site, node: 0 if node.spec.devices else 100,
    "image": lambda work, site, node: 100 * _has_image(work.replica, node),
    "cost": _cost,
    # Its own examples are in test_nearness.py.
    "locality": lambda work, site, node: pytest.fail("no work here states its data"),
    "network": lambda work, site, node: pytest.fail("no work here states its data"),
}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(NODES, min_size=1, max_size=4), MOVES, WORK)
def test_a_score_for_many_nodes_is_what_a_plain_reading_of_each_gives(
    nodes: list[Any], moves: list[Any], wanted: Template
) -> None:
    """From 0 to 100, wherever the work fits. [F3]"""
    world = World(nodes)
    for move in moves:
        world.happen(*move)
    view = viewed(world.fleet, TenantSpec())
    work = view.work(replica("new", wanted))
    for scorer in SCORERS:
        if scorer.name == "fragmentation" or not scorer.applies(work, view):
            continue
        found = scorer.score(work, view, view.columns.all, 0)
        for site in world.fleet:
            if site.node is None or first_refusal(work, candidate_at(view, site)) is not None:
                continue
            expected = PLAIN[scorer.name](work, site, site.node)
            assert found[site.row] == pytest.approx(expected), scorer.name
            assert 0 <= found[site.row] <= 100


def test_every_scorer_has_a_plain_reading() -> None:
    """What packs devices has its own, beside its policies. [F3]"""
    assert {scorer.name for scorer in SCORERS} == {*PLAIN, "fragmentation"}
