"""Per-node workloads: a replica on every node that the work fits, and on no other.

Part of controller:workload. A replica is created for one node, which its node selector names, and
is placed by the scheduler like any other. Its ordinal follows from the node's name, so that two
controllers create the same replica.

    a node that fits and takes work      -> Create, after a pause if the last ones crashed
    a node that takes no work            -> nothing new; what runs there stays. A drain stops it
    labels or site no longer fit,
    a NoExecute taint, the node is gone  -> released or evicted
    Released                             -> removed, once its successor exists or none is wanted

`model/placement/placement_rules.py` defines what fits; the scheduler decides whether there is room,
and the replica waits with that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    ReconcilePlan,
)
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.remembered import Remembered
from holdfast.correct.workload.replica_creation import (
    FURTHER,
    ReplicaCreation,
    endings_notes,
    is_of,
    is_to_be_released,
    removal,
    stated_for,
    stop,
    worth,
)
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.placement import TaintEffect
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.placement_rules import (
    NODE_LABEL,
    first_untolerated,
    gate_refusal,
    isolation_refusal,
    isolation_wanted,
    labels_of,
    policy_refusal,
    protection_refusal,
    residency_refusal,
    selector_refusal,
    site_refusal,
    taint_refusal,
)
from holdfast.model.placement.vacancy import first_place, home_of, next_place, vacates
from holdfast.model.quota.ledger import gate_of
from holdfast.model.requests import Request, Term
from holdfast.model.time import Instant, sooner
from holdfast.model.workload.rollouts import REVERTED, revision_name
from holdfast.observe.cache import Key
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

BY_TYPE = Index("workloads", "type", lambda it: (it.spec.type.value,))

# How soon to reconcile again when the cache cannot tell whether replicas may stay.
UNTOLD_PAUSE_MS = 1_000
# A label is no longer than this. Work cannot ask for a node with a longer name.
NODE_NAME_MAX = 63


class PerNodeReplicas:
    """See the module's docstring."""

    def __init__(self, creation: ReplicaCreation) -> None:
        self._creation = creation
        self._rests = Cooldowns()
        self.remembers: tuple[Remembered, ...] = (self._rests,)

    def reconcile(
        self, view: Snapshot, workload: Workload, key: Key, term: Term, now: Instant
    ) -> ReconcilePlan:
        """The plan for the replicas of a per-node workload."""
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        workload = in_force(view, workload)
        mine = _mine(view, workload)
        nodes = list(view.all("nodes"))
        self._rests.rest(key, len(mine) + len(nodes), now)
        for replica in mine:
            self._creation.see(replica)
        by_node = _by_node(mine)
        requests: list[Request] = []
        wake_ms: int | None = None
        homeless: list[tuple[Node, list[Replica]]] = []
        for node in sorted(nodes, key=lambda it: it.name):
            lives = by_node.pop(node.name, [])
            stays = belongs(workload, node)
            if not stays and not _is_sure(view, lives):
                wake_ms = sooner(wake_ms, UNTOLD_PAUSE_MS)
                continue
            requests += _stops(workload, lives, stays, term)
            if not stays or not all(vacates(it) for it in lives) or not takes(view, workload, node):
                continue
            wait_ms = self._creation.pause_ms(workload, lives[-1], now) if lives else 0
            if wait_ms > 0:
                wake_ms = sooner(wake_ms, wait_ms)
            elif not workload.status.rollout.held:
                homeless.append((node, lives))
        for lives in by_node.values():
            if _is_sure(view, lives):
                requests += _stops(workload, lives, False, term)
            else:
                wake_ms = sooner(wake_ms, UNTOLD_PAUSE_MS)
        taken = {it.spec.ordinal for it in mine}
        for node, lives in homeless:
            place = lives[-1].spec.ordinal if lives else _free_place(node.name, taken)
            made = self._create(view, workload, node, place, lives, term)
            requests += made
            wake_ms = wake_ms if made else sooner(wake_ms, UNTOLD_PAUSE_MS)
        return ReconcilePlan(tuple(requests[: REQUESTS_PER_PLAN_MAX + 1]), wake_after_ms=wake_ms)

    def _create(
        self,
        view: Snapshot,
        workload: Workload,
        node: Node,
        ordinal: int,
        lives: list[Replica],
        term: Term,
    ) -> list[Request]:
        """The creation of the next replica for a node, if the cache has the template for it."""
        stated = stated_for(self._creation, view, workload, ordinal)
        if stated is None:
            return []
        notes = endings_notes(workload, lives[-1] if lives else None)
        template = pin_to_node(stated, node.name)
        return [self._creation.create(workload, ordinal, term, notes, template, stated)]


