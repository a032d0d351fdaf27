"""Built-in admission policies: what a well-formed object still may not ask for.

Each policy is a row of POLICIES. Policies that fail closed refuse what they cannot find to be
allowed; those that fail open are hints: the object is accepted, and the doubt is returned to its
writer and kept on the object. `admission` runs them and records what they did; `object_defaults`
sets the fields that an object leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from holdfast.commit.access.revocation import future_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.objects.object_defaults import Shaped, minimum_resource, set_critical_priority
from holdfast.model import keys
from holdfast.model.kinds.access import Revocation
from holdfast.model.kinds.node import GPU
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object
from holdfast.model.placement.placement_rules import NODE_LABEL, protection_refusal
from holdfast.model.quantity import Resource, demand
from holdfast.model.quota.charging import PRIORITY_NAME, budget_of
from holdfast.model.quota.ledger import NodeLedger, PoolsLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import SelectorOperator

# Incremented whenever a policy changes what it accepts: an object records the version that it was
# admitted under.
POLICY_VERSION = 2


class Fails(StrEnum):
    """What happens to an object that a policy cannot find to be allowed."""

    CLOSED = "closed"
    OPEN = "open"


class BuiltInPolicy(msgspec.Struct, frozen=True):
    """One policy for workloads. `judge` returns a refusal, or hints."""

    name: str
    fails: Fails
    about: str
    judge: Callable[[Draft, Context, Workload], Refusal | tuple[str, ...] | None]


def _no(field: str, value: str, rule: str, scope: str, reason: Reason) -> Refusal:
    return Refusal(
        reason, f"{field}: {value}: {rule}", {"field": field, "value": value, "scope": scope}
    )


def with_policy_name(name: str, refusal: Refusal) -> Refusal:
    """The refusal with the name of its policy."""
    scope = refusal.details.get("scope", "cluster")
    return msgspec.structs.replace(
        refusal,
        message=f"{refusal.message} (policy {name} of {scope})",
        details={**refusal.details, "policy": f"{name}/{POLICY_VERSION}"},
    )


def apply_policies(draft: Draft, context: Context, obj: Object) -> Shaped | Refusal:
    """Apply the policies to one object. Kinds without a policy pass."""
    if isinstance(obj, Revocation):
        return future_refusal(context, obj) or Shaped(obj)
    if isinstance(obj, Quota):
        return Shaped(obj, (), _class_hints(draft, obj))
    return _workload(draft, context, obj) if isinstance(obj, Workload) else Shaped(obj)


def _workload(draft: Draft, context: Context, obj: Workload) -> Shaped | Refusal:
    workload, changes, hints = set_critical_priority(draft, obj)
    for policy in POLICIES:
        found = policy.judge(draft, context, workload)
        if isinstance(found, Refusal):
            return with_policy_name(policy.name, found)
        hints = (*hints, *(found or ()))
    return Shaped(workload, changes, hints)


def _class_hints(draft: Draft, obj: Quota) -> tuple[str, ...]:
    """Hints for budgets of unknown classes: such a budget limits nothing, and the name may be
    mistyped.
    """
    named = tuple(obj.spec.priority_classes)
    found = for_each(named, lambda name: draft.object(PriorityClass, "", name))
    return tuple(
        f"spec.priorityClasses[{name}]: there is no such priority class yet"
        for name, there in zip(named, found, strict=True)
        if there is None and name != PRIORITY_NAME
    )


def _priority_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    name = obj.spec.template.priority_class
    found = draft.object(PriorityClass, "", budget_of(name))
    field = "spec.template.priorityClass"
    if found is None:
        if not name:
            return None
        return _no(field, name, "there is no such priority class", "cluster", Reason.MISSING)
    allowed = found.spec.allowed_tenants
    if allowed and obj.namespace not in allowed:
        rule = f"tenant {obj.namespace} is not among those who may use it"
        return _no(field, found.name, rule, f"PriorityClass {found.name}", Reason.NOT_ALLOWED)
    return None


def _pool_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    """Refuse work that selects a protected pool it is not for, in any region that has the pool."""
    template = obj.spec.template
    if not template.placement.pool:
        return None
    pools = draft.ledger(PoolsLedger, keys.pools_ledger()) or PoolsLedger()
    wanted = template.placement.regions
    for region, table in pools.protected.items():
        if wanted and region not in wanted:
            continue
        protection = table.get(template.placement.pool)
        refusal = protection_refusal(protection, obj.namespace, template.priority_class)
        if refusal is not None:
            return _no(
                "spec.template.placement.pool",
                template.placement.pool,
                refusal.message,
                f"Region {region}",
                Reason.PROTECTED_CAPACITY,
            )
    return None


def _node_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    """Refuse work that names a protected node. The bind judges a node that does not exist yet."""
    template = obj.spec.template
    field, named = _named_nodes(template.placement)
    if not named:
        return None
    pools = draft.ledger(PoolsLedger, keys.pools_ledger()) or PoolsLedger()
    ledgers = for_each(named, lambda name: draft.ledger(NodeLedger, keys.node_ledger(name)))
    for ledger in ledgers:
        if ledger is None:
            return None
        gate = ledger.gate
        kept_for = (gate.protected_for, pools.protected.get(gate.region, {}).get(gate.pool))
        found = [protection_refusal(it, obj.namespace, template.priority_class) for it in kept_for]
        if not any(found):
            return None
    rule = "the capacity of these nodes is kept for other work"
    return _no(field, ",".join(named), rule, "cluster", Reason.PROTECTED_CAPACITY)


def _named_nodes(placement: Placement) -> tuple[str, tuple[str, ...]]:
    """The only nodes that the work asks for by name, and the field that names them."""
    at = "spec.template.placement"
    if NODE_LABEL in placement.node_selector:
        return f"{at}.nodeSelector[{NODE_LABEL}]", (placement.node_selector[NODE_LABEL],)
    for index, wanted in enumerate(placement.node_expressions):
        if wanted.key == NODE_LABEL and wanted.operator is SelectorOperator.IN:
            return f"{at}.nodeExpressions[{index}]", wanted.values
    return "", ()


def _gpu_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    """Refuse GPU work without memory or models: it could be placed on a GPU that it cannot use."""
    for index, request in enumerate(obj.spec.template.devices):
        memory = demand(Resource.MEMORY, request.memory)
        if request.device_class == GPU and not request.models and not memory:
            return _no(
                f"spec.template.devices[{index}]",
                GPU,
                "must state memory or models",
                "cluster",
                Reason.NOT_ALLOWED,
            )
    return None


def _minimum_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    """Refuse work below the minimum resources: any number of it would fit on any node."""
    tenant = draft.object(Tenant, "", obj.namespace)
    if tenant is None:
        return None
    for resource, stated in obj.spec.template.resources.amounts.items():
        least, whose = minimum_resource(context, tenant, resource)
        if demand(resource, stated) < demand(resource, least):
            field, rule = f"spec.template.resources.{resource.value}", f"must be at least {least}"
            return _no(field, str(stated), rule, whose, Reason.NOT_ALLOWED)
    return None


def _region_refusal(draft: Draft, context: Context, obj: Workload) -> Refusal | None:
    """Refuse work that names only regions that its tenant may not use: it could never run."""
    tenant = draft.object(Tenant, "", obj.namespace)
    allowed = tenant.spec.regions if tenant is not None else ()
    wanted = obj.spec.template.placement.regions
    if not allowed or not wanted or any(region in allowed for region in wanted):
        return None
    return _no(
        "spec.template.placement.regions",
        ",".join(wanted),
        f"the tenant may use only {', '.join(allowed)}",
        f"Tenant {obj.namespace}",
        Reason.RESIDENCY_FORBIDDEN,
    )


def _region_hints(draft: Draft, context: Context, obj: Workload) -> tuple[str, ...]:
    wanted = obj.spec.template.placement.regions
    found = for_each(wanted, lambda region: draft.object(Region, "", region))
    return tuple(
        f"spec.template.placement.regions: there is no region {name!r} yet"
        for name, region in zip(wanted, found, strict=True)
        if region is None
    )


def _grace_hint(draft: Draft, context: Context, obj: Workload) -> tuple[str, ...]:
    """A hint if the work asks for more grace than a cut-off node gives: fencing depends on the
    plane's own grace.
    """
    template, most = obj.spec.template, context.settings.fence.grace_ms // 1000
    if template.on_disconnect is OnDisconnect.KEEP or template.grace_seconds <= most:
        return ()
    sentence = (
        f"spec.template.graceSeconds: a node that is cut off gives the work {most} s to stop, "
        f"not {template.grace_seconds}"
    )
    return (sentence,)


# In this order; the first refusal is returned.
POLICIES: tuple[BuiltInPolicy, ...] = (
    BuiltInPolicy(
        "priority-class",
        Fails.CLOSED,
        "only the tenants that a PriorityClass names may use it; an unknown class is refused",
        _priority_refusal,
    ),
    BuiltInPolicy(
        "protected-pool",
        Fails.CLOSED,
        "a pool that a Region keeps for others cannot be selected",
        _pool_refusal,
    ),
    BuiltInPolicy(
        "protected-node",
        Fails.CLOSED,
        "nodes whose capacity is kept for others cannot be selected by name",
        _node_refusal,
    ),
    BuiltInPolicy(
        "device-shape", Fails.CLOSED, "work for GPUs states their memory or models", _gpu_refusal
    ),
    BuiltInPolicy(
        "minimum-resources",
        Fails.CLOSED,
        "work sets aside at least what its tenant, or else the plane, demands for each replica",
        _minimum_refusal,
    ),
    BuiltInPolicy(
        "tenant-regions",
        Fails.CLOSED,
        "work names at least one region that its tenant may use, or none",
        _region_refusal,
    ),
    BuiltInPolicy(
        "known-regions", Fails.OPEN, "a named region may be created later", _region_hints
    ),
    BuiltInPolicy(
        "stop-grace",
        Fails.OPEN,
        "a node that is cut off may give the work less time to stop than it asks for",
        _grace_hint,
    ),
)
