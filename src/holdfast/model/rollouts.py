"""Which place of a workload takes which revision of its template.

controller:rollout writes the targets into the status of the workload, controller:workload makes
replicas by them, and the commit holds both to them: a birth and a rollout's eviction compare the
workload, so that a controller that is behind makes nothing of the wrong revision and stops nothing
that is of the right one.

A workload that controller:rollout has not looked at yet has no targets: its template is what is
made.
"""

from __future__ import annotations

from holdfast.model.indexes import parse
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Rollout, RolloutPhase, Workload, WorkloadType
from holdfast.model.placement.disruption import portion

# In these the current revision is not wanted anywhere.
REVERTED = (RolloutPhase.REVERTING, RolloutPhase.FAILED)


def revision_name(workload: str, revision: str) -> str:
    """What the WorkloadRevision of a template is called."""
    return f"{workload}-{revision}"


def wanted_places(workload: Workload) -> int:
    """How many places a service has at the moment: those that are stated, and the surge."""
    return workload.spec.replicas + workload.status.rollout.surge


def goal(workload: Workload) -> str:
    """The revision that all places should have in the end; empty without targets."""
    rollout = workload.status.rollout
    return rollout.stable if rollout.phase in REVERTED else rollout.current


def target_of(workload: Workload, place: int) -> str:
    """The revision that a place takes now; empty without targets."""
    rollout = workload.status.rollout
    if not rollout.stable or rollout.stable == rollout.current or rollout.phase in REVERTED:
        return goal(workload)
    is_surge = workload.spec.type is WorkloadType.SERVICE and place >= workload.spec.replicas
    if is_surge or place in parse(rollout.updated):
        return rollout.current
    return rollout.stable


def is_misplaced(workload: Workload, replica: Replica) -> bool:
    """Whether its place takes another revision."""
    target = target_of(workload, replica.spec.ordinal)
    return bool(target) and replica.spec.revision != target


def limits(rollout: Rollout, places: int) -> tuple[int, int]:
    """How many of so many places may be missing, and how many may be too many, meanwhile.

    Both round to the safe side, which may leave nothing that could move; then one may be missing.
    """
    missing = min(places, portion(rollout.max_unavailable, places, round_up=False))
    surge = portion(rollout.max_surge, places, round_up=True)
    return (1, 0) if not missing and not surge else (missing, surge)
