"""Object defaults: requester and time, expiry, resources that work does not state, and the priority
of recovery.

`admission` sets the first two before it validates and the resources afterwards; `admission_checks`
sets the priority before it judges. Each change is recorded on the object.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.commit.access.revocation import complete_revocation
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model.access.credential_life import latest_end
from holdfast.model.kinds.access import Revocation, Token, TokenPurpose
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.template import Resources
from holdfast.model.kinds.tenant import PriorityClass, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object, Quantity
from holdfast.model.placement.taint_eviction import with_times
from holdfast.model.quantity import Resource, demand

# Work that must recover when a region is lost has this class unless it names another.
CRITICAL = "critical"


class Shaped(msgspec.Struct, frozen=True):
    """The object after the policies, with the changes and the hints."""

    object: Object
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def set_server_fields(context: Context, obj: Object, old: Object | None) -> Shaped:
    """The object with its requester and times, where the kind has them.

    The requester of an override is the authenticated caller at that time, whatever the file states.
    This comes before validation, which refuses any change of that name.
    """
    if isinstance(obj, Revocation):
        return Shaped(*complete_revocation(context, obj))
    if isinstance(obj, Token):
        return _ending(context, obj, old)
    if isinstance(obj, Node):
        before = old.spec.taints if isinstance(old, Node) else ()
        taints = with_times(obj.spec.taints, before, context.at)
        if taints == obj.spec.taints:
            return Shaped(obj)
        timed = msgspec.structs.replace(obj.spec, taints=taints)
        return Shaped(msgspec.structs.replace(obj, spec=timed))
    if not isinstance(obj, Override):
        return Shaped(obj)
    asked = old.spec.requester if isinstance(old, Override) else context.identity.name
    if obj.spec.requester == asked:
        return Shaped(obj)
    spec = msgspec.structs.replace(obj.spec, requester=asked)
    return Shaped(msgspec.structs.replace(obj, spec=spec), (f"spec.requester set to {asked}",))


def _ending(context: Context, obj: Token, old: Object | None) -> Shaped:
    """The token with an expiry that the plane allows.

    A token with an expiry keeps it, even when it is written again from a file without one;
    validation refuses to extend it. Validation refuses a join token without one: its creator must
    say for how long it is needed.
    """
    expires = obj.spec.expires
    if isinstance(old, Token) and old.spec.expires is not None:
        return Shaped(_with_end(obj, old.spec.expires) if expires is None else obj)
    if expires is None and obj.spec.purpose is TokenPurpose.JOIN:
        return Shaped(obj)
    created = old.metadata.creation_timestamp if old is not None else None
    latest = latest_end(obj, created or context.at, context.settings.token_life_ms)
    if expires is not None and expires <= latest:
        return Shaped(obj)
    said = f"spec.expires set to {latest.isoformat()}, the longest life that this plane allows"
    return Shaped(_with_end(obj, latest), (said,), (said,))


def _with_end(obj: Token, expires: datetime) -> Token:
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, expires=expires))


def minimum_resource(context: Context, tenant: Tenant, resource: Resource) -> tuple[Quantity, str]:
    """The minimum of a resource for each replica, and whose rule it is."""
    own, plane = tenant.spec.minimum, context.settings.minimum_resources
    return _ruled(own, plane, tenant, resource)


def _ruled(
    own: Resources, plane: Resources, tenant: Tenant, resource: Resource
) -> tuple[Quantity, str]:
    amount = own.amounts[resource]
    if demand(resource, amount):
        return amount, f"Tenant {tenant.name}"
    return plane.amounts[resource], "the plane"


def set_aside(draft: Draft, context: Context, obj: Workload) -> tuple[Workload, tuple[str, ...]]:
    """Give work that does not state its resources its tenant's defaults, or else the plane's.

    Without them it would be charged nothing, so that any number of replicas fits on any node.
    """
    tenant = draft.object(Tenant, "", obj.namespace)
    if tenant is None:
        return obj, ()
    template, given, changes = obj.spec.template, {}, []
    limits = template.limits.amounts
    for resource, stated in template.resources.amounts.items():
        if demand(resource, stated):
            continue
        amount, whose = _default_of(context, tenant, resource)
        limit = limits[resource]
        if 0 < demand(resource, limit) < demand(resource, amount):
            amount, whose = limit, f"spec.template.limits.{resource.value}"
        if demand(resource, amount):
            given[resource.value] = amount
            changes.append(
                f"spec.template.resources.{resource.value} set to {amount} by {whose}, because "
                "the work does not state it"
            )
    if not given:
        return obj, ()
    resources = msgspec.structs.replace(template.resources, **given)
    template = msgspec.structs.replace(template, resources=resources)
    spec = msgspec.structs.replace(obj.spec, template=template)
    return msgspec.structs.replace(obj, spec=spec), tuple(changes)


def _default_of(context: Context, tenant: Tenant, resource: Resource) -> tuple[Quantity, str]:
    """The default of a resource: never less than the minimum."""
    plane = context.settings.default_resources
    default = _ruled(tenant.spec.defaults, plane, tenant, resource)
    minimum = minimum_resource(context, tenant, resource)
    return max(minimum, default, key=lambda it: demand(resource, it[0]))


def set_critical_priority(
    draft: Draft, obj: Workload
) -> tuple[Workload, tuple[str, ...], tuple[str, ...]]:
    """Give recovery work the critical class. Returns it with the changes, or why there were
    none.
    """
    template = obj.spec.template
    if obj.spec.recovery is None or not obj.spec.recovery.eligible or template.priority_class:
        return obj, (), ()
    if draft.object(PriorityClass, "", CRITICAL) is None:
        hint = f"spec.recovery: there is no priority class {CRITICAL!r} to recover with"
        return obj, (), (hint,)
    template = msgspec.structs.replace(template, priority_class=CRITICAL)
    spec = msgspec.structs.replace(obj.spec, template=template)
    change = (
        f"spec.template.priorityClass set to {CRITICAL}, because spec.recovery asks for recovery"
    )
    return msgspec.structs.replace(obj, spec=spec), (change,), ()
