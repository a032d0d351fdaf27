"""Placement: where a replica may run, and which nodes it prefers.

`model/placement/placement_rules.py` enforces the hard rules (regions, zones, residency,
expressions, tolerations, pools); the soft ones only rank candidates.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.meta import Count, Part, Seconds, Timestamp
from holdfast.model.selection.selectors import Expression, LabelSelector

Weight = Annotated[int, Meta(ge=1, le=100)]


class Isolation(StrEnum):
    """How a node isolates the work of tenants from each other, the weakest first.

    none: separate processes only; all work runs as the agent's user.
    user: a separate user for each tenant, without access to files of the node or other tenants.
    container: a container with a user namespace, filtered system calls and its own network.
    sandboxed: a separate kernel, by a runtime that the operator installed.
    """

    NONE = "none"
    USER = "user"
    CONTAINER = "container"
    SANDBOXED = "sandboxed"

    @property
    def strength(self) -> int:
        """The rank of the level; a stronger level also satisfies a weaker requirement."""
        return tuple(Isolation).index(self)


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Part, frozen=True):
    """A taint of a node, which excludes work that does not tolerate it.

    key: the name of the taint.
    value: an optional value.
    effect: NoSchedule refuses new work, PreferNoSchedule avoids it, NoExecute also stops work that
        runs, within its disruption budget.
    time_added: since when a taint with NoExecute is there; the server sets it.
    """

    list_keys = ("key", "effect")

    key: str
    value: str = ""
    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    time_added: Timestamp | None = None


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    EXISTS = "Exists"


class Toleration(Part, frozen=True):
    """A taint that this work tolerates.

    key: the taint's key; empty with Exists means every taint.
    operator: Equal compares the value, Exists takes any.
    value: the value to compare with.
    effect: only this effect; absent means all of them.
    toleration_seconds: with NoExecute, how long to stay once the taint is there; absent means
        forever. PerNode work stays as long as it tolerates the taint at all.
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
    """Spreads the replicas of this workload evenly.

    over: node, zone or region.
    max_skew: how many more replicas one domain may have than the emptiest eligible one.
    required: whether it is a hard rule; otherwise it only ranks candidates.
    """

    over: Topology = Topology.ZONE
    max_skew: Annotated[int, Meta(ge=1, le=1000)] = 1
    required: bool = False


class Affinity(Part, frozen=True):
    """Places work near, or away from, replicas with certain labels.

    selector: which replicas of the same tenant.
    within: what counts as near: the same node, zone or region.
    required: whether it is a hard rule; otherwise it only ranks candidates.
    weight: its weight in the ranking.
    """

    selector: LabelSelector
    within: Topology = Topology.NODE
    required: bool = True
    weight: Weight = 50


class Preference(Part, frozen=True):
    """Nodes that this work prefers, or avoids.

    expressions: which nodes; all must hold.
    weight: its weight in the ranking.
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
    tolerations: taints that the work tolerates.
    spread: how to spread replicas evenly.
    affinity: replicas to be near.
    anti_affinity: replicas to be away from, whichever came first.
    prefer: nodes to rank higher or lower.
    max_per_node: the most replicas of this workload on one node; 0 means no limit.
    data: the regions or zones where its data is, to be near: the nearest counts. It only ranks
        candidates; `residency` and `regions` are the hard rules.
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
    data: tuple[str, ...] = ()
