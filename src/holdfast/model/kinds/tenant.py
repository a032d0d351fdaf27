"""Tenant: who runs work here. Each tenant is a namespace."""

from __future__ import annotations

from enum import StrEnum

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


class TenantSpec(Part, frozen=True):
    """Rules that hold for all of a tenant's work.

    display_name: for people.
    residency: the jurisdiction that none of its data may leave.
    regions: the only regions it may use; empty means all.
    suspended: accept no new work.
    """

    display_name: str = ""
    residency: str = ""
    regions: tuple[str, ...] = ()
    suspended: bool = False


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
