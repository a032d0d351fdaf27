"""A place that is reserved for the recovery of a workload, for a replica that fits nowhere else.

`scheduler.py` asks here when `placement.py` finds no node. The lane is held by controller:reserves
and already charged to the tenant, so neither the nodes' room nor the quota is in the way. Only a
replica that replaces another one may use it: it is not meant for growing. The commit ensures that
no other workload uses it.
"""

from __future__ import annotations

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.placement.fit import Allocation, demand_of
from holdfast.model.placement.placement_rules import gate_refusal
from holdfast.model.refusal import Reason
from holdfast.model.time import Instant, wall_ms
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.outcome import BindReplica, PlacementReport, WakeEvent
from holdfast.propose.fleet_snapshot import FleetSnapshot

# A lane that ends sooner than this is not used: the commit allows for clock skew, and a bind takes
# time.
LEFT_MIN_MS = 10_000


class RecoveryLanes:
    """Remembers the places of binds in flight, so that no two go to the same place."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # The lane and the node that each replica was sent to, by the replica's uid.
        self._aimed: dict[str, tuple[str, str]] = {}

    def place(
        self, view: FleetSnapshot, replica: Replica, report: PlacementReport, now: Instant
    ) -> BindReplica | None:
        """A place in the lane of its workload, if there is one for it."""
        lane = self._lane(view, replica, report, now)
        if lane is None:
            return None
        self._aimed = {uid: at for uid, at in self._aimed.items() if self._fleet.assumed(uid)}
        demand = demand_of(replica.spec.template)
        passed = list(self._aimed.values())
        for claim in lane.status.claims:
            site = self._site(claim)
            if site is None or claim.charge != demand.amounts:
                continue
            aim = lane.metadata.uid, claim.node
            if aim in passed:
                # One of the places there is taken by another replica; the next one may be free.
                passed.remove(aim)
                continue
            self._aimed[replica.metadata.uid] = aim
            return _proposal(view, lane, site, report)
        return None

    @staticmethod
    def _lane(
        view: FleetSnapshot, replica: Replica, report: PlacementReport, now: Instant
    ) -> Reservation | None:
        """The lane that the replica may use now."""
        spec = replica.spec
        is_held_up = (
            WakeEvent.FRESHNESS in report.wake_events or Reason.TENANT_SUSPENDED in report.reasons
        )
        if spec.incarnation == 0 or spec.gang or is_held_up or report.in_question:
            return None
        name = f"{spec.workload}-{Intent.RECOVERY.value}"
        found: Reservation | None = view.get("reservations", replica.namespace, name)
        if found is None or found.status.phase is not ReservationPhase.HELD:
            return None
        is_own = found.spec.intent is Intent.RECOVERY and found.spec.owner.uid == spec.workload_uid
        is_lasting = wall_ms(found.spec.deadline) - now.wall_ms > LEFT_MIN_MS
        return found if is_own and is_lasting else None

    def _site(self, claim: Claim) -> NodeState | None:
        """The node of a claim, if it takes work and did not just refuse some."""
        if claim.consumed or claim.replica:
            return None
        site = self._fleet.get(claim.node)
        if site is None or site.shunned is not None:
            return None
        return site if gate_refusal(site.empty.gate) is None else None


def _proposal(
    view: FleetSnapshot, lane: Reservation, site: NodeState, report: PlacementReport
) -> BindReplica:
    return BindReplica(
        node=site.name,
        node_uid=site.uid,
        # The lane is charged for it until it is bound: it must not be counted twice.
        held=Allocation({}),
        score=0.0,
        scores={},
        candidates=0,
        reasons=report.reasons,
        policy=view.policy.name if view.policy is not None else "",
        snapshot_revision=view.revision,
        snapshot_age_ms=view.age_ms,
        reservation=lane.name,
        node_revision=site.revision,
    )
