"""SchedulerPolicy: one immutable revision of how places are chosen."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.template import DeviceRequest, Resources
from holdfast.model.meta import Condition, Object, Part, Revision, Seconds

ScoreWeight = Annotated[int, Meta(ge=0, le=100)]


class PolicyStage(StrEnum):
    """How much of the work a policy decides for. Schedulers know Inactive and Active so far."""

    INACTIVE = "Inactive"
    SHADOW = "Shadow"
    CANARY = "Canary"
    CELL = "Cell"
    REGION = "Region"
    ACTIVE = "Active"


class PolicyScope(Part, frozen=True):
    """For what part of the work a canary decides.

    tenants: only these tenants.
    regions: only these regions.
    percent: of the rest, so many per cent by a stable hash of the workload.
    """

    tenants: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    percent: Annotated[int, Meta(ge=0, le=100)] = 5


class ExpectedDemand(Part, frozen=True):
    """Work with devices that is expected, so that what it will need is spared for it.

    weight: how often it comes, compared with the others of the list.
    resources: what one replica of it asks for.
    devices: its devices.
    """

    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    resources: Resources = Resources()
    devices: tuple[DeviceRequest, ...] = ()


class SchedulerPolicySpec(Part, frozen=True):
    """The revision. Filters, weights and demands never change once it exists; its stage does.

    filters: filters to apply besides the hard rules, by name.
    weights: how much each scorer counts.
    demands: what work with devices is expected; where empty, it is learnt from what came so far.
    stage: how much of the work it decides for. Stages other than Inactive and Active have no
        effect yet.
    scope: for which part, while it is a canary. It has no effect yet.
    fallback: the policy to go back to. It has no effect yet.
    hold_seconds: how long each stage must look well before the next. It has no effect yet.
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

    observed_generation: the generation this speaks of; it is not written yet.
    stage: the stage that is in force; it is not written yet.
    conditions: each type has one writer; Observed is not written yet.
    """

    observed_generation: Revision = 0
    stage: PolicyStage = PolicyStage.INACTIVE
    conditions: tuple[Condition, ...] = ()


class SchedulerPolicy(Object, frozen=True, kw_only=True, tag="SchedulerPolicy"):
    """One immutable revision of how places are chosen.

    spec: the revision and its stage.
    status: what was observed.
    """

    spec: SchedulerPolicySpec = SchedulerPolicySpec()
    status: SchedulerPolicyStatus = SchedulerPolicyStatus()
