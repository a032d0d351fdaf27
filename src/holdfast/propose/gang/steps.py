"""The steps by which a gang is bound: one transaction, or a reservation with one committing write.

Each step makes its requests from a snapshot and leaves out what is done there, so that a scheduler
that restarts makes the plan again and continues (`observe/operation_plan.py`). The commit accepts
the bind of a member only together with the others, or from the committed record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.model.encoding.resource_versions import last_written
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.placement.gang import claim_of, gang_record_name, is_of_gang
from holdfast.model.placement.placement_rules import gate_refusal
from holdfast.model.quota.ledger import gate_of
from holdfast.model.requests import (
    Bind,
    BindTogether,
    CommitGang,
    DropReservation,
    HoldCapacity,
    Request,
    Reserve,
    Target,
    Term,
    Unreserve,
)
from holdfast.observe.operation_plan import PlanStep
from holdfast.observe.snapshot import Snapshot
from holdfast.propose.bind_operation import bind_of, operation_of
from holdfast.propose.feasibility.outcome import BindReplica

# Members that are bound by one transaction. etcd takes 128 compares and operations in one, and each
# member has two records of its own.
TOGETHER_MAX = 30

Places = Sequence[tuple[Replica, BindReplica]]


class GangSteps:
    """Makes the steps for one gang: `identity` sends them under `term`."""

    def __init__(self, identity: str, workload: Workload, term: Term) -> None:
        self._identity, self._workload, self._term = identity, workload, term
        self._name = gang_record_name(workload.name)

    def together(self, places: Places) -> tuple[PlanStep, ...]:
        """All members by one transaction."""

        def requests(snapshot: Snapshot) -> Sequence[Request]:
            waiting = [it for it in places if _current(snapshot, it[0], State.PENDING) is not None]
            if len(waiting) < len(places):
                # Some are bound, so all are; or one has changed, and then it is decided again.
                return ()
            binds = tuple(bind_of(self._identity, it, place, self._term) for it, place in places)
            return (BindTogether(binds, operation=f"{binds[0].operation}-together"),)

        return (PlanStep("bind together", requests),)

    def by_reservation(
        self, places: Places, needed: int, deadline: datetime
    ) -> tuple[PlanStep, ...]:
        """Hold a reservation, reserve each place under it, commit it, and bind each."""
        uid = self._workload.metadata.uid

        def hold(snapshot: Snapshot) -> Sequence[Request]:
            if self._record(snapshot, ReservationPhase.HELD) is not None:
                return ()
            owner = ReservationOwner(
                "Workload", self._workload.name, uid, self._workload.metadata.generation
            )
            # What was released since must not be held again under the same id.
            operation = f"{self._identity}/{uid}/{deadline.isoformat()}/hold-gang"
            return (
                HoldCapacity(
                    self._workload.namespace,
                    owner,
                    Intent.GANG,
                    (),
                    deadline,
                    self._term,
                    needed,
                    operation,
                ),
            )

        def reserve(snapshot: Snapshot) -> Sequence[Request]:
            record = self._record(snapshot, ReservationPhase.HELD)
            if record is None:
                return ()
            found = []
            for replica, place in sorted(places, key=lambda it: it[1].node):
                now = _current(snapshot, replica, State.PENDING)
                if now is not None and claim_of(record, now.name) is None:
                    found.append(self._reserve(now, place, deadline))
            return found

        return (
            PlanStep("hold", hold),
            PlanStep("reserve", reserve),
            *self.commit(),
            *self.bind_claims(),
        )

    def commit(self) -> tuple[PlanStep, ...]:
        """The one write after which members may be bound."""

        def requests(snapshot: Snapshot) -> Sequence[Request]:
            record = self._record(snapshot, ReservationPhase.HELD)
            if record is None:
                return ()
            uid = record.metadata.uid
            operation = f"{self._identity}/{uid}/commit-gang"
            return (CommitGang(record.namespace, record.name, uid, self._term, operation),)

        return (PlanStep("commit", requests),)

    def bind_claims(self) -> tuple[PlanStep, ...]:
        """Bind each member that has a claim of the committed record."""

        def requests(snapshot: Snapshot) -> Sequence[Request]:
            record = self._record(snapshot, ReservationPhase.COMMITTED)
            if record is None:
                return ()
            found: list[Request] = []
            for claim in record.status.claims:
                replica: Replica | None = snapshot.get("replicas", record.namespace, claim.replica)
                is_reserved = replica is not None and replica.status.state is State.RESERVED
                if claim.consumed or replica is None or not is_reserved:
                    continue
                node: Node | None = snapshot.get("nodes", "", claim.node)
                if node is None or gate_refusal(gate_of(node)) is not None:
                    # Waiting for the node would keep the others waiting for this member.
                    found.append(self._unreserve(replica, f"node {claim.node} takes no work"))
                else:
                    found.append(self._bind(replica, node, record, snapshot))
            return found

        return (PlanStep("bind", requests),)

    def give_back(self, reason: str) -> tuple[PlanStep, ...]:
        """Release the reservation of a gang that is not committed: one transaction for each member,
        since the store takes only so much in one, and the record with what is left of it.
        """

        def members(snapshot: Snapshot) -> Sequence[Request]:
            record = self._own(snapshot)
            claims = record.status.claims if record is not None else ()
            found = (
                snapshot.get("replicas", self._workload.namespace, it.replica) for it in claims
            )
            return [
                self._unreserve(it, reason)
                for it in found
                if it is not None
                and it.status.state is State.RESERVED
                and it.status.reservation == self._name
            ]

        def rest(snapshot: Snapshot) -> Sequence[Request]:
            record = self._own(snapshot)
            if record is None:
                return ()
            uid = record.metadata.uid
            operation = f"{self._identity}/{uid}/drop-gang"
            return (
                DropReservation(record.namespace, record.name, uid, reason, self._term, operation),
            )

        return (PlanStep("give members back", members), PlanStep("give back", rest))

    def _own(self, snapshot: Snapshot) -> Reservation | None:
        """The record that this scheduler holds and has not committed."""
        record = self._record(snapshot, ReservationPhase.HELD)
        return record if record is not None and record.status.by == self._identity else None

    def _record(self, snapshot: Snapshot, phase: ReservationPhase) -> Reservation | None:
        found: Reservation | None = snapshot.get(
            "reservations", self._workload.namespace, self._name
        )
        if found is None or not is_of_gang(found, self._workload.metadata.uid):
            return None
        return found if found.status.phase is phase else None

    def _reserve(self, replica: Replica, place: BindReplica, deadline: datetime) -> Reserve:
        uid, number = replica.metadata.uid, replica.status.transition_number
        return Reserve(
            Target(replica.namespace, replica.name, uid, number),
            place.node,
            place.node_uid,
            self._term,
            deadline,
            Intent.GANG,
            f"{self._identity}/{uid}/{number}/reserve-{place.node}",
            devices=place.held.devices or None,
            gang=self._name,
            snapshot_age_ms=place.snapshot_age_ms,
        )

    def _unreserve(self, replica: Replica, reason: str) -> Unreserve:
        uid, number = replica.metadata.uid, replica.status.transition_number
        target = Target(replica.namespace, replica.name, uid, number)
        operation = f"{self._identity}/{uid}/{number}/unreserve-gang"
        return Unreserve(target, reason, self._term, operation)

    def _bind(self, replica: Replica, node: Node, record: Reservation, snapshot: Snapshot) -> Bind:
        uid, number = replica.metadata.uid, replica.status.transition_number
        return Bind(
            Target(replica.namespace, replica.name, uid, number),
            node.name,
            node.metadata.uid,
            self._term,
            operation=operation_of(self._identity, uid, number, node.name),
            snapshot_revision=snapshot.revision,
            snapshot_age_ms=snapshot.age_ms,
            reservation=record.name,
            node_revision=last_written(node.metadata.resource_version),
        )


def _current(snapshot: Snapshot, replica: Replica, state: State) -> Replica | None:
    """The replica as the snapshot has it, if it is the same and in this state."""
    found: Replica | None = snapshot.get("replicas", replica.namespace, replica.name)
    if found is None or found.metadata.uid != replica.metadata.uid:
        return None
    return found if found.status.state is state else None
