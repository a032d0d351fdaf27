"""Tenant: who runs work here. Each tenant is a namespace."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Resources
from holdfast.model.meta import Condition, Object, Part

# What may lie in a tenant's namespace, in the order in which it goes with its tenant; replicas go
# with their workloads. Whoever empties a namespace may remove these, and looks for these.
CONTENTS = (
    "workloads",
    "overrides",
    "commitments",
    "endpoints",
    "workloadrevisions",
    "reservations",
    "secrets",
    "tokens",
    "rolebindings",
    "roles",
    "quotas",
    "events",
)


class TenantPhase(StrEnum):
    ACTIVE = "Active"
    TERMINATING = "Terminating"


class ImagePolicy(Part, frozen=True):
    """Which images a tenant's containers may have.

    registries: beginnings of references, such as registry.example.com/team, or directories of
        nodes, such as /srv/images; empty means all.
    digests_only: accept references by digest only, which always mean the same bytes.
    """

    registries: tuple[str, ...] = ()
    digests_only: bool = False


class TenantSpec(Part, frozen=True):
    """Rules that hold for all of a tenant's work.

    display_name: for people.
    residency: the jurisdiction that none of its data may leave.
    regions: the only regions it may use; empty means all.
    suspended: accept no new work.
    isolation: how far a node must keep its work from that of others, at least.
    users: the users of nodes that its processes may run as, where each tenant has a user of its
        own; empty means no other than that one.
    host_network: whether its containers may use the network of their nodes.
    images: which images its containers may have.
    defaults: what is set aside for each replica of work that does not state it; a resource that is
        left out has the plane's default.
    minimum: what must be set aside for each replica at least; a resource that is left out has the
        plane's minimum.
    """

    display_name: str = ""
    residency: str = ""
    regions: tuple[str, ...] = ()
    suspended: bool = False
    isolation: Isolation = Isolation.NONE
    users: tuple[str, ...] = ()
    host_network: bool = False
    images: ImagePolicy = ImagePolicy()
    defaults: Resources = Resources()
    minimum: Resources = Resources()


class TenantStatus(Part, frozen=True):
    """What was observed.

    phase: Active, or Terminating while its objects go away.
    conditions: each type has one writer.
    """

    phase: TenantPhase = TenantPhase.ACTIVE
    conditions: tuple[Condition, ...] = ()


class Tenant(Object, frozen=True, kw_only=True, tag="Tenant"):
    """Who runs work here; its name is the namespace of all its objects.

    spec: rules for all of its work.
    status: what was observed.
    """

    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()
