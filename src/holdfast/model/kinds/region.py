"""Region: where work can run, and its jurisdictions. Grant: a region's part of a quota."""

from __future__ import annotations

from holdfast.model.kinds.node import Protection
from holdfast.model.meta import Condition, Object, Part, Quantity, Revision, Timestamp


class Pool(Part, frozen=True):
    """A named set of nodes of a region.

    name: the pool.
    protected_for: the only work that it accepts; other work cannot select it.
    """

    name: str
    protected_for: Protection | None = None


class RegionSpec(Part, frozen=True):
    """The properties of the region.

    jurisdictions: the residencies it satisfies, such as eu.
    zones: its failure domains.
    pools: its pools of nodes.
    endpoint: where its plane can be reached; empty for this one. It has no effect yet: this plane
        connects to no other plane.
    """

    jurisdictions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    endpoint: str = ""


class RegionStatus(Part, frozen=True):
    """What was observed.

    phase: Healthy, Degraded, Lost or Unknown; it is not written yet.
    conditions: each type has one writer; Healthy is not written yet.
    """

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Region(Object, frozen=True, kw_only=True, tag="Region"):
    """Where work can run, and its jurisdictions.

    spec: its properties.
    status: what was observed.
    """

    spec: RegionSpec = RegionSpec()
    status: RegionStatus = RegionStatus()


# Grant: the part of a tenant's quota that a region may spend on its own, until it expires.


class GrantSpec(Part, frozen=True):
    """The budget. The sum of all outstanding grants never exceeds the quota.

    tenant: the tenant whose quota it is part of.
    region: the region that may spend it.
    guaranteed: for ordinary work, by resource.
    recovery: only for recovering lost work, by resource.
    temporary: for placements while the region is cut off, by resource.
    expires: after this no new work may be placed on it.
    serial: grows with each renewal; an older one never replaces a newer.
    """

    tenant: str
    region: str
    expires: Timestamp
    guaranteed: dict[str, Quantity] = {}
    recovery: dict[str, Quantity] = {}
    temporary: dict[str, Quantity] = {}
    serial: Revision = 0


class GrantStatus(Part, frozen=True):
    """The region's report.

    accepted_serial: the serial that the region acts under; it is not written yet.
    spent: by budget and resource; it is not written yet.
    conditions: each type has one writer; Accepted is not written yet.
    """

    accepted_serial: Revision = 0
    spent: dict[str, dict[str, str]] = {}
    conditions: tuple[Condition, ...] = ()


class Grant(Object, frozen=True, kw_only=True, tag="Grant"):
    """A region's budget for one tenant. It has no effect yet.

    spec: the budget.
    status: the region's report.
    """

    spec: GrantSpec
    status: GrantStatus = GrantStatus()
