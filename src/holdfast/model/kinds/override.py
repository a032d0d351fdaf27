"""Override: an operator's intervention with a scope, a reason and an expiry."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.meta import Condition, Object, Part, Quantity, Revision, Seconds, Timestamp


class OverrideType(StrEnum):
    PAUSE = "Pause"
    AVOID = "Avoid"
    PRIORITY = "Priority"
    QUOTA = "Quota"
    DRAIN = "Drain"
    REPAIR_APPROVAL = "RepairApproval"
    FAILOVER = "Failover"
    BREAK_GLASS = "BreakGlass"


class OverrideScope(Part, frozen=True):
    """What it applies to; everything named must match, and something must be named.

    tenants: these tenants.
    workloads: these workloads.
    regions: these regions.
    zones: these zones.
    nodes: these nodes.
    controllers: these controllers.
    """

    tenants: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()


class Postcondition(Part, frozen=True):
    """What must be true when it has ended.

    commitment: a Commitment that must hold again.
    condition: a condition of a target that must be True.
    within_seconds: how soon after the end.
    """

    commitment: str = ""
    condition: str = ""
    within_seconds: Seconds = 300


class OverrideSpec(Part, frozen=True):
    """What was decided, and until when.

    type: the type of intervention.
    scope: what it applies to.
    requester: who asked for it; set by the server.
    reason: why; required.
    expires: when it ends.
    priority_class: for Priority: the class to use.
    amounts: for Quota: what to add, by resource.
    runbook: the runbook that is being followed.
    postconditions: what must be true afterwards.
    """

    type: OverrideType
    scope: OverrideScope
    reason: str
    expires: Timestamp
    requester: str = ""
    priority_class: str = ""
    amounts: dict[str, Quantity] = {}
    runbook: str = ""
    postconditions: tuple[Postcondition, ...] = ()


class OverrideStatus(Part, frozen=True):
    """The effect of the override.

    observed_generation: the generation that this refers to; it is not written yet.
    phase: Active, Expired, Undone or Refused; it is not written yet.
    affected: the controllers that act on it; it is not written yet.
    conditions: each type has one writer; Active and PostconditionsMet are not written yet.
    """

    observed_generation: Revision = 0
    phase: str = ""
    affected: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Override(Object, frozen=True, kw_only=True, tag="Override"):
    """An operator's intervention with a scope, a reason and an expiry. It has no effect yet.

    spec: what was decided, and until when.
    status: its effect.
    """

    spec: OverrideSpec
    status: OverrideStatus = OverrideStatus()
