"""Decisions about replicas that need no other ones: where they should go, or why they have to wait.

`decide.py` calls `decide_batch` for one replica, or for several of one equivalence class, on a view
that may be old; `gang/` uses the parts. Nothing is changed here. Whatever is proposed, the commit
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.errors import unreachable
from holdfast.model.kinds.replica import Replica
from holdfast.model.placement.fit import Allocation, claim
from holdfast.model.quota.allowance import never_fits
from holdfast.model.quota.ledger import limits_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.time import Instant
from holdfast.observe.node_columns import Bools, Floats
from holdfast.propose.batch_placement import BatchPlacement
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.node_verdicts import NodeVerdicts
from holdfast.propose.feasibility.outcome import (
    RESERVED_START,
    BindReplica,
    PlacementReport,
    Preempt,
    Ranked,
    ReplicaDecision,
    StayPending,
    Verdict,
    WakeEvent,
)
from holdfast.propose.feasibility.smallest_change import over_quota, quota_change
from holdfast.propose.feasibility.unschedulable import code_counts, explain_unschedulable
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters.free_devices import is_counted
from holdfast.propose.filters.free_resources import REASONS as FULL
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.gang.domains import returned_room_by_row
from holdfast.propose.node_choice import best_row, next_rows
from holdfast.propose.preemption.promises import resume_promise
from holdfast.propose.preemption.victim_search import VictimSearch, may_preempt

# Devices: which of a node's devices, and what share of each, a replica should get.
#
# This is computed for the chosen node. The scorer that packed the fleet in choosing the node also
# chooses its devices, so that the placement is worth its score; the bind carries the choice and the
# commit decides. The snapshot may be old: a device that was taken meanwhile costs one refused bind,
# like a node that is full.


def held_on(view: FleetSnapshot, verdicts: NodeVerdicts, site: NodeState) -> Allocation:
    """What work with devices would hold on this node, which has room for it."""
    work = verdicts.work
    packer = verdicts.packer
    chosen = packer.devices(work, view, site.row) if packer is not None else None
    if chosen is not None and is_counted(work.demand.devices):
        # The packed columns are those by which the node was found feasible.
        return Allocation(charge=work.demand.amounts, devices=chosen, ports=work.demand.ports)
    held = claim(site.ledger, work.demand)
    if isinstance(held, Refusal):
        unreachable(f"node {site.name} was a candidate but does not fit: {held.message}")
    return held


# For how many nodes the scores are kept.
BEST_KEPT = 3


def _decide(
    view: FleetSnapshot, equivalence: EquivalenceClass, replica: Replica, salt: int, now: Instant
) -> ReplicaDecision:
    """The decision for a replica of an equivalence class whose node verdicts are known."""
    place = place_for_class(view, equivalence, salt)
    if place is not None:
        return place
    if view.closed and (_open_sums(view, equivalence) > -np.inf).any():
        return StayPending(behind_a_job(view))
    report = explain_unschedulable(view, equivalence, has_place)
    if not may_preempt(view, equivalence) or report.in_question:
        return StayPending(report)
    search = VictimSearch(view, equivalence, replica, salt, now, has_place)
    return search.best(report) or StayPending(search.with_reason(report))


def place_for_class(
    view: FleetSnapshot, equivalence: EquivalenceClass, salt: int, among: Bools | None = None
) -> BindReplica | None:
    """The best node of these rows, or of all; None if none has room. Nothing is explained."""
    sums, soft_scores = _sums(view, equivalence)
    if among is not None:
        sums = np.where(among, sums, -np.inf)
    row = best_row(sums, view.columns.lot, salt)
    if row is None:
        return None
    ranked = [
        _ranked(view, equivalence, each, float(sums[each]), soft_scores)
        for each in next_rows(sums, row, BEST_KEPT)
    ]
    candidates = equivalence.verdicts.candidates
    if equivalence.topology_rules is not None:
        candidates = int(np.count_nonzero(sums > -np.inf))
    return _proposal(view, equivalence, row, ranked[0], tuple(ranked), candidates)


def _sums(view: FleetSnapshot, equivalence: EquivalenceClass) -> tuple[Floats, dict[str, Floats]]:
    """The score of each node, minus infinity where it is not feasible; and the topology scores."""
    verdicts, topology_rules = equivalence.verdicts, equivalence.topology_rules
    sums: Floats = verdicts.sums[view.columns.all]
    if view.closed:
        sums = sums.copy()
        sums[list(view.closed)] = -np.inf
    if topology_rules is None:
        return sums, {}
    codes = topology_rules.codes(view, verdicts)
    soft_scores = topology_rules.soft_scores(view, verdicts)
    sums = np.where(codes == 0, sums + topology_rules.weighted_sum(soft_scores), -np.inf)
    return sums, soft_scores


def _open_sums(view: FleetSnapshot, equivalence: EquivalenceClass) -> Floats:
    """The score of each node if none were left to a job with a reserved start."""
    return _sums(msgspec.structs.replace(view, closed=()), equivalence)[0]


def behind_a_job(view: FleetSnapshot) -> PlacementReport:
    """The report for work that would delay a job with a reserved start wherever it fits."""
    number = len(view.closed)
    nodes = "the node" if number == 1 else f"the {number} nodes"
    return PlacementReport(
        {RESERVED_START: number},
        f"{nodes} where it fits must be free when a waiting job starts there by the stated "
        "durations; work that states an expectedSeconds short enough may start now",
        Verdict.WAITING,
        (WakeEvent.NODES,),
        try_soon=True,
        smallest_change="state job.expectedSeconds, if this work ends soon",
    )


def has_place(view: FleetSnapshot, replica: Replica) -> bool:
    """Whether a node has room for a replica as things are.

    Decisions ask it of hypotheses, to prove a change or a preemption: nothing is stopped for it,
    explained, or kept for the next question.
    """
    equivalence = class_of(view, replica, VerdictCache())
    if isinstance(equivalence, PlacementReport):
        return False
    _, over = quota_room(view, equivalence.work, 1)
    return over is None and bool((_sums(view, equivalence)[0] > -np.inf).any())


def decide_batch(
    view: FleetSnapshot,
    replicas: Sequence[Replica],
    now: Instant,
    salt: int,
    verdict_cache: VerdictCache,
) -> list[ReplicaDecision]:
    """Nodes for several replicas of one class, as if one were placed after the other.

    Nothing else may be assumed between them, or the answers would differ. There may be fewer
    answers than replicas, but at least one: what these take matters to the rest.
    """
    equivalence = class_of(view, replicas[0], verdict_cache)
    if isinstance(equivalence, PlacementReport):
        return [StayPending(equivalence)] * len(replicas)
    kept = resume_promise(view, replicas[0], equivalence, now)
    if kept is not None:
        # Its promise may be charged to the quota already. The caller asks for such a replica alone.
        return [kept]
    allowed, over = quota_room(view, equivalence.work, len(replicas))
    if over is not None:
        return _beyond_quota(view, equivalence, replicas, over)
    replicas = replicas[:allowed]
    first = _decide(view, equivalence, replicas[0], salt, now)
    if isinstance(first, StayPending):
        # One that was displaced itself may stop less than the others.
        is_alike = replicas[0].status.displaced is None
        return [first] * (len(replicas) if is_alike else 1)
    if isinstance(first, Preempt) or len(replicas) == 1 or not equivalence.is_plain:
        # If not plain, only the first can be placed on this view.
        return [first]
    packs = equivalence.verdicts.packer is not None
    if packs and _affects_others(view, equivalence, first.node):
        # It re-ranks all nodes, and a batch that ends with its first placement is not worth it.
        return [first]
    run = BatchPlacement(view, equivalence, len(replicas), salt)
    weight = _weight(equivalence)
    found: list[ReplicaDecision] = []
    for row, total, scores in run.choices(len(replicas)):
        site = view.fleet.at(row)
        found.append(
            BindReplica(
                site.name,
                site.uid,
                equivalence.held,
                total / weight,
                scores,
                first.candidates,
                first.reasons,
                first.policy,
                first.snapshot_revision,
                first.snapshot_age_ms,
                first.best,
                node_revision=site.revision,
            )
        )
        if packs and _affects_others(view, equivalence, site.name):
            break
    return found


def _affects_others(view: FleetSnapshot, equivalence: EquivalenceClass, node: str) -> bool:
    site = view.fleet.get(node)
    return site is not None and equivalence.verdicts.affects_others(view, site.row)


def could_take(
    view: FleetSnapshot,
    replica: Replica,
    node: str,
    now: Instant,
    verdict_cache: VerdictCache | None = None,
) -> bool:
    """Whether this one node could take the replica: whether an event about it may help."""
    view.fleet.forgive(now.monotonic_ms)
    site = view.fleet.get(node)
    equivalence = (verdict_cache if verdict_cache is not None else VerdictCache()).class_of(
        replica, view
    )
    if site is None or isinstance(equivalence, PlacementReport):
        return False
    return room_for(view, equivalence, np.array([site.row], np.intp)) > 0


def room_for(view: FleetSnapshot, equivalence: EquivalenceClass, rows: npt.NDArray[np.intp]) -> int:
    """At most how many such replicas these nodes could take now, each taken by itself."""
    rows = rows[equivalence.verdicts.code[rows] == 0]
    if equivalence.topology_rules is not None and len(rows):
        rows = rows[equivalence.topology_rules.codes(view, equivalence.verdicts)[rows] == 0]
    room = np.full(len(rows), np.iinfo(np.int64).max)
    for resource, units in equivalence.work.units:
        room = np.minimum(room, view.columns.free[resource, rows] // units)
    return int(room.sum())


def class_of(
    view: FleetSnapshot, replica: Replica, verdict_cache: VerdictCache
) -> EquivalenceClass | PlacementReport:
    """The replica's equivalence class, or the reason that keeps it from every node."""
    if view.is_too_old:
        # The age itself is left out: it would change the message every time.
        return PlacementReport(
            {Reason.TOO_OLD.value: 1},
            f"the servers have sent nothing for more than {view.age_max_ms // 1000} s; nothing "
            "is placed on a snapshot this old",
            Verdict.WAITING,
            (WakeEvent.FRESHNESS,),
        )
    equivalence = verdict_cache.class_of(replica, view)
    if isinstance(equivalence, PlacementReport):
        return equivalence
    if equivalence.tenant_report is None:
        equivalence.tenant_report = (_tenant_report(view, equivalence.work),)
    (tenant_report,) = equivalence.tenant_report
    return tenant_report if tenant_report is not None else equivalence


