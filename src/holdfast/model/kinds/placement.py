"""Where a replica may run and where it would rather run.

The hard rules here (regions, zones, residency, expressions, tolerations, pools) are judged by
`model/placement/placement_rules.py`, the soft ones only ever rank candidates.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.meta import Count, Part, Seconds
from holdfast.model.selection.selectors import Expression, LabelSelector

Weight = Annotated[int, Meta(ge=1, le=100)]


class Isolation(StrEnum):
    """How a node keeps the work of one tenant from that of others, the weakest first.

    none: by nothing but processes; all work has the agent's user.
    user: a user of each tenant's own, which sees neither the node's files nor others'.
    container: a container with a user namespace, filtered system calls and a network of its own.
    sandboxed: a kernel of its own, by a runtime that the operator installed.
    """

    NONE = "none"
    USER = "user"
    CONTAINER = "container"
    SANDBOXED = "sandboxed"

    @property
    def strength(self) -> int:
        """By which levels are compared; a stronger one serves whoever asks for a weaker one."""
        return tuple(Isolation).index(self)


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Part, frozen=True):
    """A mark on a node that keeps work away unless it tolerates the mark.

    key: the name of the mark.
    value: an optional value.
    effect: NoSchedule refuses new work, PreferNoSchedule avoids it, NoExecute also evicts PerNode
        work that runs; it has no effect yet on other work that runs.
    """

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    EXISTS = "Exists"


class Toleration(Part, frozen=True):
    """A taint that this work puts up with.

    key: the taint's key; empty with Exists means every taint.
    operator: Equal compares the value, Exists takes any.
    value: the value to compare with.
    effect: only this effect; absent means all of them.
    toleration_seconds: with NoExecute, how long to stay; absent means for ever. It has no effect
        yet: the taint is tolerated for ever.
    """

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None
    toleration_seconds: Seconds | None = None


class Topology(StrEnum):
    """How far apart two nodes are, from nearest to farthest."""

    NODE = "node"
    ZONE = "zone"
    REGION = "region"


class Spread(Part, frozen=True):
    """Keep the replicas of this workload even over places.

    over: node, zone or region.
    max_skew: how many more replicas one place may have than the emptiest eligible one.
    required: refuse what would break it; otherwise only rank by it.
    """

    over: Topology = Topology.ZONE
    max_skew: Annotated[int, Meta(ge=1, le=1000)] = 1
    required: bool = False


class Affinity(Part, frozen=True):
    """Be near, or away from, replicas with certain labels.

    selector: which replicas of the same tenant.
    within: what counts as near: the same node, zone or region.
    required: refuse what would break it; otherwise only rank by it.
    weight: how strongly to rank by it.
    """

    selector: LabelSelector
    within: Topology = Topology.NODE
    required: bool = True
    weight: Weight = 50


class Preference(Part, frozen=True):
    """Nodes this work would rather have, or rather not.

    expressions: which nodes; all must hold.
    weight: how strongly.
    avoid: rank such nodes lower instead of higher.
    """

    expressions: tuple[Expression, ...]
    weight: Weight = 50
    avoid: bool = False


class Placement(Part, frozen=True):
    """Where replicas may run.

    regions: only these regions; empty means any that residency allows.
    zones: only these zones.
    residency: the jurisdiction that the data must not leave, such as eu.
    pool: only nodes of this pool.
    node_selector: labels that the node must have.
    node_expressions: further conditions on the node's labels; all must hold.
    tolerations: taints that the work puts up with.
    spread: how to keep replicas even over places.
    affinity: replicas to be near.
    anti_affinity: replicas to be away from, whoever came first.
    prefer: nodes to rank higher or lower.
    max_per_node: at most so many replicas of this workload on one node; 0 means no limit.
    """

    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    residency: str = ""
    pool: str = ""
    node_selector: dict[str, str] = {}
    node_expressions: tuple[Expression, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    spread: tuple[Spread, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    anti_affinity: tuple[Affinity, ...] = ()
    prefer: tuple[Preference, ...] = ()
    max_per_node: Count = 0
