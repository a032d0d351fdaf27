"""Which ordinal of a workload takes which revision of its template.

controller:rollout writes the targets into the workload's status, controller:workload creates
replicas by them, and the commit enforces them: creating a replica and evicting one for a rollout
compare the workload, so a controller with a stale snapshot creates no replica of the wrong revision
and stops none of the right one.

A workload that controller:rollout has not processed yet has no targets: new replicas take its
template.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import (
    Rollout,
    RolloutPhase,
    RolloutStrategy,
    Workload,
    WorkloadType,
)
from holdfast.model.placement.disruption import portion
from holdfast.model.workload.indexes import parse

# In these phases no ordinal takes the current revision.
REVERTED = (RolloutPhase.REVERTING, RolloutPhase.FAILED)


def revision_name(workload: str, revision: str) -> str:
    """The name of the WorkloadRevision of a template."""
    return f"{workload}-{revision}"


def rollout_of(workload: Workload) -> Rollout:
    """How a new template replaces the old one. The members of a gang change together: a gang of two
    templates would not start, and one that is replaced member by member would start again each
    time.
    """
    stated = workload.spec.rollout
    if workload.spec.gang is None:
        return stated
    return msgspec.structs.replace(stated, strategy=RolloutStrategy.RECREATE)


def wanted_places(workload: Workload) -> int:
    """How many ordinals a service has now: the stated replicas and the surge."""
    return workload.spec.replicas + workload.status.rollout.surge


def goal(workload: Workload) -> str:
    """The revision that all ordinals should reach; empty without targets."""
    rollout = workload.status.rollout
    return rollout.stable if rollout.phase in REVERTED else rollout.current


def target_of(workload: Workload, place: int) -> str:
    """The revision that an ordinal takes now; empty without targets."""
    rollout = workload.status.rollout
    if not rollout.stable or rollout.stable == rollout.current or rollout.phase in REVERTED:
        return goal(workload)
    is_surge = workload.spec.type is WorkloadType.SERVICE and place >= workload.spec.replicas
    if is_surge or place in parse(rollout.updated):
        return rollout.current
    return rollout.stable


def is_misplaced(workload: Workload, replica: Replica) -> bool:
    """Whether its ordinal takes another revision."""
    target = target_of(workload, replica.spec.ordinal)
    return bool(target) and replica.spec.revision != target


def limits(rollout: Rollout, places: int) -> tuple[int, int]:
    """How many of the ordinals may be missing during a rollout, and how many may be extra.

    Both round to the safe side. If that leaves nothing that could move, one may be missing.
    """
    missing = min(places, portion(rollout.max_unavailable, places, round_up=False))
    surge = portion(rollout.max_surge, places, round_up=True)
    return (1, 0) if not missing and not surge else (missing, surge)
