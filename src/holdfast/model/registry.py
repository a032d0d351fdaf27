"""The table of kinds, as their modules declare them.

A kind that is not here does not exist, and a kind that is here exists everywhere.
"""

from __future__ import annotations

from holdfast.model.errors import Missing
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds import (
    access,
    admissionpolicy,
    commitment,
    decision,
    endpoints,
    event,
    lease,
    node,
    override,
    region,
    replica,
    reservation,
    schedulerpolicy,
    secret,
    tenant,
    workload_kind,
)
from holdfast.model.meta import Object

# The namespace of cluster-wide objects of namespaced kinds, such as cluster-wide roles.
SYSTEM_NAMESPACE = "holdfast-system"


KINDS: tuple[Kind, ...] = (
    workload_kind.WORKLOAD_KIND,
    replica.REPLICA_KIND,
    node.NODE_KIND,
    reservation.RESERVATION_KIND,
    tenant.QUOTA_KIND,
    tenant.TENANT_KIND,
    tenant.PRIORITY_CLASS_KIND,
    region.REGION_KIND,
    schedulerpolicy.SCHEDULER_POLICY_KIND,
    region.GRANT_KIND,
    override.OVERRIDE_KIND,
    lease.LEASE_KIND,
    commitment.COMMITMENT_KIND,
    event.EVENT_KIND,
    decision.DECISION_KIND,
    access.ROLE_KIND,
    access.ROLE_BINDING_KIND,
    access.TOKEN_KIND,
    access.REVOCATION_KIND,
    admissionpolicy.ADMISSION_POLICY_KIND,
    secret.SECRET_KIND,
    workload_kind.WORKLOAD_REVISION_KIND,
    endpoints.ENDPOINTS_KIND,
)
# The resources in a tenant's namespace, in the order in which controller:garbage removes them.
CONTENTS = tuple(
    kind.plural
    for kind in sorted(KINDS, key=lambda it: it.removal_order or 0)
    if kind.namespaced and kind.removal_order is not None
)

_BY_NAME = {kind.name: kind for kind in KINDS}
_BY_PLURAL = {kind.plural: kind for kind in KINDS}
BY_STRUCT = {kind.struct: kind for kind in KINDS}


def kind_named(name: str) -> Kind:
    """The kind of this name, as in the `kind` field of an object."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise Missing(
            f"unknown kind {name!r} in holdfast.dev/v1; known kinds: {', '.join(_BY_NAME)}"
        ) from None


def kind_of_plural(plural: str) -> Kind:
    """The kind of this plural, as in a path."""
    try:
        return _BY_PLURAL[plural]
    except KeyError:
        raise Missing(f"unknown resource {plural!r} in holdfast.dev/v1") from None


def kind_of(obj: Object) -> Kind:
    """The kind of an object."""
    return BY_STRUCT[type(obj)]


def kind_of_struct(struct: type[Object]) -> Kind:
    """The kind that this struct declares."""
    return BY_STRUCT[struct]
