"""Override: an operator's intervention with a scope, a reason and an expiry."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import (
    PEOPLE,
    Kind,
    KindRules,
    NoEffectRow,
    Unwritten,
    Writers,
    moment,
    text,
)
from holdfast.model.lifecycle import Actor
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
    """An operator's intervention with a scope, a reason and an expiry. A RepairApproval for zones
    lets the silent nodes of these zones be given up at once; all others have no effect yet.

    spec: what was decided, and until when.
    status: its effect.
    """

    spec: OverrideSpec
    status: OverrideStatus = OverrideStatus()


def _override_rules() -> KindRules:
    from holdfast.model.validation import override

    return KindRules(override.override)


OVERRIDE_KIND = Kind(
    Override,
    "overrides",
    rules=_override_rules,
    writers=Writers(
        spec=PEOPLE,
        status={
            "observed_generation": Actor.POLICY,
            "phase": Actor.POLICY,
            "affected": Actor.POLICY,
        },
        conditions={"Active": Actor.POLICY, "PostconditionsMet": Actor.POLICY},
    ),
    columns=(
        text("Type", lambda o: o.spec.type.value, "what kind of intervention"),
        text("Phase", lambda o: o.status.phase or "-", "whether it is in force"),
        text("Requester", lambda o: o.spec.requester, "who asked for it"),
        moment("Expires", lambda o: o.spec.expires, "when it ends by itself"),
        text("Reason", lambda o: o.spec.reason, "why", wide=True),
    ),
    short_names=("ov",),
    # An override records a decision; only its end, its runbook and its postconditions may
    # change. Anything else needs a new override with its own reason.
    immutable=(
        "spec.type",
        "spec.scope",
        "spec.requester",
        "spec.reason",
        "spec.priorityClass",
        "spec.amounts",
    ),
    no_effect=(
        NoEffectRow(
            "",
            lambda o: o.spec.type is not OverrideType.REPAIR_APPROVAL or not o.spec.scope.zones,
            "only RepairApproval for zones is followed",
        ),
    ),
    unwritten=Unwritten(
        ("observed_generation", "phase", "affected"), ("Active", "PostconditionsMet")
    ),
)
