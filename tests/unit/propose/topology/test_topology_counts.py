"""Topology counts: whatever came, moved or went, they equal a count by hand."""

from __future__ import annotations

import pickle
import random

import pytest

from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.placement import Topology
from holdfast.model.meta import ObjectMeta
from holdfast.model.quota.ledger import NodeLedger, gate_of
from holdfast.model.selection.selectors import LabelSelector
from holdfast.observe.node_columns import NodeColumns
from holdfast.propose.topology import topology_counts as room
from holdfast.propose.topology.topology_counts import ReplicaTraits, TopologyCounts, TopologyTerm

ROWS = 6
SELECTORS = [None, *(LabelSelector(match_labels={"app": f"a{n}"}) for n in range(3))]


def fleet() -> NodeColumns:
    """Six nodes in three zones."""
    columns = NodeColumns()
    for number in range(ROWS):
        node = Node(
            ObjectMeta(name=f"n{number}", uid=f"u{number}"),
            spec=NodeSpec(region="eu", zone=f"z{number % 3}", capacity={"cpu": "4"}),
        )
        row = columns.add()
        columns.place_node(row, node, NodeLedger(gate=gate_of(node)))
    return columns


def counted(
    term: TopologyTerm, there: dict[str, tuple[ReplicaTraits, int]], columns: NodeColumns
) -> dict[int, int]:
    """The zones of all replicas that the term matches, counted by hand."""
    zones: dict[int, int] = {}
    for traits, row in there.values():
        if term.takes(traits):
            zone = int(columns.zone[row])
            zones[zone] = zones.get(zone, 0) + 1
    return zones


@pytest.mark.parametrize("terms_max", [3, 100])
def test_counts_are_those_of_a_count_by_hand(
    terms_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms are requested at any time, and dropped when there are too many. [F2, F3]"""
    monkeypatch.setattr(room, "TERMS_MAX", terms_max)
    rng = random.Random(7)
    columns = fleet()
    topology_counts, there = TopologyCounts(columns), dict[str, tuple[ReplicaTraits, int]]()
    for _ in range(1_500):
        tenant, uid = f"t{rng.randrange(2)}", f"r{rng.randrange(12)}"
        known = there.get(uid)
        if known is not None and (known[0].namespace != tenant or rng.random() < 0.3):
            topology_counts.remove(uid, known[0].namespace, known[1])
            del there[uid]
        else:
            labels = (("app", f"a{rng.randrange(3)}"),)
            traits, row = ReplicaTraits(tenant, f"w{rng.randrange(3)}", labels), rng.randrange(ROWS)
            topology_counts.put(uid, traits, row)
            there[uid] = traits, row
        selector = rng.choice(SELECTORS)
        workload = f"w{rng.randrange(3)}" if selector is None else ""
        term = topology_counts.term(tenant, workload, selector)
        zones = counted(term, there, columns)
        assert term.counts[Topology.ZONE] == zones
        assert term.total == sum(zones.values())


def test_what_is_gone_leaves_nothing_behind() -> None:
    """A plane that runs for years meets more kinds of work than it could remember."""

    def state_bytes(replicas: int) -> int:
        topology_counts = TopologyCounts(fleet())
        for number in range(replicas):
            topology_counts.put("r", ReplicaTraits("t", f"w{number}"), number % ROWS)
        topology_counts.remove("r", "t", (replicas - 1) % ROWS)
        return len(pickle.dumps(topology_counts))

    # A counter of changes may take a few bytes more.
    assert state_bytes(500) <= state_bytes(5) + 8
