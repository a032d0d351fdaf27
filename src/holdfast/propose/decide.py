"""The decision about work: where it goes, what has to stop first, or why it waits.

`propose` is the one function that decides, about single replicas and about gangs. The scheduler
calls it on what it sees, `explain/replay.py` on what a scheduler saw, explanations on what is
stored, and each question "what if" on a hypothesis (`FleetSnapshot.with_objects`, `without`).
Nothing is changed here. Whatever is proposed, the commit decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.placement.gang import is_formed, members_needed
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.propose.feasibility.outcome import (
    BindGang,
    BindReplica,
    Decision,
    PlacementReport,
    Preempt,
    StayPending,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.decide import decide_gang
from holdfast.propose.gang.gang_records import record_in
from holdfast.propose.proposals import decide_batch


def propose(
    view: FleetSnapshot,
    work: Sequence[Replica],
    now: Instant,
    salt: int,
    verdict_cache: VerdictCache,
) -> list[Decision]:
    """The decisions about waiting replicas of one equivalence class, in their order.

    There may be fewer than replicas, but at least one: what these take matters to the rest. Members
    of a gang have one decision for the whole gang. `salt` decides between nodes that are equal.
    """
    view.fleet.forgive(now.monotonic_ms)
    if work[0].spec.gang:
        return [decide_gang(view, work[0], now, salt, verdict_cache)]
    return [*decide_batch(view, work, now, salt, verdict_cache)]


# What if -----------------------------------------------------------------------------------------


class Feasibility(msgspec.Struct, frozen=True):
    """Whether work could be placed, and what that takes.

    members: how many of its replicas would get a place at once: of a single one 0 or 1.
    needed: how many it needs at once: of a gang that does not run its minAvailable.
    """

    decision: Decision
    members: int
    needed: int

    @property
    def is_feasible(self) -> bool:
        """Whether it would be placed, other work being stopped where that is needed and legal."""
        return self.members >= self.needed

    @property
    def needs_preemption(self) -> bool:
        """Whether other work would have to stop first."""
        return isinstance(self.decision, Preempt)

    @property
    def victims(self) -> tuple[Key, ...]:
        """What would have to stop first; empty for a promise whose victims stop already."""
        return self.decision.keys if isinstance(self.decision, Preempt) else ()

    @property
    def report(self) -> PlacementReport | None:
        """Why no place is free as it is; None if one is."""
        match self.decision:
            case StayPending() | Preempt():
                return self.decision.report
        return None


def could_place(
    view: FleetSnapshot, replica: Replica, now: Instant, verdict_cache: VerdictCache
) -> Feasibility:
    """Whether `propose` would place this work: a replica, or the gang that it is a member of."""
    (decision,) = propose(view, [replica], now, 0, verdict_cache)
    match decision:
        case BindReplica():
            return Feasibility(decision, 1, 1)
        case Preempt(members=places, is_over=is_over):
            # For a gang, room is made for all that it needs.
            needed = max(1, len(places))
            return Feasibility(decision, 0 if is_over else needed, needed)
        case BindGang(places=places, needed=needed):
            return Feasibility(decision, len(places), max(1, needed))
        case StayPending():
            members, needed = _of_gang(view, replica, now, verdict_cache)
            return Feasibility(decision, members, needed)


def _of_gang(
    view: FleetSnapshot, replica: Replica, now: Instant, verdict_cache: VerdictCache
) -> tuple[int, int]:
    """For how many members of a gang that waits there are places, and how many it needs."""
    workload: Workload | None = view.get("workloads", replica.namespace, replica.spec.workload)
    gang = workload.spec.gang if workload is not None and replica.spec.gang else None
    if workload is None or gang is None:
        return 0, 1
    record = record_in(view, replica)
    if record is not None and is_formed(record, workload.metadata.uid):
        return 0, 1
    spec = msgspec.structs.replace(
        workload.spec, gang=msgspec.structs.replace(gang, min_available=1)
    )
    fewer = view.with_objects(msgspec.structs.replace(workload, spec=spec))
    (decision,) = propose(fewer, [replica], now, 0, verdict_cache.like_this())
    match decision:
        case BindGang(places=places):
            return len(places), members_needed(workload)
        case Preempt(members=promised):
            return len(promised), members_needed(workload)
    return 0, members_needed(workload)
