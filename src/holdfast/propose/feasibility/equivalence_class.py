"""Equivalence classes of replicas: what holds of a node for one of them holds for all.

The verdict cache keeps one `EquivalenceClass` for each class of work that it meets. Most pending
work is thousands of replicas of few workloads, so each question about nodes is asked once for all.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.placement.fit import Allocation
from holdfast.propose.feasibility.node_verdicts import NodeVerdicts
from holdfast.propose.feasibility.outcome import PlacementReport
from holdfast.propose.fleet_snapshot import PendingWork
from holdfast.propose.scores import intent_of
from holdfast.propose.topology.affinity import TopologyRules
from holdfast.propose.topology.topology_counts import ReplicaTraits, traits_of


def key_of(replica: Replica) -> tuple[Hashable, Hashable]:
    """Everything that rules and scorers look at. Equal keys mean the same class.

    First what is asked of nodes, then what topology rules look at in addition: another replica may
    have an anti-affinity to the labels of any work.
    """
    template = replica.spec.template
    placement = template.placement
    by_workload = placement.spread or placement.max_per_node
    as_whom = (template.isolation, template.user, template.runtime, template.host_network)
    of_node = (template.ports, placement, *as_whom, template.image)
    what = (template.resources, template.devices, *of_node)
    of_nodes = (
        replica.namespace,
        template.priority_class,
        replica.spec.region,
        replica.spec.gang,
        intent_of(replica),
        msgspec.msgpack.encode(what),
    )
    workload = replica.spec.workload_uid if by_workload else ""
    return of_nodes, (workload, tuple(replica.metadata.labels.items()))


class EquivalenceClass:
    """One class of work, and the verdicts of all nodes on it.

    `of_nodes` is what is asked of nodes. `unschedulable` is the report of the last time that no
    node was feasible, with the state it is based on: thousands of waiting replicas get the same
    report.
    """

    __slots__ = (
        "held",
        "of_nodes",
        "tenant_report",
        "topology_rules",
        "traits",
        "unschedulable",
        "verdicts",
        "work",
    )

    def __init__(
        self,
        work: PendingWork,
        of_nodes: Hashable,
        verdicts: NodeVerdicts,
        topology_rules: TopologyRules | None,
    ) -> None:
        self.work, self.verdicts, self.topology_rules = work, verdicts, topology_rules
        self.of_nodes = of_nodes
        self.traits: ReplicaTraits = traits_of(work.replica)
        # What each replica takes, where that does not depend on the node.
        self.held = Allocation(charge=work.demand.amounts, ports=work.demand.ports)
        self.tenant_report: tuple[PlacementReport | None] | None = None
        self.unschedulable: tuple[Hashable, PlacementReport] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a placement changes only sums of its node, so that a batch is exact."""
        demand = self.work.demand
        ranks_domains = self.topology_rules is not None and self.topology_rules.ranks_domains
        return not (demand.devices or demand.ports or ranks_domains) and self.verdicts.is_exact
