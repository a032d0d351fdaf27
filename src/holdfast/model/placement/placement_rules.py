"""Where work is allowed: the hard rules of place, each once.

The proposal calls these as filters, the commit as law, explain and what-if to say why. Each
returns None or a refusal that names what would have to change. Spread and affinity are in
`spread.py`, since they are only proposed, never promised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.model.kinds.node import Node, NodePhase, Protection
from holdfast.model.kinds.placement import (
    Isolation,
    Placement,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.template import Runtime, Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import holds

# Every node has its own name as this label, whatever its operator says: work that is for one node
# alone asks for it as for any other label.
NODE_LABEL = "holdfast.dev/node"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z", re.ASCII)


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


def first_untolerated(
    taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], *, hard_only: bool = True
) -> Taint | None:
    """The first taint that keeps this work away. PreferNoSchedule never does; it only ranks."""
    for taint in taints:
        if hard_only and taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
            continue
        if not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def gate_refusal(gate: NodeGate) -> Refusal | None:
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


def taint_refusal(gate: NodeGate, placement: Placement) -> Refusal | None:
    """Whether the node's taints keep this work away."""
    taint = first_untolerated(gate.taints, placement.tolerations)
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


def isolation_wanted(template: Template, tenant: Tenant | None) -> Isolation:
    """The stronger of what the work and its tenant ask for."""
    asked = (template.isolation, tenant.spec.isolation if tenant is not None else Isolation.NONE)
    return max(asked, key=lambda it: it.strength)


def isolation_refusal(
    have: Isolation | None, wanted: Isolation, runtime: Runtime
) -> Refusal | None:
    """Whether a node keeps the work of tenants as far apart as is asked for.

    A node whose agent does not say how it does so keeps them apart by nothing. A process has a user
    of its tenant's own at most, whatever the node does for containers.
    """
    given = have or Isolation.NONE
    if runtime is Runtime.PROCESS and wanted.strength > Isolation.USER.strength:
        return Refusal(
            Reason.ISOLATION_TOO_WEAK,
            f"{wanted.value} is asked for, and the work is a process, which has isolation user at "
            "most: use runtime container",
            {"isolation": given.value, "wanted": wanted.value},
        )
    if given.strength >= wanted.strength:
        return None
    return Refusal(
        Reason.ISOLATION_TOO_WEAK,
        f"the node's isolation is {given.value}, {wanted.value} is asked for",
        {"isolation": given.value, "wanted": wanted.value},
    )


def user_refusal(
    have: Isolation | None, template: Template, tenant: Tenant | None
) -> Refusal | None:
    """Whether the work names a user of the node that its tenant may not have.

    A user of the node has files, groups and processes of its own there, and may be another tenant's
    name for its work. Where tenants have no users of their own there is nothing to leave, and a
    container has only the numbers of the users, and none of their files.
    """
    is_open = not template.user or template.runtime is not Runtime.PROCESS
    if is_open or have is None or have is Isolation.NONE:
        return None
    if tenant is not None and template.user in tenant.spec.users:
        return None
    return Refusal(
        Reason.USER_NOT_ALLOWED,
        f"the work asks for user {template.user} of the node, which is not in spec.users of its "
        "Tenant: leave user out, or have an administrator add it there",
        {"user": template.user},
    )


def network_refusal(template: Template, tenant: Tenant | None) -> Refusal | None:
    """Whether a container asks for the node's network, and its tenant may not have it.

    There it could listen on any port, and reach what listens for the node alone.
    """
    is_asked = template.host_network and template.runtime is Runtime.CONTAINER
    if not is_asked or (tenant is not None and tenant.spec.host_network):
        return None
    return Refusal(
        Reason.HOST_NETWORK_NOT_ALLOWED,
        "the work asks for hostNetwork, which spec.hostNetwork of its Tenant does not allow: leave "
        "it out, or have an administrator allow it there",
    )


def image_refusal(template: Template, tenant: Tenant | None) -> Refusal | None:
    """Whether a container's image is not among those that its tenant may use."""
    if tenant is None or template.runtime is not Runtime.CONTAINER:
        return None
    image, policy = template.image, tenant.spec.images
    if policy.registries and not any(_begins(image, it) for it in policy.registries):
        rule = "is in none of the registries of spec.images of its Tenant"
    elif policy.digests_only and _DIGEST.search(image) is None:
        rule = "is not named by its digest (@sha256:...), which spec.images of its Tenant demands"
    else:
        return None
    return Refusal(Reason.IMAGE_NOT_ALLOWED, f"the image {image} {rule}", {"image": image})


def _begins(image: str, registry: str) -> bool:
    """Whether a reference lies below a registry or a part of it, and not merely begins alike."""
    if ".." in image.split("/"):
        return False
    if not image.startswith(registry):
        return False
    rest = image[len(registry) :]
    # After a colon comes a tag, or the port of another registry on the same host.
    is_tag = rest.startswith(":") and "/" not in rest
    return registry.endswith("/") or is_tag or rest[:1] in ("", "/", "@")


def policy_refusal(
    have: Isolation | None, template: Template, tenant: Tenant | None
) -> Refusal | None:
    """What a tenant's work may ask for only if the tenant's policy says so."""
    return (
        user_refusal(have, template, tenant)
        or network_refusal(template, tenant)
        or image_refusal(template, tenant)
    )


def neighbour_refusal(gate: NodeGate, tenants: Iterable[str], tenant: str) -> Refusal | None:
    """Whether a node that keeps tenants apart by nothing has work of another one.

    Who that is is not told: tenants do not learn of each other.
    """
    if gate.isolation is not Isolation.NONE or all(it == tenant for it in tenants):
        return None
    return Refusal(
        Reason.NODE_OF_ANOTHER_TENANT,
        "the node's isolation is none, and it has work of another tenant",
        {"isolation": Isolation.NONE.value},
    )


def site_refusal(gate: NodeGate, placement: Placement) -> Refusal | None:
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
    gate: NodeGate, template: Template, namespace: str, tenant: Tenant | None, region: Region | None
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
        or isolation_refusal(gate.isolation, isolation_wanted(template, tenant), template.runtime)
        or policy_refusal(gate.isolation, template, tenant)
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
