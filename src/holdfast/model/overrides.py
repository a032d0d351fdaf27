"""Which override is in force, and for what.

An override ends by its expiry alone: no job has to end it. The controllers ask here by their own
calendar to decide what to propose; the commit asks again by the authority's, which counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.kinds.override import Override, OverrideType
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.time import wall_ms


def is_in_force(override: Override, now_ms: int) -> bool:
    """Whether an override is in force at this moment of a calendar."""
    return override.metadata.deletion_timestamp is None and now_ms < wall_ms(override.spec.expires)


def approves_zone(override: Override, region: str, zone: str) -> bool:
    """Whether a person approves that the silent nodes of this zone are given up.

    All that the scope names has to match, so one that also names work or nodes approves no zone.
    """
    spec, scope = override.spec, override.spec.scope
    return (
        spec.type is OverrideType.REPAIR_APPROVAL
        and override.namespace == SYSTEM_NAMESPACE
        and zone in scope.zones
        and (not scope.regions or region in scope.regions)
        and (not scope.controllers or "nodes" in scope.controllers)
        and not (scope.tenants or scope.workloads or scope.nodes)
    )


def zone_approval(overrides: Iterable[Override], region: str, zone: str, now_ms: int) -> str:
    """The name of an override in force that approves it; empty if there is none."""
    names = (
        it.name for it in overrides if approves_zone(it, region, zone) and is_in_force(it, now_ms)
    )
    return min(names, default="")
