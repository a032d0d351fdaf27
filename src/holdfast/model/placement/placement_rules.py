"""The hard placement rules: where work may run.

The proposal calls these as filters, the commit to enforce them, explain to give reasons. Each
returns None or a refusal that names what would have to change. Spread and affinity are in
`spread.py`, because they guide proposals and are not guaranteed.
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
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import holds

# Every node has its own name as this label, and its operator cannot change that: work for a single
# node selects it like any other label.
NODE_LABEL = "holdfast.dev/node"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z", re.ASCII)


def labels_of(node: Node) -> Mapping[str, str]:
    """The labels that work can select a node by, including its name."""
    return {**node.metadata.labels, NODE_LABEL: node.metadata.name}


def tenant_image(tenant: str, image: str) -> str:
    """How a node lists an image that it has for one tenant only. No reference contains a space."""
    return f"{tenant} {image}"


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
    """The first taint that excludes this work. PreferNoSchedule only affects ranking."""
    for taint in taints:
        if hard_only and taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
            continue
        if not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def gate_refusal(gate: NodeGate) -> Refusal | None:
    """Refuses a node that takes no new work."""
    if gate.phase is not NodePhase.READY:
        return Refusal(
            Reason.NODE_NOT_READY, f"the node is {gate.phase.value}", {"phase": gate.phase.value}
        )
    return closed_refusal(gate)


def closed_refusal(gate: NodeGate) -> Refusal | None:
    """Refuses a node that its operators have closed to new work, whatever its phase."""
    if gate.draining:
        return Refusal(Reason.NODE_DRAINING, "the node is being drained")
    if gate.cordoned:
        return Refusal(Reason.NODE_CORDONED, "the node is cordoned")
    return None


def taint_refusal(gate: NodeGate, placement: Placement) -> Refusal | None:
    """Refuses a node with a taint that the work does not tolerate."""
    taint = first_untolerated(gate.taints, placement.tolerations)
    if taint is None:
        return None
    named = f"{taint.key}={taint.value}:{taint.effect.value}"
    return Refusal(Reason.TAINTED, f"the node's taint {named} is not tolerated", {"taint": named})


def protection_refusal(
    protection: Protection | None, tenant: str, priority_class: str
) -> Refusal | None:
    """Refuses protected capacity that is not for this work: every non-empty list must match."""
    if protection is None:
        return None
    if protection.tenants and tenant not in protection.tenants:
        return Refusal(
            Reason.TENANCY_FORBIDDEN,
            f"this capacity is protected for other tenants than {tenant}",
            {"tenant": tenant},
        )
    if protection.priority_classes and priority_class not in protection.priority_classes:
        named = priority_class or "(none)"
        return Refusal(
            Reason.PROTECTED_CAPACITY,
            f"this capacity is protected for other priority classes than {named}",
            {"priorityClass": priority_class},
        )
    return None


def isolation_wanted(template: Template, tenant: Tenant | None) -> Isolation:
    """The stronger isolation of those that the work and its tenant require."""
    asked = (template.isolation, tenant.spec.isolation if tenant is not None else Isolation.NONE)
    return max(asked, key=lambda it: it.strength)


def isolation_refusal(
    have: Isolation | None, wanted: Isolation, runtime: Runtime
) -> Refusal | None:
    """Refuses a node whose isolation between tenants is too weak.

    A node whose agent states no isolation has none. A process has at most isolation user, whatever
    the node provides for containers.
    """
    given = have or Isolation.NONE
    if runtime is Runtime.PROCESS and wanted.strength > Isolation.USER.strength:
        return Refusal(
            Reason.ISOLATION_TOO_WEAK,
            f"isolation {wanted.value} is required, and a process has at most isolation user: use "
            "runtime container",
            {"isolation": given.value, "wanted": wanted.value},
        )
    if given.strength >= wanted.strength:
        return None
    return Refusal(
        Reason.ISOLATION_TOO_WEAK,
        f"the node's isolation is {given.value}, {wanted.value} is required",
        {"isolation": given.value, "wanted": wanted.value},
    )


def user_refusal(
    have: Isolation | None, template: Template, tenant: Tenant | None
) -> Refusal | None:
    """Refuses work that names a user of the node that its tenant may not use.

    A user of the node has its own files, groups and processes there, and may be the user of another
    tenant's work. Without isolation there is nothing to protect, and a container has only the
    numbers of users, not their files.
    """
    is_open = not template.user or template.runtime is not Runtime.PROCESS
    if is_open or have is None or have is Isolation.NONE:
        return None
    if tenant is not None and template.user in tenant.spec.users:
        return None
    return Refusal(
        Reason.USER_NOT_ALLOWED,
        f"user {template.user} of the node is not in spec.users of the Tenant: leave user out, or "
        "ask an administrator to add it",
        {"user": template.user},
    )


def network_refusal(template: Template, tenant: Tenant | None) -> Refusal | None:
    """Refuses a container that requests the node's network if its tenant may not use it.

    There it could listen on any port, and reach services that listen on the node's loopback.
    """
    is_asked = template.host_network and template.runtime is Runtime.CONTAINER
    if not is_asked or (tenant is not None and tenant.spec.host_network):
        return None
    return Refusal(
        Reason.HOST_NETWORK_NOT_ALLOWED,
        "spec.hostNetwork of the Tenant does not allow hostNetwork: leave it out, or ask an "
        "administrator to allow it",
    )


def image_refusal(template: Template, tenant: Tenant | None) -> Refusal | None:
    """Refuses an image that the container's tenant may not use."""
    if tenant is None or template.runtime is not Runtime.CONTAINER:
        return None
    image, policy = template.image, tenant.spec.images
    if policy.registries and not any(_begins(image, it) for it in policy.registries):
        rule = "is in none of the registries in spec.images of the Tenant"
    elif policy.digests_only and _DIGEST.search(image) is None:
        rule = "must be named by its digest (@sha256:...): spec.images of the Tenant requires it"
    else:
        return None
    return Refusal(Reason.IMAGE_NOT_ALLOWED, f"the image {image} {rule}", {"image": image})


