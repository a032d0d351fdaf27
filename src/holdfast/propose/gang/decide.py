"""The decision about a gang: where its members start together, or why they wait.

`propose/decide.py` asks this about any member; the answer is for all of them. Nothing is changed
here, and the commit decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Gang, Workload
from holdfast.model.lifecycle import CHARGED, State
from holdfast.model.placement.gang import is_formed, members_needed
from holdfast.model.quota.allowance import never_fits
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import limits_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant
from holdfast.observe.node_columns import Ints
from holdfast.propose.feasibility.outcome import (
    GANG_BINDING,
    GANG_WAITS,
    BindGang,
    PlacementReport,
    Preempt,
    StayPending,
    Verdict,
    WakeEvent,
)
from holdfast.propose.feasibility.smallest_change import over_quota, quota_change
from holdfast.propose.feasibility.unschedulable import explain_unschedulable
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.gang.domains import (
    domain_of,
    domains,
    empty_room_by_row,
    numbers_of,
    returned_room_by_row,
    room_by_row,
)
from holdfast.propose.gang.gang_records import members_of, record_in
from holdfast.propose.gang.member_places import GangSearch, gang_places, places
from holdfast.propose.gang.steps import TOGETHER_MAX
from holdfast.propose.gang.victims import gang_preemption
from holdfast.propose.preemption.promises import (
    OpenPromise,
    bind_of_promise,
    fits_now,
    is_kept,
    promised_preemption,
    promises_of,
)
from holdfast.propose.preemption.victim_search import may_preempt, times
from holdfast.propose.proposals import (
    awaits_lenders,
    behind_a_job,
    class_of,
    has_place,
    quota_room,
    was_in_vain,
    without_quota,
)


def decide_gang(
    view: FleetSnapshot, replica: Replica, now: Instant, salt: int, verdict_cache: VerdictCache
) -> BindGang | Preempt | StayPending:
    """The decision for the gang of this waiting replica."""
    workload: Workload | None = view.get("workloads", replica.namespace, replica.spec.workload)
    if workload is None or workload.metadata.uid != replica.spec.workload_uid:
        return _waits(f"workload {replica.spec.workload} is not known here yet")
    if workload.metadata.deletion_timestamp is not None:
        return _waits(f"workload {workload.name} is being deleted")
    gang, needed = workload.spec.gang, members_needed(workload)
    if gang is None:
        return _waits(f"workload {workload.name} has no spec.gang any more; create it again")
    members = members_of(view, replica)
    waiting = [it for it in members if _is_waiting(view, it)]
    record = record_in(view, replica)
    promises = promises_of(view, waiting)
    if promises:
        return _promised(view, workload, record, promises, needed, now, verdict_cache)
    if record is not None and is_formed(record, workload.metadata.uid):
        return _grow(view, workload, gang, record, waiting, salt, verdict_cache)
    if record is not None and is_active(record):
        return StayPending(being_bound(workload.name), is_underway=True)
    left = [it for it in members if it.status.state in CHARGED - {State.SUCCEEDED}]
    if left:
        return _waits(f"gang {workload.name} waits for {len(left)} members of its last run to stop")
    if len(waiting) < needed:
        lacking = needed - len(waiting)
        return _waits(f"gang {workload.name} waits for {lacking} of {needed} members to be created")
    return _start(view, workload, gang, waiting, needed, now, salt, verdict_cache)


def _promised(
    view: FleetSnapshot,
    workload: Workload,
    record: Reservation | None,
    promises: Sequence[OpenPromise],
    needed: int,
    now: Instant,
    verdict_cache: VerdictCache,
) -> BindGang | Preempt | StayPending:
    """What to do about places that are promised to members: bind all of them together, wait for
    the victims, or give them back if they are no use any more.
    """
    equivalence = class_of(view, promises[0].replica, verdict_cache)
    if isinstance(equivalence, PlacementReport):
        return StayPending(equivalence)
    starts = record is None or not (is_active(record) or is_formed(record, workload.metadata.uid))
    if (
        not starts
        or len(promises) < needed
        or not all(is_kept(view, it, equivalence, now) for it in promises)
    ):
        return promised_preemption(view, promises, is_over=True)
    if not fits_now(view, promises):
        return promised_preemption(view, promises, is_over=False)
    places = tuple((it.replica, bind_of_promise(view, it)) for it in promises)
    return BindGang(workload, places, needed)


def _is_waiting(view: FleetSnapshot, replica: Replica) -> bool:
    is_pending = replica.status.state is State.PENDING
    is_assumed = view.fleet.assumed(replica.metadata.uid) is not None
    return is_pending and replica.metadata.deletion_timestamp is None and not is_assumed


def _alike(waiting: Sequence[Replica], verdict_cache: VerdictCache) -> list[Replica]:
    """The members that fit wherever the first does.

    The incarnation is left out of the comparison: the successor of a lost member is weighed by
    another intent, and needs the same.
    """
    keys = [verdict_cache.key(_as_first(it)) for it in waiting]
    return [it for it, key in zip(waiting, keys, strict=True) if key == keys[0]]


def _as_first(replica: Replica) -> Replica:
    """The replica as if it were the first of its ordinal."""
    if not replica.spec.incarnation:
        return replica
    spec = msgspec.structs.replace(replica.spec, incarnation=0)
    return msgspec.structs.replace(replica, spec=spec)


def being_bound(workload: str) -> PlacementReport:
    """What the members of a gang report while a plan binds them."""
    return PlacementReport(
        {GANG_BINDING: 1}, f"gang {workload} is being bound", Verdict.WAITING, ()
    )


def _waits(message: str) -> StayPending:
    return StayPending(_waiting_report(message))


def _waiting_report(message: str) -> PlacementReport:
    events = (WakeEvent.TOPOLOGY,)
    return PlacementReport({GANG_WAITS: 1}, message, Verdict.WAITING, events)


def _start(
    view: FleetSnapshot,
    workload: Workload,
    gang: Gang,
    waiting: Sequence[Replica],
    needed: int,
    now: Instant,
    salt: int,
    verdict_cache: VerdictCache,
) -> BindGang | Preempt | StayPending:
    equivalence = class_of(view, waiting[0], verdict_cache)
    if isinstance(equivalence, PlacementReport):
        return StayPending(equivalence)
    alike = _alike(waiting, verdict_cache)
    if len(alike) < needed:
        return _waits(
            f"gang {workload.name} waits for members of one template: {len(alike)} of {needed} "
            "have the same"
        )
    allowed, _ = quota_room(view, equivalence.work, len(alike))
    search = GangSearch(view, equivalence, verdict_cache, salt)
    if allowed < needed:
        report = _over_quota(view, equivalence.work, needed, allowed)
        room = returned_room_by_row if not was_in_vain(waiting[0]) else room_by_row
        if awaits_lenders(report) and _most(view, gang, room(view, equivalence), needed) < needed:
            # Nothing is taken back for a gang that could not form even then.
            report = without_quota(_no_room(search, workload.name, gang, needed), report)
        return StayPending(report)
    found = gang_places(search, alike[:allowed], gang, needed)
    if found:
        return BindGang(workload, tuple(zip(alike, found, strict=False)), needed)
    if view.closed and gang_places(_open(search), alike[:allowed], gang, needed):
        return StayPending(behind_a_job(view))
    report = _no_room(search, workload.name, gang, needed)
    if report.in_question or not may_preempt(view, equivalence):
        return StayPending(report)
    if needed > TOGETHER_MAX:
        says = f"{report.message}; a gang of more than {TOGETHER_MAX} stops no other work"
        return StayPending(msgspec.structs.replace(report, message=says))
    return gang_preemption(search, alike[:needed], gang, report, now) or StayPending(report)


def _grow(
    view: FleetSnapshot,
    workload: Workload,
    gang: Gang,
    record: Reservation,
    waiting: Sequence[Replica],
    salt: int,
    verdict_cache: VerdictCache,
) -> BindGang | StayPending:
    """Places for the rest of a gang that runs, in the domain of the others if that is required."""
    if not waiting:
        return _waits("its bind is on the way")
    equivalence = class_of(view, waiting[0], verdict_cache)
    if isinstance(equivalence, PlacementReport):
        return StayPending(equivalence)
    alike = _alike(waiting, verdict_cache)
    allowed, over = quota_room(view, equivalence.work, len(alike))
    if over is not None:
        return StayPending(over)
    search = GangSearch(view, equivalence, verdict_cache, salt)
    nodes = [it.node for it in record.status.claims if it.node]
    among = domain_of(view, gang.within, nodes[0]) if gang.within and nodes else None
    found = places(search, alike[:allowed], among)
    if not found and among is not None and not gang.within_required:
        among, found = None, places(search, alike[:allowed])
    placed = tuple(zip(alike, found, strict=False))
    if len(placed) == len(waiting):
        return BindGang(workload, placed)
    if not placed and view.closed and places(_open(search), alike[:1], among):
        return StayPending(behind_a_job(view))
    where = f" on nodes with the {gang.within} of its members" if among is not None else ""
    base = explain_unschedulable(view, equivalence, has_place)
    report = msgspec.structs.replace(
        base,
        reasons=base.reasons or {GANG_WAITS: 1},
        message=f"gang {record.spec.owner.name} runs without it: no room for more{where}; "
        f"{base.message}",
    )
    return BindGang(workload, placed, rest=report) if placed else StayPending(report)


def _open(search: GangSearch) -> GangSearch:
    """The same search if no node were left to a job with a reserved start."""
    view = msgspec.structs.replace(search.view, closed=())
    return msgspec.structs.replace(search, view=view)


MANY_GANGS = PlacementReport(
    {GANG_WAITS: 1}, "many gangs are being bound", Verdict.WAITING, (), try_soon=True
)


# Why a gang waits --------------------------------------------------------------------------------


def _over_quota(
    view: FleetSnapshot, work: PendingWork, needed: int, allowed: int
) -> PlacementReport:
    """The report for a gang beyond the quota: as a whole, so that no half of it is placed."""
    of, amounts = view.capacity_class(work.priority_class), work.demand.amounts
    says = f"gang {work.replica.spec.gang} needs {needed} members at once"
    quota = view.quota(work.namespace)
    never: Refusal | None = None
    if quota is not None:
        limits = limits_of(quota)

        def refusal(count: int) -> Refusal | None:
            return never_fits(limits, of, times(amounts, count), work.budget)

        never = refusal(needed)
    if never is not None:
        most = max((it for it in range(needed) if refusal(it) is None), default=0)
        change = quota_change(never, work.namespace)
        return PlacementReport(
            {never.reason.value: 1},
            f"{says}, and the quota of tenant {work.namespace} allows {most}: {never.message}",
            Verdict.NEVER,
            (WakeEvent.ALLOWANCE,),
            smallest_change=f"spec.gang.minAvailable at most {most}, or {change}"
            if most
            else change,
        )
    usage = view.quota_usage
    over: Refusal | None = None
    if usage is not None:
        _, over = usage.room(work.namespace, of, times(amounts, needed), work.budget, 1)
    if over is None:
        return _waiting_report(f"{says}, and the quota has room for {allowed}")
    base = over_quota(over, work.namespace)
    if awaits_lenders(base):
        # How many have to fit at once: what lenders claim is counted by it.
        base = msgspec.structs.replace(base, reasons=dict.fromkeys(base.reasons, needed))
    message = f"{says}, and the quota has room for {allowed} now: {base.message}"
    return msgspec.structs.replace(base, message=message)


def _no_room(search: GangSearch, name: str, gang: Gang, needed: int) -> PlacementReport:
    """The report for a gang that the nodes cannot take as a whole, with the number they could."""
    view, equivalence = search.view, search.equivalence
    now = _most(view, gang, room_by_row(view, equivalence), needed)
    ever = _most(view, gang, empty_room_by_row(view, equivalence), needed)
    where = f" on nodes with one {gang.within}" if gang.within and gang.within_required else ""
    says = f"gang {name} needs {needed} members at once{where}"
    base = explain_unschedulable(view, equivalence, has_place) if not now else None
    nearest = base.nearest_miss if base is not None else None
    reasons = base.reasons if base is not None and base.reasons else {GANG_WAITS: 1}
    events = (WakeEvent.NODES, WakeEvent.ALLOWANCE, WakeEvent.TOPOLOGY)
    if where and not _is_known(view, gang.within):
        return PlacementReport(
            {GANG_WAITS: 1},
            f"spec.gang.within: {gang.within}: no node has this label, so that no nodes can be "
            "chosen together",
            Verdict.NOT_WITH_THIS_FLEET,
            events,
            smallest_change=f"the label {gang.within} on nodes for {needed} members, or another "
            "spec.gang.within",
        )
    if ever < needed:
        lower = f"spec.gang.minAvailable at most {ever}, or " if ever else ""
        return PlacementReport(
            reasons,
            f"{says}; with nothing else running {ever} would fit",
            Verdict.NOT_WITH_THIS_FLEET,
            events,
            nearest,
            smallest_change=f"{lower}nodes for {needed - ever} more members{where}",
        )
    if not base:
        # It has looked at the nodes, which `was_in_vain` asks later.
        reasons = {GANG_WAITS: 1, Reason.NODE_FULL.value: 1}
    return PlacementReport(
        reasons,
        f"{says}; {now} fit now",
        Verdict.WAITING,
        events,
        nearest,
        in_question=view.fleet.assumptions > 0,
        nodes=base.nodes if base is not None else 0,
        smallest_change=f"room for {needed - now} more members{where}" if now < needed else "",
    )


def _is_known(view: FleetSnapshot, within: str) -> bool:
    numbers, _ = numbers_of(view, within)
    return bool((numbers >= 0).any())


def _most(view: FleetSnapshot, gang: Gang, room: Ints, needed: int) -> int:
    """How many members fit where a gang may be: in one domain, or on all nodes together."""
    if gang.within and gang.within_required:
        found = domains(view, gang.within, room, needed)
        return max((min(it.room, needed) for it in found), default=0)
    return min(int(room.sum()), needed)
