"""SchedulerPolicy: one immutable revision of the placement policy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.template import DeviceRequest, Resources
from holdfast.model.meta import Condition, Object, Part, Revision, Seconds

ScoreWeight = Annotated[int, Meta(ge=0, le=100)]


class PolicyStage(StrEnum):
    """How much of the work a policy applies to. Schedulers support Inactive and Active so far."""

    INACTIVE = "Inactive"
    SHADOW = "Shadow"
    CANARY = "Canary"
    CELL = "Cell"
    REGION = "Region"
    ACTIVE = "Active"


class PolicyScope(Part, frozen=True):
    """The part of the work that a canary applies to.

    tenants: only these tenants.
    regions: only these regions.
    percent: this percentage of the rest, by a stable hash of the workload.
    """

    tenants: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    percent: Annotated[int, Meta(ge=0, le=100)] = 5


class ExpectedDemand(Part, frozen=True):
    """Expected work with devices, for which suitable devices are kept free.

    weight: how frequent it is, relative to the others of the list.
    resources: the resources of one replica.
    devices: its devices.
    """

    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    resources: Resources = Resources()
    devices: tuple[DeviceRequest, ...] = ()


class SchedulerPolicySpec(Part, frozen=True):
    """The revision. Filters, weights and demands never change once it exists; its stage does.

    filters: filters to apply besides the hard rules, by name.
    weights: the weight of each scorer.
    demands: the expected work with devices; if empty, it is learnt from past work.
    stage: how much of the work it applies to. Stages other than Inactive and Active have no
        effect yet.
    scope: the part of the work that a canary applies to. It has no effect yet.
    fallback: the policy to revert to. It has no effect yet.
    hold_seconds: how long each stage must be healthy before the next. It has no effect yet.
    """

    filters: tuple[str, ...] = ()
    weights: dict[str, ScoreWeight] = {}
    demands: tuple[ExpectedDemand, ...] = ()
    stage: PolicyStage = PolicyStage.INACTIVE
    scope: PolicyScope = PolicyScope()
    fallback: str = ""
    hold_seconds: Seconds = 600


class SchedulerPolicyStatus(Part, frozen=True):
    """What was observed.

    observed_generation: the generation that this refers to; it is not written yet.
    stage: the stage that is in force; it is not written yet.
    conditions: each type has one writer; Observed is not written yet.
    """

    observed_generation: Revision = 0
    stage: PolicyStage = PolicyStage.INACTIVE
    conditions: tuple[Condition, ...] = ()


class SchedulerPolicy(Object, frozen=True, kw_only=True, tag="SchedulerPolicy"):
    """One immutable revision of the placement policy.

    spec: the revision and its stage.
    status: what was observed.
    """

    spec: SchedulerPolicySpec = SchedulerPolicySpec()
    status: SchedulerPolicyStatus = SchedulerPolicyStatus()