def _tenant_report(view: FleetSnapshot, work: PendingWork) -> PlacementReport | None:
    """What the tenant's own rules refuse, on any node."""
    if work.tenant is not None and work.tenant.spec.suspended:
        return PlacementReport(
            {Reason.TENANT_SUSPENDED.value: 1},
            f"tenant {work.namespace} accepts no new work",
            Verdict.BLOCKED_BY,
            (WakeEvent.ALLOWANCE,),
        )
    quota = view.quota(work.namespace)
    if quota is None:
        return None
    # Whether the quota is too small for this work even alone.
    of = view.capacity_class(work.priority_class)
    refusal = never_fits(limits_of(quota), of, work.demand.amounts, work.budget)
    if refusal is None:
        return None
    return PlacementReport(
        {refusal.reason.value: 1},
        refusal.message,
        Verdict.NEVER,
        (WakeEvent.ALLOWANCE,),
        smallest_change=quota_change(refusal, work.namespace),
    )


def quota_room(
    view: FleetSnapshot, work: PendingWork, most: int
) -> tuple[int, PlacementReport | None]:
    """For how many of these the tenant's quota has room now, as far as is known here."""
    if view.quota_usage is None or not view.quota_usage.is_counting:
        return most, None
    of = view.capacity_class(work.priority_class)
    amounts = work.demand.amounts
    allowed, refusal = view.quota_usage.room(work.namespace, of, amounts, work.budget, most)
    return allowed, over_quota(refusal, work.namespace) if refusal is not None else None


