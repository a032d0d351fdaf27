"""Validates scheduler policies and commitments."""

from __future__ import annotations

from holdfast.model.kinds.commitment import Commitment
from holdfast.model.kinds.schedulerpolicy import (
    ExpectedDemand,
    FairnessRules,
    PolicyStage,
    SchedulerPolicy,
    WorkIntent,
)
from holdfast.model.quota.fairness import HALF_LIVES_PER_WINDOW
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.template import devices

FILTERS_MAX = 64
SCOPE_MAX = 1024
REGIONS_MAX = 64
# A scheduler distinguishes this many classes of work with devices.
DEMANDS_MAX = 96


def scheduler_policy(obj: SchedulerPolicy, at: FieldPath) -> None:
    """Checks the form of filters and scorers. Only the scheduler knows which ones exist."""
    spec, at = obj.spec, at["spec"]
    names.names(at["filters"], spec.filters, FILTERS_MAX)
    _weights(at["weights"], spec.weights)
    intents = [it.value for it in WorkIntent]
    for intent in spec.intents:
        if intent not in intents:
            rule = f"the key must be one of {', '.join(intents)}"
            at["intents"].entry(intent).wrong(intent, rule)
        else:
            _weights(at["intents"].entry(intent), spec.intents[intent])
    if names.at_most(at["demands"], spec.demands, DEMANDS_MAX):
        for index, demand in enumerate(spec.demands):
            _demand(at["demands"][index], demand)
    names.names(at["scope"]["tenants"], spec.scope.tenants, SCOPE_MAX)
    names.names(at["scope"]["regions"], spec.scope.regions, SCOPE_MAX)
    scope = spec.scope
    nothing = scope.percent == 0 and not scope.tenants and not scope.regions
    if spec.stage is PolicyStage.CANARY and nothing:
        at["scope"].wrong(None, "must cover something while the stage is Canary")
    if spec.stage is PolicyStage.REGION and not scope.regions:
        at["scope"]["regions"].wrong(None, "must be given while the stage is Region")
    names.optional_name(at["fallback"], spec.fallback)
    if spec.fallback and spec.fallback == obj.name:
        at["fallback"].wrong(spec.fallback, "must be another policy")
    _fairness(at["fairness"], spec.fairness)


def _fairness(at: FieldPath, of: FairnessRules) -> None:
    longest = of.window_seconds // HALF_LIVES_PER_WINDOW
    if of.half_life_seconds > longest:
        at["halfLifeSeconds"].wrong(
            of.half_life_seconds,
            f"must be at most {longest}, a quarter of windowSeconds: what is remembered for longer "
            "could not be settled inside the window",
        )
    if of.suspension is None:
        return
    place = at["suspension"]
    text.sentence(place["reason"], of.suspension.reason)
    if not of.suspension.reason.strip():
        place["reason"].wrong(of.suspension.reason, "must say why fairness is suspended")
    if of.suspension.until <= of.suspension.since:
        place["until"].wrong(of.suspension.until.isoformat(), "must be later than since")


def _weights(at: FieldPath, weights: dict[str, int]) -> None:
    if names.at_most(at, weights, FILTERS_MAX):
        for scorer in weights:
            if not names.is_name(scorer):
                at.entry(scorer).wrong(scorer, f"the key {names.NAME_RULE}")


def _demand(at: FieldPath, of: ExpectedDemand) -> None:
    for resource, amount in of.resources.amounts.items():
        amounts.read_demand(at["resources"][resource.value], resource, amount)
    if not of.devices:
        at["devices"].wrong(
            None, "must have at least one item: only work with devices is expected here"
        )
    devices(at["devices"], of.devices)


def commitment(obj: Commitment, at: FieldPath) -> None:
    given, promise, at = obj.spec.given, obj.spec.promise, at["spec"]
    losses = [loss for loss in (given.region_lost, given.zone_lost, given.node_lost) if loss]
    if len(losses) > 1:
        at["given"].wrong(None, f"must have at most one loss, has {len(losses)}")
    names.optional_name(at["given"]["regionLost"], given.region_lost)
    names.optional_name(at["given"]["zoneLost"], given.zone_lost)
    if given.node_lost:
        names.dotted_name(at["given"]["nodeLost"], given.node_lost)
    names.name(at["promise"]["workload"], promise.workload)
    names.names(at["promise"]["regions"], promise.regions, REGIONS_MAX)
    if promise.serving == 0:
        at["promise"]["serving"].wrong(0, "must be at least 1: 0 promises nothing")
    if losses and promise.within_seconds == 0:
        at["promise"]["withinSeconds"].wrong(0, "must be at least 1 after a loss")
    if promise.regions and set(promise.regions) <= {given.region_lost}:
        at["promise"]["regions"].wrong(
            promise.regions, "must name a region besides the one that is lost"
        )
    text.sentence(at["owner"], obj.spec.owner, limit=names.DOTTED_MAX)