def nodes_wanted(view: Snapshot, workload: Workload) -> int:
    """The number of nodes that should have a replica: they fit, and take work or have one."""
    workload = in_force(view, workload)
    homes = {home_of(it) for it in _mine(view, workload) if it.status.state in FURTHER}
    return sum(
        belongs(workload, node) and (node.name in homes or takes(view, workload, node))
        for node in view.all("nodes")
    )


def in_force(view: Snapshot, workload: Workload) -> Workload:
    """The workload with the template that decides on which nodes it belongs.

    That is the stated one, also during its rollout; after a rollback it is the stable one.
    """
    if workload.status.rollout.phase not in REVERTED:
        return workload
    name = revision_name(workload.name, workload.status.rollout.stable)
    found: WorkloadRevision | None = view.get("workloadrevisions", workload.namespace, name)
    if found is None:
        return workload
    spec = msgspec.structs.replace(workload.spec, template=found.spec.template)
    return msgspec.structs.replace(workload, spec=spec)


def pin_to_node(template: Template, node: str) -> Template:
    """The template of a replica for one node only."""
    placement = template.placement
    selector = {**placement.node_selector, NODE_LABEL: node}
    there = msgspec.structs.replace(placement, node_selector=selector)
    return msgspec.structs.replace(template, placement=there)


def belongs(workload: Workload, node: Node) -> bool:
    """Whether replicas of a workload may stay on a node."""
    placement, gate = workload.spec.template.placement, gate_of(node)
    harsh = tuple(it for it in node.spec.taints if it.effect is TaintEffect.NO_EXECUTE)
    return (
        len(node.name) <= NODE_NAME_MAX
        and selector_refusal(labels_of(node), placement) is None
        and site_refusal(gate, placement) is None
        and first_untolerated(harsh, placement.tolerations) is None
    )


def takes(view: Snapshot, workload: Workload, node: Node) -> bool:
    """Whether a node takes a new replica of a workload that belongs there."""
    template, gate = workload.spec.template, gate_of(node)
    tenant: Tenant | None = view.get("tenants", "", workload.namespace)
    region: Region | None = view.get("regions", "", gate.region) if gate.region else None
    pools = region.spec.pools if region is not None else ()
    pool = next((it.protected_for for it in pools if it.name == gate.pool), None)
    refusal = (
        gate_refusal(gate)
        or taint_refusal(gate, template.placement)
        or residency_refusal(template.placement, tenant, gate.region, region)
        or protection_refusal(gate.protected_for, workload.namespace, template.priority_class)
        or protection_refusal(pool, workload.namespace, template.priority_class)
        or isolation_refusal(gate.isolation, isolation_wanted(template, tenant), template.runtime)
        or policy_refusal(gate.isolation, template, tenant)
    )
    return refusal is None


def is_same_home(before: Any, after: Any) -> bool:
    """Whether a node existed and still does, and nothing has changed that the rules depend on."""
    if not isinstance(before, Node) or not isinstance(after, Node):
        return False
    was, now = gate_of(before), gate_of(after)
    return was == now and before.metadata.labels == after.metadata.labels


def _mine(view: Snapshot, workload: Workload) -> list[Replica]:
    named: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
    return [it for it in named if is_of(it, workload)]


def _by_node(mine: list[Replica]) -> dict[str, list[Replica]]:
    """The replicas for each node, the newest last."""
    found: dict[str, list[Replica]] = {}
    for replica in sorted(mine, key=lambda it: (it.spec.incarnation, it.spec.ordinal)):
        found.setdefault(home_of(replica), []).append(replica)
    return found


def _is_sure(view: Snapshot, lives: list[Replica]) -> bool:
    """Whether the cached nodes are as new as these replicas.

    The creator of the replicas may have known a node or a label that the cache lacks.
    """
    return all(view.knows_all_of(it) for it in lives)


def _stops(workload: Workload, lives: list[Replica], stays: bool, term: Term) -> Iterator[Request]:
    """Stop surplus replicas on one node, and remove the released ones."""
    alive = [it for it in lives if it.status.state in FURTHER]
    keep = max(alive, key=worth, default=None) if stays else None
    for replica in lives:
        doomed = replica.metadata.deletion_timestamp is not None
        if replica.status.state is State.RELEASED:
            if not stays or replica is not lives[-1]:
                yield removal(replica)
        elif replica is not keep or doomed:
            yield from stop(replica, Cause.SCALE_DOWN, term)
        elif is_to_be_released(workload, replica):
            yield from stop(replica, Cause.ROLLOUT, term)


def _free_place(node: str, taken: set[int]) -> int:
    """The ordinal of a node's first replica: the first one that no other node has.

    Two new nodes may ask for the same ordinal. The commit gives it to one of them, and the other
    moves on when it sees the replica there: the commit refuses to skip an ordinal that is free.
    """
    place = first_place(node)
    for _ in range(len(taken)):
        if place not in taken:
            break
        place = next_place(place)
    return place