def _begins(image: str, registry: str) -> bool:
    """Whether a reference is below a registry or a path in it; a common prefix is not enough."""
    if ".." in image.split("/"):
        return False
    if not image.startswith(registry):
        return False
    rest = image[len(registry) :]
    # A colon starts a tag, or the port of another registry on the same host.
    is_tag = rest.startswith(":") and "/" not in rest
    return registry.endswith("/") or is_tag or rest[:1] in ("", "/", "@")


def policy_refusal(
    have: Isolation | None, template: Template, tenant: Tenant | None
) -> Refusal | None:
    """Refuses what a tenant's work may use only if the Tenant allows it."""
    return (
        user_refusal(have, template, tenant)
        or network_refusal(template, tenant)
        or image_refusal(template, tenant)
    )


def neighbour_refusal(gate: NodeGate, tenants: Iterable[str], tenant: str) -> Refusal | None:
    """Refuses a node without isolation that has work of another tenant.

    The message does not name that tenant: tenants must not learn about each other.
    """
    if gate.isolation is not Isolation.NONE or all(it == tenant for it in tenants):
        return None
    return Refusal(
        Reason.NODE_OF_ANOTHER_TENANT,
        "the node's isolation is none, and it has work of another tenant",
        {"isolation": Isolation.NONE.value},
    )


def site_refusal(gate: NodeGate, placement: Placement) -> Refusal | None:
    """Refuses a node outside the regions, zones and pool that the work requires."""
    for have, wanted, reason, what in (
        (gate.region, placement.regions, Reason.REGION_MISMATCH, "region"),
        (gate.zone, placement.zones, Reason.ZONE_MISMATCH, "zone"),
        (gate.pool, (placement.pool,) if placement.pool else (), Reason.POOL_MISMATCH, "pool"),
    ):
        if wanted and have not in wanted:
            return Refusal(
                reason,
                f"the node's {what} is {have or '(none)'}, the work requires {', '.join(wanted)}",
                {what: have},
            )
    return None


def residency_refusal(
    placement: Placement, tenant: Tenant | None, region_name: str, region: Region | None
) -> Refusal | None:
    """Refuses a region in which the work's data may not reside.

    If the tenant or the region is unknown, the work is refused, because residency cannot be
    checked. The tenant's own residency and regions apply to all of its work, whatever the work
    states.
    """
    if tenant is None:
        return Refusal(
            Reason.RESIDENCY_UNKNOWN, "the tenant is unknown, so its data residency is unknown"
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
                f"data must stay in {residency}, and region {region_name or '(none)'} is unknown",
                {"residency": residency, "region": region_name},
            )
        if residency not in region.spec.jurisdictions:
            return Refusal(
                Reason.RESIDENCY_FORBIDDEN,
                f"data must stay in {residency}, and region {region_name} is not in it",
                {"residency": residency, "region": region_name},
            )
    return None


def place_refusal(
    gate: NodeGate, template: Template, namespace: str, tenant: Tenant | None, region: Region | None
) -> Refusal | None:
    """Every hard placement rule that the commit enforces, except selectors."""
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
    """Refuses a node whose labels do not match the work's selectors."""
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
