"""Region: where work can run, and its jurisdictions. Grant: a region's part of a quota."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from holdfast.model.kind_declaration import (
    OPERATORS,
    Kind,
    KindRules,
    NoEffectRow,
    Unwritten,
    Writers,
    moment,
    no_effect,
    text,
)
from holdfast.model.kinds.node import Protection
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, Object, Part, Quantity, Revision, Timestamp

LatencyMs = Annotated[int, Meta(ge=0, le=60_000)]


class Pool(Part, frozen=True):
    """A named set of nodes of a region.

    name: the pool.
    protected_for: the only work that it accepts; other work cannot select it.
    """

    list_keys = ("name",)

    name: str
    protected_for: Protection | None = None


class RegionSpec(Part, frozen=True):
    """The properties of the region.

    jurisdictions: the residencies it satisfies, such as eu.
    zones: its failure domains.
    latency_ms: the round-trip time to other regions, in milliseconds, for ranking: of two regions
        the larger statement counts, and none means far.
    pools: its pools of nodes.
    endpoint: where its plane can be reached; empty for this one. It has no effect yet: this plane
        connects to no other plane.
    """

    jurisdictions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    latency_ms: dict[str, LatencyMs] = {}
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


def _region_rules() -> KindRules:
    from holdfast.model.validation import tenancy

    return KindRules(tenancy.region)


REGION_KIND = Kind(
    Region,
    "regions",
    rules=_region_rules,
    writers=Writers(
        spec=OPERATORS, status={"phase": Actor.NODES}, conditions={"Healthy": Actor.NODES}
    ),
    columns=(
        text("Phase", lambda o: o.status.phase or "-", "how it is doing"),
        text(
            "Law", lambda o: ",".join(o.spec.jurisdictions) or "-", "the residencies it satisfies"
        ),
        text("Zones", lambda o: ",".join(o.spec.zones) or "-", "its failure domains"),
    ),
    namespaced=False,
    short_names=("rg",),
    no_effect=(
        NoEffectRow(
            "spec.endpoint",
            lambda it: bool(it.spec.endpoint),
            "this plane connects to no other plane",
        ),
    ),
    unwritten=Unwritten(("phase",), ("Healthy",)),
)


def _grant_rules() -> KindRules:
    from holdfast.model.validation import budgets

    return KindRules(budgets.grant, budgets.grant_status, budgets.grant_update)


GRANT_KIND = Kind(
    Grant,
    "grants",
    rules=_grant_rules,
    writers=Writers(
        spec=OPERATORS,
        status={"accepted_serial": Actor.QUOTA, "spent": Actor.QUOTA},
        conditions={"Accepted": Actor.QUOTA},
    ),
    columns=(
        text("Tenant", lambda o: o.spec.tenant, "whose quota it is cut from"),
        text("Region", lambda o: o.spec.region, "who may spend it"),
        moment("Expires", lambda o: o.spec.expires, "when it ends"),
    ),
    namespaced=False,
    short_names=("gr",),
    immutable=("spec.tenant", "spec.region"),
    no_effect=no_effect("no region spends from it"),
    unwritten=Unwritten(("accepted_serial", "spent"), ("Accepted",)),
)
