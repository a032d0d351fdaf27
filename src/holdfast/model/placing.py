"""Where work is allowed: the hard rules of place, each once.

The proposal calls these as filters, the commit as law, explain and what-if to say why. Each
returns None or a refusal that names what would have to change. Spread and affinity are in
`spread.py`, since they are only proposed, never promised.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.kinds.node import Node, NodePhase, Protection
from holdfast.model.kinds.placement import (
    Placement,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.ledger import Gate
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selectors import holds

# Every node has its own name as this label, whatever its operator says: work that is for one node
# alone asks for it as for any other label.
NODE_LABEL = "holdfast.dev/node"


def labels_of(node: Node) -> Mapping[str, str]:
    """What work can ask of a node: its labels, and its name among them."""
    return {**node.metadata.labels, NODE_LABEL: node.metadata.name}


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether this toleration covers this taint, as in Kubernetes."""
    if toleration.effect is not None and toleration.effect is not taint.effect:
        return False
    if toleration.operator is TolerationOperator.EXISTS:
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def untolerated(
    taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], *, hard_only: bool = True
) -> Taint | None:
    """The first taint that keeps this work away. PreferNoSchedule never does; it only ranks."""
    for taint in taints:
        if hard_only and taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
            continue
        if not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def gate_refusal(gate: Gate) -> Refusal | None:
    """Whether the node takes any new work at all."""
    if gate.phase is not NodePhase.READY:
        return Refusal(
            Reason.NODE_NOT_READY, f"the node is {gate.phase.value}", {"phase": gate.phase.value}
        )
    if gate.draining:
        return Refusal(Reason.NODE_DRAINING, "the node is being drained")
    if gate.cordoned:
        return Refusal(Reason.NODE_CORDONED, "the node is cordoned")
    return None


def taint_refusal(gate: Gate, placement: Placement) -> Refusal | None:
    """Whether the node's taints keep this work away."""
    taint = untolerated(gate.taints, placement.tolerations)
    if taint is None:
        return None
    named = f"{taint.key}={taint.value}:{taint.effect.value}"
    return Refusal(Reason.TAINTED, f"the node's taint {named} is not tolerated", {"taint": named})


def protection_refusal(
    protection: Protection | None, tenant: str, priority_class: str
) -> Refusal | None:
    """Whether protected capacity is for this work. Every list that is not empty must name it."""
    if protection is None:
        return None
    if protection.tenants and tenant not in protection.tenants:
        return Refusal(
            Reason.TENANCY_FORBIDDEN,
            f"this capacity is kept for other tenants than {tenant}",
            {"tenant": tenant},
        )
    if protection.priority_classes and priority_class not in protection.priority_classes:
        named = priority_class or "(none)"
        return Refusal(
            Reason.PROTECTED_CAPACITY,
            f"this capacity is kept for other priority classes than {named}",
            {"priorityClass": priority_class},
        )
    return None


def site_refusal(gate: Gate, placement: Placement) -> Refusal | None:
    """Whether region, zone and pool are among those that the work names."""
    for have, wanted, reason, what in (
        (gate.region, placement.regions, Reason.REGION_MISMATCH, "region"),
        (gate.zone, placement.zones, Reason.ZONE_MISMATCH, "zone"),
        (gate.pool, (placement.pool,) if placement.pool else (), Reason.POOL_MISMATCH, "pool"),
    ):
        if wanted and have not in wanted:
            return Refusal(
                reason,
                f"the node's {what} is {have or '(none)'}, the work asks for {', '.join(wanted)}",
                {what: have},
            )
    return None


def residency_refusal(
    placement: Placement, tenant: Tenant | None, region_name: str, region: Region | None
) -> Refusal | None:
    """Whether the law of the region allows the data of this work.

    What cannot be checked is refused, also when it is the tenant of which nothing is known.

    The tenant's own residency and regions hold for all of its work, whatever the work itself asks
    for.
    """
    if tenant is None:
        return Refusal(
            Reason.RESIDENCY_UNKNOWN, "nothing is known of the tenant, nor where its data may be"
        )
    allowed = tenant.spec.regions
    if allowed and region_name not in allowed:
        return Refusal(
            Reason.RESIDENCY_FORBIDDEN,
            f"the tenant may not use region {region_name or '(none)'}",
            {"region": region_name},
        )
    for residency in dict.fromkeys((tenant.spec.residency, placement.residency)):
        if not residency:
            continue
        if region is None:
            return Refusal(
                Reason.RESIDENCY_UNKNOWN,
                f"data must stay in {residency}, and nothing is known of region "
                f"{region_name or '(none)'}",
                {"residency": residency, "region": region_name},
            )
        if residency not in region.spec.jurisdictions:
            return Refusal(
                Reason.RESIDENCY_FORBIDDEN,
                f"data must stay in {residency}, region {region_name} is not there",
                {"residency": residency, "region": region_name},
            )
    return None


def place_refusal(
    gate: Gate, template: Template, namespace: str, tenant: Tenant | None, region: Region | None
) -> Refusal | None:
    """Every hard rule of place that the commit asks, in one screen."""
    if tenant is not None and tenant.spec.suspended:
        return Refusal(Reason.TENANT_SUSPENDED, f"tenant {tenant.name} accepts no new work")
    pools = region.spec.pools if region is not None else ()
    pool = next((pool.protected_for for pool in pools if pool.name == gate.pool), None)
    return (
        gate_refusal(gate)
        or taint_refusal(gate, template.placement)
        or site_refusal(gate, template.placement)
        or residency_refusal(template.placement, tenant, gate.region, region)
        or protection_refusal(gate.protected_for, namespace, template.priority_class)
        or protection_refusal(pool, namespace, template.priority_class)
    )


def selector_refusal(labels: Mapping[str, str], placement: Placement) -> Refusal | None:
    """Whether the node's labels are those that the work asks for."""
    for key, value in placement.node_selector.items():
        if labels.get(key) != value:
            return Refusal(
                Reason.SELECTOR_MISMATCH, f"the node lacks label {key}={value}", {"label": key}
            )
    for expression in placement.node_expressions:
        if not holds(expression, labels):
            what = f"{expression.key} {expression.operator.value} {','.join(expression.values)}"
            return Refusal(
                Reason.SELECTOR_MISMATCH,
                f"the node's labels do not satisfy {what.strip()}",
                {"label": expression.key},
            )
    return None
