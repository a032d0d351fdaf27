"""Validates overrides: an operator's decision with a limited scope and time."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.kinds.override import Override, OverrideScope, OverrideType, Postcondition
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.validation import amounts, names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import after_creation

SCOPE_MAX = 256
POSTCONDITIONS_MAX = 16

# The types that a tenant may use for its own work. The others affect other tenants, or replace
# proof.
_FOR_TENANTS = (OverrideType.PAUSE, OverrideType.AVOID, OverrideType.FAILOVER)

_Scoped = Callable[[OverrideScope], bool]
# What the scope of each type must name.
_NEEDS: dict[OverrideType, tuple[str, _Scoped]] = {
    OverrideType.AVOID: (
        "regions, zones or nodes",
        lambda s: bool(s.regions or s.zones or s.nodes),
    ),
    OverrideType.DRAIN: (
        "regions, zones or nodes",
        lambda s: bool(s.regions or s.zones or s.nodes),
    ),
    OverrideType.FAILOVER: ("regions", lambda s: bool(s.regions)),
    OverrideType.PRIORITY: ("tenants or workloads", lambda s: bool(s.tenants or s.workloads)),
    OverrideType.QUOTA: ("tenants", lambda s: bool(s.tenants)),
    OverrideType.REPAIR_APPROVAL: (
        "zones, nodes or workloads",
        lambda s: bool(s.zones or s.nodes or s.workloads),
    ),
}


def override(obj: Override, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    _scope(at["scope"], spec.scope, spec.type)
    _reach(at, obj)
    text.sentence(at["reason"], spec.reason, needed=True)
    text.sentence(at["requester"], spec.requester, limit=names.DOTTED_MAX)
    text.sentence(at["runbook"], spec.runbook)
    after_creation(at["expires"], spec.expires, obj)
    _parameters(at, obj)
    if names.at_most(at["postconditions"], spec.postconditions, POSTCONDITIONS_MAX):
        for index, item in enumerate(spec.postconditions):
            _postcondition(at["postconditions"][index], item)


def _scope(at: FieldPath, scope: OverrideScope, of: OverrideType) -> None:
    named = False
    for field, items, dotted in (
        ("tenants", scope.tenants, False),
        ("workloads", scope.workloads, False),
        ("regions", scope.regions, False),
        ("zones", scope.zones, False),
        ("nodes", scope.nodes, True),
        ("controllers", scope.controllers, False),
    ):
        names.names(at[field], items, SCOPE_MAX, dotted=dotted)
        named = named or bool(items)
    if not named:
        at.wrong(None, "must name at least one target")
    elif of in _NEEDS and not _NEEDS[of][1](scope):
        at.wrong(None, f"must name {_NEEDS[of][0]} for {of.value}")


def _reach(at: FieldPath, obj: Override) -> None:
    """An override in a tenant's namespace applies to that tenant's work only."""
    if obj.namespace == SYSTEM_NAMESPACE:
        return
    if obj.spec.type not in _FOR_TENANTS:
        at["type"].wrong(
            obj.spec.type.value,
            f"must be Pause, Avoid or Failover outside namespace {SYSTEM_NAMESPACE}",
        )
    for index, tenant in enumerate(obj.spec.scope.tenants):
        if tenant != obj.namespace:
            at["scope"]["tenants"][index].wrong(tenant, "must be the override's own namespace")


def _parameters(at: FieldPath, obj: Override) -> None:
    spec = obj.spec
    amounts.table(at["amounts"], spec.amounts)
    names.optional_name(at["priorityClass"], spec.priority_class)
    for field, given, of in (
        ("priorityClass", spec.priority_class, OverrideType.PRIORITY),
        ("amounts", spec.amounts, OverrideType.QUOTA),
    ):
        if spec.type is of and not given:
            at[field].wrong(None, f"must be given for {of.value}")
        elif spec.type is not of and given:
            at[field].wrong(given, f"must be left out unless the type is {of.value}")


def _postcondition(at: FieldPath, item: Postcondition) -> None:
    if bool(item.commitment) == bool(item.condition):
        at.wrong(None, "must have exactly one of commitment and condition")
    names.optional_name(at["commitment"], item.commitment)
    if item.condition:
        text.word(at["condition"], item.condition)