def _beyond_quota(
    view: FleetSnapshot,
    equivalence: EquivalenceClass,
    replicas: Sequence[Replica],
    over: PlacementReport,
) -> list[ReplicaDecision]:
    """The reports for work beyond the quota now: the nodes are the reason for work for which taking
    back what was lent would be in vain.
    """
    if not awaits_lenders(over):
        return [StayPending(over)] * len(replicas)
    fits = bool((_sums(view, equivalence)[0] > -np.inf).any())
    could = fits or bool(returned_room_by_row(view, equivalence).any())
    full = (
        over if fits else without_quota(explain_unschedulable(view, equivalence, has_place), over)
    )
    return [
        StayPending(over if fits or (could and not was_in_vain(it)) else full) for it in replicas
    ]


def awaits_lenders(report: PlacementReport) -> bool:
    """Whether work waits because the tenants of its cohort together have used everything."""
    return Reason.COHORT_EXHAUSTED.value in report.reasons


def was_in_vain(replica: Replica) -> bool:
    """Whether a replica that waits for its cohort found no room on any node before.

    Then nothing more is taken back for it until a node could take it as it is: a borrower would
    take the quota again, and lose it again, for ever.
    """
    pending = replica.status.pending
    return pending is not None and any(it.value in pending.reasons for it in FULL)


def without_quota(report: PlacementReport, over: PlacementReport) -> PlacementReport:
    """The report about nodes for work that is beyond its quota as well."""
    return msgspec.structs.replace(
        report,
        message=f"{report.message}; its tenant's quota has no room for it either",
        wake_events=tuple(dict.fromkeys((*report.wake_events, *over.wake_events))),
    )


# A place -----------------------------------------------------------------------------------------


def _weight(equivalence: EquivalenceClass) -> int:
    topology_rules = (
        equivalence.topology_rules.weight if equivalence.topology_rules is not None else 0
    )
    return max(1, equivalence.verdicts.weight + topology_rules)


def _ranked(
    view: FleetSnapshot,
    equivalence: EquivalenceClass,
    row: int,
    total: float,
    soft_scores: dict[str, Floats],
) -> Ranked:
    parts = equivalence.verdicts.parts
    scores = {name: float(part[row]) for name, part in parts.items()}
    for name, part in soft_scores.items():
        scores[name] = float(part[row])
    return Ranked(view.fleet.at(row).name, total / _weight(equivalence), scores)


def _proposal(
    view: FleetSnapshot,
    equivalence: EquivalenceClass,
    row: int,
    ranked: Ranked,
    best: tuple[Ranked, ...],
    candidates: int,
) -> BindReplica:
    site = view.fleet.at(row)
    has_devices = bool(equivalence.work.demand.devices)
    held = held_on(view, equivalence.verdicts, site) if has_devices else equivalence.held
    return BindReplica(
        node=site.name,
        node_uid=site.uid,
        held=held,
        score=ranked.score,
        scores=ranked.scores,
        candidates=candidates,
        reasons=code_counts(view, equivalence),
        policy=view.policy.name if view.policy is not None else "",
        snapshot_revision=view.revision,
        snapshot_age_ms=view.age_ms,
        best=best,
        node_revision=site.revision,
    )
