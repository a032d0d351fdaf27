"""Validates tenants, priority classes and regions."""

from __future__ import annotations

from holdfast.model.kinds.region import Region
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Tenant
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.node import protection

REGIONS_MAX = 256
ZONES_MAX = 64
POOLS_MAX = 64
TENANTS_MAX = 1024
USERS_MAX = 64
REGISTRIES_MAX = 64
ROOT = ("root", "0")
DEFAULT_CLASS = "default"

# The prefixes of system namespaces. System identities start with "system:", so a tenant "system"
# would be confusing.
_RESERVED_PREFIXES = ("holdfast-", "kube-")
_RESERVED = ("holdfast", "system", SYSTEM_NAMESPACE)


def is_reserved(tenant: str) -> bool:
    """Whether no tenant may have this name."""
    return tenant in _RESERVED or tenant.startswith(_RESERVED_PREFIXES)


def tenant(obj: Tenant, at: FieldPath) -> None:
    if is_reserved(obj.name):
        at["metadata"]["name"].wrong(obj.name, "must not be a reserved name")
    at = at["spec"]
    text.sentence(at["displayName"], obj.spec.display_name, limit=names.DOTTED_MAX)
    names.optional_name(at["residency"], obj.spec.residency)
    names.names(at["regions"], obj.spec.regions, REGIONS_MAX)
    if names.at_most(at["users"], obj.spec.users, USERS_MAX):
        for index, user in enumerate(obj.spec.users):
            text.user(at["users"][index], user)
            if user in ROOT:
                at["users"][index].wrong(
                    user, "must not be root: work of tenants never runs as root"
                )
    registries = obj.spec.images.registries
    if names.at_most(at["images"]["registries"], registries, REGISTRIES_MAX):
        for index, registry in enumerate(registries):
            text.token(at["images"]["registries"][index], registry, limit=512)
    minimum = obj.spec.minimum.amounts
    for resource, given in obj.spec.defaults.amounts.items():
        of = resource.value
        default = amounts.read_demand(at["defaults"][of], resource, given)
        least = amounts.read_demand(at["minimum"][of], resource, minimum[resource])
        if default and least and default < least:
            at["defaults"][of].wrong(given, f"must not be less than spec.minimum.{of}")


def priority_class(obj: PriorityClass, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    names.names(at["allowedTenants"], spec.allowed_tenants, TENANTS_MAX)
    text.sentence(at["description"], spec.description, lines=True)
    if spec.capacity_class is CapacityClass.SOFT:
        at["capacityClass"].wrong(
            "soft", "must be hard or reclaimable: soft capacity cannot be charged"
        )
    if obj.name == DEFAULT_CLASS and spec.allowed_tenants:
        at["allowedTenants"].wrong(
            spec.allowed_tenants, "must be left out: all tenants use the default class"
        )
    # Reclaimable work yields to other work, so it must not preempt.
    if spec.preempts and spec.capacity_class is CapacityClass.RECLAIMABLE:
        at["preempts"].wrong(
            True, "must not be set for reclaimable work, which is itself preempted"
        )
    if spec.urgent and spec.value <= 0:
        at["value"].wrong(spec.value, "must be more than 0 for urgent work")


def region(obj: Region, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    names.names(at["jurisdictions"], spec.jurisdictions, REGIONS_MAX)
    names.names(at["zones"], spec.zones, ZONES_MAX)
    if names.at_most(at["latencyMs"], spec.latency_ms, REGIONS_MAX):
        for other in spec.latency_ms:
            if not names.is_name(other):
                at["latencyMs"].entry(other).wrong(other, f"the key {names.NAME_RULE}")
            elif other == obj.name:
                at["latencyMs"].entry(other).wrong(other, "must be another region")
    if names.at_most(at["pools"], spec.pools, POOLS_MAX):
        for index, pool in enumerate(spec.pools):
            names.name(at["pools"][index]["name"], pool.name)
            if pool.protected_for is not None:
                protection(at["pools"][index]["protectedFor"], pool.protected_for)
        names.unique(at["pools"], [pool.name for pool in spec.pools], "name")
    if spec.endpoint:
        text.url(at["endpoint"], spec.endpoint)
