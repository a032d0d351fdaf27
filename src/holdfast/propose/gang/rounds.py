"""Gangs in the scheduler: one decision for all members of a round, and the plan that binds them.

The scheduler asks `decide` at the turn of a member, and starts the plan of `plan_of`. A gang of up
to `together_max` members is bound by one transaction and holds nothing before. A larger one
reserves under one reservation; two of those may each have a part of what the other needs. Neither
waits for the other: places are asked for in one order, that of the names of their nodes, so that
the second of two gangs is mostly refused at the first node that both want; a gang that is refused
anywhere gives everything back at once and pauses, for a time of its own. What it holds has a
deadline besides, that of the reservation, which controller:repair enforces.

A scheduler that restarts finds its reservations by their owner and intent: `without_plan` binds
what was committed and gives back what was only held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.model.errors import unreachable
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.kinds.workload import Workload
from holdfast.model.placement.gang import gang_record_name, is_of_gang
from holdfast.model.quota.charging import is_active
from holdfast.model.requests import Term
from holdfast.model.time import Instant, timestamp
from holdfast.observe.cache import ObjectChange
from holdfast.observe.operation_plan import PlanStep
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import BindGang, PlacementReport, Preempt, StayPending
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.decide import MANY_GANGS, being_bound
from holdfast.propose.gang.steps import GangSteps
from holdfast.propose.plans import (
    PlacementPlan,
    PlannedPlace,
    PlanRunner,
    gang_plan_name,
)

# How often records without a plan are taken up: after a restart, or after a plan that failed.
RESUME_MS = 2_000
# A record that another scheduler has committed is left to it for this long.
OTHERS_MS = 30_000
# By when a plan that ends a reservation has begun: after that its deadline ends it.
END_MS = 60_000

_Name = tuple[str, str, str]


class GangRounds:
    """See the module's docstring."""

    def __init__(self, identity: str, together_max: int) -> None:
        self._identity, self._together_max = identity, together_max
        # What was decided in this round, by the uid of the workload: members take turns.
        self._reports: dict[str, StayPending] = {}
        # The active records of gangs, by uid, and when those without a plan are taken up.
        self._records: dict[str, tuple[str, str]] = {}
        self._resume_ms = 0
        # When a committed record of another scheduler was first seen without a plan here.
        self._strange: dict[str, int] = {}

    def begin_round(self) -> None:
        """Decide again about each gang."""
        self._reports.clear()

    def decide(
        self,
        view: FleetSnapshot,
        replica: Replica,
        now: Instant,
        salt: int,
        verdict_cache: VerdictCache,
        plans: PlanRunner,
    ) -> BindGang | Preempt | StayPending:
        """The decision for the gang of this member, once in a round."""
        if plans.is_running(gang_plan_name(replica.namespace, replica.spec.gang)):
            return StayPending(being_bound(replica.spec.gang), is_underway=True)
        uid = replica.spec.workload_uid
        known = self._reports.get(uid)
        if known is not None:
            return known
        (decided,) = propose(view, [replica], now, salt, verdict_cache)
        if isinstance(decided, BindGang | Preempt):
            if plans.room or (isinstance(decided, BindGang) and not decided.needed):
                return decided
            decided = StayPending(MANY_GANGS)
        if not isinstance(decided, StayPending):
            unreachable(f"a member of a gang was placed alone: {decided}")
        if not decided.is_underway:
            self._reports[uid] = decided
        return decided

    # Plans ---------------------------------------------------------------------------------------

    def plan_of(self, decided: BindGang, term: Term, now: Instant) -> PlacementPlan:
        """The plan that binds a gang for which there are places."""
        workload, gang = decided.workload, decided.workload.spec.gang
        for_ms = (gang.timeout_seconds if gang is not None else 0) * 1_000
        steps = GangSteps(self._identity, workload, term)
        places = decided.places
        undo: tuple[PlanStep, ...] = ()
        if decided.needed <= self._together_max or decided.is_promised:
            # The rest joins the gang once it runs.
            places = places[: max(decided.needed, self._together_max)]
            made = steps.together(places)
        else:
            deadline = timestamp(now.wall_ms + for_ms)
            made = steps.by_reservation(places, decided.needed, deadline)
            undo = steps.give_back("GangIncomplete")
        return PlacementPlan(
            name=gang_plan_name(workload.namespace, workload.name),
            replicas=tuple(replica for replica, _ in places),
            places=tuple(PlannedPlace(it, place.node, place.held) for it, place in places),
            steps=made,
            waits=_waits(workload.name),
            deadline_ms=now.monotonic_ms + for_ms,
            objects=(_record_key(workload),),
            undo=undo,
        )

    def note(self, change: ObjectChange, *, is_ours: bool) -> None:
        """Note a change of a reservation: an active record without a plan is taken up soon."""
        record = change.object
        if not isinstance(record, Reservation) or record.spec.intent is not Intent.GANG:
            return
        uid = record.metadata.uid
        if is_ours and change.after is not None and is_active(record):
            self._records[uid] = record.namespace, record.name
        else:
            self._records.pop(uid, None)
            self._strange.pop(uid, None)

    @property
    def next_ms(self) -> int | None:
        """When records without a plan are taken up."""
        return self._resume_ms if self._records else None

    def without_plan(
        self, view: FleetSnapshot, term: Term, plans: PlanRunner, now: Instant
    ) -> Iterator[PlacementPlan]:
        """Plans for records that have none: to bind what was committed, or to give it back."""
        if not self._records or now.monotonic_ms < self._resume_ms:
            return
        self._resume_ms = now.monotonic_ms + RESUME_MS
        for key in list(self._records.values()):
            record: Reservation | None = view.get("reservations", *key)
            if record is None or not plans.room:
                continue
            owner = record.spec.owner
            workload: Workload | None = view.get("workloads", record.namespace, owner.name)
            if workload is None or not is_of_gang(record, workload.metadata.uid):
                continue
            is_busy = plans.is_running(gang_plan_name(workload.namespace, workload.name))
            if not is_busy and self._is_mine(record, now):
                yield self._ending(record, workload, term, now)

    def _is_mine(self, record: Reservation, now: Instant) -> bool:
        """Whether to act on a record: one's own, or one that its scheduler has left committed."""
        if record.status.by == self._identity:
            return True
        if record.status.phase is not ReservationPhase.COMMITTED:
            return False
        since = self._strange.setdefault(record.metadata.uid, now.monotonic_ms)
        return now.monotonic_ms - since >= OTHERS_MS

    def _ending(
        self, record: Reservation, workload: Workload, term: Term, now: Instant
    ) -> PlacementPlan:
        steps = GangSteps(self._identity, workload, term)
        is_committed = record.status.phase is ReservationPhase.COMMITTED
        return PlacementPlan(
            name=gang_plan_name(workload.namespace, workload.name),
            replicas=(),
            places=(),
            steps=steps.bind_claims() if is_committed else steps.give_back("Restarted"),
            waits=_waits(workload.name),
            deadline_ms=now.monotonic_ms + END_MS,
            objects=(_record_key(workload),),
        )


def _record_key(workload: Workload) -> _Name:
    return "reservations", workload.namespace, gang_record_name(workload.name)


def _waits(workload: str) -> Callable[[FleetSnapshot, Instant], PlacementReport]:
    """What the members say while their gang is being bound."""
    report = being_bound(workload)
    return lambda _view, _now: report
