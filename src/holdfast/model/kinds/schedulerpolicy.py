"""SchedulerPolicy: one immutable revision of the placement policy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kind_declaration import (
    OPERATORS,
    Kind,
    KindRules,
    NoEffectRow,
    Unwritten,
    Writers,
    join_map,
    text,
)
from holdfast.model.kinds.template import DeviceRequest, Resources
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, Object, Part, Revision, Seconds, Timestamp

ScoreWeight = Annotated[int, Meta(ge=0, le=100)]


class WorkIntent(StrEnum):
    """What matters most to work: how fast it answers, how much gets done, or to be back soon."""

    LATENCY = "latency"
    BATCH = "batch"
    RECOVERY = "recovery"


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


class Suspension(Part, frozen=True):
    """A stated time in which fairness does not order work, such as a disaster.

    since: when it begins.
    until: when it ends. What tenants lost meanwhile is settled within the window after that.
    reason: why.
    """

    since: Timestamp
    until: Timestamp
    reason: str


class FairnessRules(Part, frozen=True):
    """How work of equal priority is ordered between tenants.

    half_life_seconds: after this time, half of what a tenant has used in the past is forgotten.
    window_seconds: how soon after a lapse a waiting tenant has its share again.
    suspension: a time in which tenants take turns instead, whatever they use.
    """

    half_life_seconds: Annotated[int, Meta(ge=1, le=2_592_000)] = 900
    window_seconds: Annotated[int, Meta(ge=4, le=10_368_000)] = 3_600
    suspension: Suspension | None = None


class SchedulerPolicySpec(Part, frozen=True):
    """The revision. Only its stage and scope change once it exists.

    filters: filters to apply besides the hard rules, by name.
    weights: the weight of each scorer.
    intents: other weights for work of an intent, by scorer: latency is work that is always
        restarted, batch is work that ends, recovery is a replica that replaces another one. A
        scorer that is not named keeps its weight.
    demands: the expected work with devices; if empty, it is learnt from past work.
    stage: how much of the work it applies to. Stages other than Inactive and Active have no
        effect yet.
    scope: the part of the work that a canary applies to. It has no effect yet.
    fallback: the policy to revert to. It has no effect yet.
    hold_seconds: how long each stage must be healthy before the next. It has no effect yet.
    fairness: how work of equal priority is ordered between tenants.
    """

    filters: tuple[str, ...] = ()
    weights: dict[str, ScoreWeight] = {}
    intents: dict[str, dict[str, ScoreWeight]] = {}
    demands: tuple[ExpectedDemand, ...] = ()
    stage: PolicyStage = PolicyStage.INACTIVE
    scope: PolicyScope = PolicyScope()
    fallback: str = ""
    hold_seconds: Seconds = 600
    fairness: FairnessRules = FairnessRules()


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


_STAGES = (PolicyStage.INACTIVE, PolicyStage.ACTIVE)


def _scheduler_policy_rules() -> KindRules:
    from holdfast.model.validation import policy

    return KindRules(policy.scheduler_policy)


SCHEDULER_POLICY_KIND = Kind(
    SchedulerPolicy,
    "schedulerpolicies",
    rules=_scheduler_policy_rules,
    writers=Writers(
        spec=OPERATORS,
        status={"observed_generation": Actor.POLICY, "stage": Actor.POLICY},
        conditions={"Observed": Actor.POLICY},
    ),
    columns=(
        text("Stage", lambda o: o.spec.stage.value, "how much of the work it decides for"),
        text("Fallback", lambda o: o.spec.fallback or "-", "what to go back to"),
        text(
            "Weights", lambda o: join_map(o.spec.weights), "how much each scorer counts", wide=True
        ),
    ),
    namespaced=False,
    short_names=("sp",),
    immutable=(
        *("spec.filters", "spec.weights", "spec.intents"),
        *("spec.demands", "spec.fallback"),
    ),
    no_effect=(
        NoEffectRow(
            "spec.stage",
            lambda it: it.spec.stage not in _STAGES,
            "schedulers use a policy only while its stage is Active",
        ),
        NoEffectRow(
            "spec.scope",
            lambda it: it.spec.scope != PolicyScope(),
            "an Active policy decides for all work",
        ),
        NoEffectRow(
            "spec.fallback",
            lambda it: bool(it.spec.fallback),
            "set the stage of another policy to Active to go back to it",
        ),
        NoEffectRow(
            "spec.holdSeconds",
            lambda it: it.spec.hold_seconds != SchedulerPolicySpec().hold_seconds,
            "no stage follows another by itself",
        ),
    ),
    unwritten=Unwritten(("observed_generation", "stage"), ("Observed",)),
)
