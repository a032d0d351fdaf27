"""Replicas that are alike: what is true of a node for one of them is true for all.

The board keeps one `Alike` for each sort of work that it meets. Most work that waits is thousands
of replicas of few workloads, so each question about nodes is asked once for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.placement.fit import Held
from holdfast.propose.decision_view import Work
from holdfast.propose.feasibility.node_verdicts import Standing
from holdfast.propose.feasibility.outcome import Report
from holdfast.propose.topology.affinity import Company
from holdfast.propose.topology.topology_counts import Kin, kin_of


def key_of(replica: Replica) -> tuple[Hashable, Hashable]:
    """All that rules and scorers look at. Equal keys mean alike; alike ones may differ in key.

    First what is asked of nodes, then what rules about other replicas look at besides: any work may
    meet somebody who has to stay away from its labels.
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
        msgspec.msgpack.encode(what),
    )
    workload = replica.spec.workload_uid if by_workload else ""
    return of_nodes, (workload, tuple(replica.metadata.labels.items()))


class Alike:
    """One sort of work, and how all nodes stand to it.

    `of_nodes` is what is asked of nodes. `rules` and `policy` are those under which this was found.
    `nowhere` is the report of the last time that there was no place, with what it was found on:
    thousands that wait get the same one.
    """

    __slots__ = (
        "company",
        "held",
        "held_up",
        "kin",
        "nowhere",
        "of_nodes",
        "policy",
        "rules",
        "standing",
        "work",
    )

    def __init__(
        self,
        work: Work,
        of_nodes: Hashable,
        standing: Standing,
        company: Company | None,
        rules: int,
        policy: SchedulerPolicy | None,
    ) -> None:
        self.work, self.standing, self.company = work, standing, company
        self.of_nodes = of_nodes
        self.rules, self.policy = rules, policy
        self.kin: Kin = kin_of(work.replica)
        # What each takes, where that does not depend on the node.
        self.held = Held(charge=work.demand.amounts, ports=work.demand.ports)
        self.held_up: tuple[Report | None] | None = None
        self.nowhere: tuple[Hashable, Report] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether each placement changes only sums of its node, and so many at once are exact."""
        demand = self.work.demand
        leans = self.company is not None and self.company.leans
        return not (demand.devices or demand.ports or leans) and self.standing.is_exact
