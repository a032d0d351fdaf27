"""The smallest change that would let work fit: as text with its amount, and as a hypothesis.

`unschedulable.py` asks this for the node that came closest, and goes on until the work could be
placed there; `proposals.py` and `binder.py` for a quota that is used up. The text depends only on
what is seen, so that two schedulers that see the same say the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.placement.placement_rules import first_untolerated
from holdfast.model.quantity import Resource, demand, render
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.propose.feasibility.outcome import PlacementReport, Verdict, WakeEvent
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork

# How many resources are named in one sentence.
NAMED_MAX = 4

_OF_COHORT = (Reason.COHORT_EXHAUSTED, Reason.CLAIMED_BY_LENDERS)
_OF_QUOTA = (Reason.QUOTA_EXCEEDED, *_OF_COHORT, Reason.PRIORITY_BUDGET_EXCEEDED)
_OF_NODE: Mapping[Reason, str] = {
    Reason.NODE_NOT_READY: "node {node} ready again",
    Reason.NODE_DRAINING: "node {node} not drained",
    Reason.NODE_CORDONED: "node {node} uncordoned",
    Reason.TENANCY_FORBIDDEN: "node {node} open to tenant {tenant}",
    Reason.PROTECTED_CAPACITY: "node {node} open to the priority class of this work",
    Reason.ISOLATION_TOO_WEAK: "a node with the isolation that this work asks for",
    Reason.USER_NOT_ALLOWED: "no user in the template, or that one in the users of tenant {tenant}",
    Reason.HOST_NETWORK_NOT_ALLOWED: "no hostNetwork, or tenant {tenant} with spec.hostNetwork",
    Reason.IMAGE_NOT_ALLOWED: "an image that spec.images of tenant {tenant} allows",
    Reason.NODE_OF_ANOTHER_TENANT: "node {node} without work of other tenants",
    Reason.RESIDENCY_FORBIDDEN: "the region of node {node} allowed for this work",
    Reason.RESIDENCY_UNKNOWN: "a Region that states the jurisdiction of node {node}",
    Reason.PORT_TAKEN: "the port free on node {node}",
    Reason.PORT_NOT_OFFERED: "a node that offers the port, or port 0 for any free one",
    Reason.TOO_MANY_PER_NODE: "one more replica allowed on each node, or one more node",
    Reason.SPREAD_VIOLATED: "room in the domain with the fewest replicas, or a larger maxSkew",
    Reason.AFFINITY_UNMET: "room near the replicas that its affinity selects",
    Reason.ANTI_AFFINITY_VIOLATED: "a node away from the replicas that its anti-affinity excludes",
}


def quota_change(refusal: Refusal, tenant: str) -> str:
    """By how much a quota would have to be larger, or less of it used."""
    details = refusal.details
    if refusal.reason not in _OF_QUOTA or "resource" not in details:
        return ""
    resource = details["resource"]
    needed, used, limit = (demand(resource, details[it]) for it in ("needed", "used", "limit"))
    whose = f"the quota of tenant {tenant}"
    if refusal.reason in _OF_COHORT:
        whose = f"the quotas of the cohort of tenant {tenant}"
    elif refusal.reason is Reason.PRIORITY_BUDGET_EXCEEDED:
        whose = f"the budget of tenant {tenant} for priority class {details['priorityClass']}"
    return f"{render(resource, used + needed - limit)} more {resource} in {whose}"


def over_quota(refusal: Refusal, tenant: str) -> PlacementReport:
    """The report for work beyond what its tenant may have now."""
    return PlacementReport(
        {refusal.reason.value: 1},
        refusal.message,
        Verdict.BLOCKED_BY,
        (WakeEvent.ALLOWANCE, WakeEvent.QUOTA),
        smallest_change=quota_change(refusal, tenant),
    )


def change_at(
    work: PendingWork, node: str, refusal: Refusal | None, settled: NodeLedger, *, could_be: bool
) -> str:
    """What would make the node that came closest feasible.

    `could_be` says that the node could take it if it were empty; otherwise only another node helps.
    """
    if refusal is None:
        return ""
    match refusal.reason:
        case Reason.NODE_FULL:
            return _more_free(work, node, settled) if could_be else a_node(work)
        case Reason.DEVICE_MISSING:
            return f"a node with {_devices(work)}"
        case Reason.DEVICE_TAKEN:
            return f"{_devices(work)} free on node {node}"
        case Reason.SELECTOR_MISMATCH:
            return _labelled(work)
        case Reason.TAINTED:
            return f"a toleration of the taint {refusal.details.get('taint', '')}"
        case Reason.REGION_MISMATCH | Reason.ZONE_MISMATCH | Reason.POOL_MISMATCH:
            return f"a node in {_place(work)}"
    words = _OF_NODE.get(refusal.reason, "")
    return words.format(node=node, tenant=work.namespace)


def without_obstacle(
    snapshot: FleetSnapshot, node: Node, work: PendingWork, refusal: Refusal
) -> FleetSnapshot | None:
    """The snapshot of this node, if it did not refuse the work for this reason.

    None where that is not a matter of the node, or where it takes another node.
    """
    metadata, spec, status = node.metadata, node.spec, node.status
    placement = work.placement
    match refusal.reason:
        case Reason.NODE_FULL | Reason.DEVICE_TAKEN | Reason.PORT_TAKEN:
            return snapshot.only(node.name, is_empty=True)
        case Reason.NODE_NOT_READY:
            status = msgspec.structs.replace(status, phase=NodePhase.READY)
        case Reason.NODE_DRAINING:
            spec = msgspec.structs.replace(spec, drain=None)
        case Reason.NODE_CORDONED:
            spec = msgspec.structs.replace(spec, cordoned=False)
        case Reason.TAINTED:
            taint = first_untolerated(spec.taints, placement.tolerations)
            rest = tuple(it for it in spec.taints if it is not taint)
            spec = msgspec.structs.replace(spec, taints=rest)
        case Reason.TENANCY_FORBIDDEN | Reason.PROTECTED_CAPACITY:
            spec = msgspec.structs.replace(spec, protected_for=None)
        case Reason.SELECTOR_MISMATCH:
            labels = {**metadata.labels, **placement.node_selector}
            metadata = msgspec.structs.replace(metadata, labels=labels)
        case _:
            return None
    changed = msgspec.structs.replace(node, metadata=metadata, spec=spec, status=status)
    return snapshot.with_objects(changed)


def _more_free(work: PendingWork, node: str, ledger: NodeLedger) -> str:
    lacking = [
        f"{render(resource, units - ledger.free(resource))} {resource}"
        for resource, units in _sums(work)
        if units > ledger.free(resource)
    ]
    if ledger.free(Resource.REPLICAS) < 1:
        lacking.append("room for one replica")
    return f"{_and(lacking)} more free on node {node}" if lacking else ""


def a_node(work: PendingWork) -> str:
    """A node that would have to be added."""
    wanted = [f"{render(name, units)} {name}" for name, units in _sums(work)]
    if work.demand.devices:
        wanted.append(_devices(work))
    return f"a node with {_and(wanted)} free"


def _sums(work: PendingWork) -> list[tuple[str, int]]:
    """What it takes, except devices, which are assigned one by one."""
    left_out = [Resource.REPLICAS.value, *(it.device_class for it in work.demand.devices)]
    return [it for it in sorted(work.demand.amounts.items()) if it[1] and it[0] not in left_out]


def _devices(work: PendingWork) -> str:
    return _and([f"{it.count} {it.device_class}" for it in work.demand.devices])


def _labelled(work: PendingWork) -> str:
    placement = work.placement
    wanted = [f"{key}={value}" for key, value in sorted(placement.node_selector.items())]
    wanted += [
        " ".join([it.key, it.operator.value, *it.values][: NAMED_MAX + 2])
        for it in placement.node_expressions
    ]
    return f"one node with label {_and(wanted)}"


def _place(work: PendingWork) -> str:
    placement = work.placement
    parts = [
        f"{what} {' or '.join(names[:NAMED_MAX])}"
        for what, names in (
            ("region", placement.regions),
            ("zone", placement.zones),
            ("pool", (placement.pool,) if placement.pool else ()),
        )
        if names
    ]
    return ", ".join(parts)


def _and(parts: list[str]) -> str:
    if len(parts) > NAMED_MAX:
        parts = [*parts[: NAMED_MAX - 1], f"{len(parts) - NAMED_MAX + 1} more things"]
    return " and ".join(parts)
