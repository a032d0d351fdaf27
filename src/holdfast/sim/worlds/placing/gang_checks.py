"""What must hold of gangs, judged by replicas and workloads and not by the rules of the commit.

GANG: no member is bound before as many as the gang needs have a place, and the record of a gang
that runs names no member that has left. V2: a gang that fits as a whole is bound, and what is left
of one is stopped. GANG-BLOCK: no two gangs hold places that each of them lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationPhase
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    return_allocation,
    take_allocation,
)
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Refusal
from holdfast.model.workload.indexes import parse
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.planes.checkers.liveness import PlaceableReplicas
from holdfast.sim.world import World

_BOUND = (State.BOUND, State.RUNNING, State.UNKNOWN, State.SUCCEEDED)
FORMED = (ReservationPhase.COMMITTED, ReservationPhase.CONSUMED)
# A gang that was refused pauses for at most half a minute, and may be refused a few times.
FORMED_MS = 120_000
STOPPED_MS = 60_000


def least_members(workload: Workload) -> int:
    """How many members have to start together, by what the user states and what is done."""
    gang = workload.spec.gang
    if gang is None or workload.spec.type is not WorkloadType.JOB:
        return gang.min_available if gang is not None else 0
    done = len(parse(workload.status.job.completed_indexes))
    return max(1, min(gang.min_available, workload.spec.replicas - done))


class WholeGangs(Checker):
    """See the module's docstring."""

    invariants = ("GANG",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self.formed = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        started: dict[str, Replica] = {}
        touched: set[tuple[str, str]] = set()
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if not isinstance(new, Replica) or not new.spec.gang:
                continue
            before = old.status.state if isinstance(old, Replica) else None
            touched.add((new.namespace, new.spec.workload))
            if new.status.state is State.BOUND and before is not State.BOUND:
                started[new.spec.workload_uid] = new
        for replica in started.values():
            self._check_started(replica)
        for _, old, new in self._store_copy.changed("objects/reservations/"):
            if isinstance(new, Reservation) and new.spec.intent is Intent.GANG:
                touched.add((new.namespace, new.spec.owner.name))
                is_new = old is None or old.status.phase not in FORMED
                self.formed += is_new and new.status.phase in FORMED
        for namespace, name in sorted(touched):
            self._check_record(namespace, name)

    def _members(self, uid: str) -> list[Replica]:
        everyone: list[Replica] = self._store_copy.all("objects/replicas/")
        return [it for it in everyone if it.spec.workload_uid == uid]

    def _check_started(self, replica: Replica) -> None:
        key = f"objects/workloads/{replica.namespace}/{replica.spec.workload}"
        found: list[Workload] = self._store_copy.versions(key)
        found = [it for it in found if it.metadata.uid == replica.spec.workload_uid]
        members = self._members(replica.spec.workload_uid)
        placed = sum(it.status.state in (State.RESERVED, *_BOUND) for it in members)
        least = min((least_members(it) for it in found), default=0)
        if placed < least:
            what = f"{placed} of {least} members of {replica.spec.gang} have a place"
            self.violated("GANG", f"{replica.name} was bound while {what}")

    def _check_enough(self, record: Reservation) -> None:
        """A gang with fewer members than it needs does not go on."""
        key = f"objects/workloads/{record.namespace}/{record.spec.owner.name}"
        found: list[Workload] = self._store_copy.versions(key)
        leasts = [least_members(it) for it in found if it.metadata.uid == record.spec.owner.uid]
        members = self._members(record.spec.owner.uid)
        placed = sum(it.status.state in (State.RESERVED, *_BOUND) for it in members)
        least = min((record.spec.min_available, *leasts))
        if placed < least:
            self.violated("GANG", f"{record.name} goes on with {placed} of {least} members")

    def _check_record(self, namespace: str, name: str) -> None:
        key = f"objects/reservations/{namespace}/{name}-gang"
        record: Any = self._store_copy.now.get(key)
        if not isinstance(record, Reservation) or record.status.phase not in FORMED:
            return
        self._check_enough(record)
        named = {it.replica for it in record.status.claims if it.consumed}
        bound = {
            it.name for it in self._members(record.spec.owner.uid) if it.status.state in _BOUND
        }
        if named - bound:
            self.violated("GANG", f"{record.name} names {sorted(named - bound)}, which left")


class _HeldInPart(NamedTuple):
    """A gang that has places for some of its members, and those that it lacks places for."""

    record: Reservation
    lacking: list[Replica]


class GangsProceed:
    """See the module's docstring."""

    def __init__(self, store_copy: StoreCopy, placeable: PlaceableReplicas) -> None:
        self._store_copy, self._placeable = store_copy, placeable
        self._since: dict[str, int] = {}
        self._strays: dict[str, int] = {}
        # Since when each record holds a part of the places of its gang, by uid.
        self._partial: dict[str, int] = {}

    def waiting(self, world: World) -> str | None:
        """A gang that has fitted as a whole for too long without being bound."""
        now_ms = world.now_us // 1000
        fits = self._fitting()
        self._since = {uid: self._since.get(uid, now_ms) for uid in fits}
        for uid, since_ms in self._since.items():
            if now_ms - since_ms > FORMED_MS:
                return f"gang {fits[uid]} has fitted since {since_ms} ms and is not bound"
        return None

    def left(self, world: World) -> str | None:
        """A member that runs although its gang does not."""
        now_ms = world.now_us // 1000
        strays = {it.metadata.uid: it.name for it in self._running_alone()}
        self._strays = {uid: self._strays.get(uid, now_ms) for uid in strays}
        for uid, since_ms in self._strays.items():
            if now_ms - since_ms > STOPPED_MS:
                return f"{strays[uid]} has run without its gang since {since_ms} ms"
        return None

    def mutual_block(self, world: World) -> str | None:
        """Two gangs that have held a part of their places for long: each lacks what the other
        holds.
        """
        now_ms = world.now_us // 1000
        partial = {it.record.metadata.uid: it for it in self._held_in_part()}
        self._partial = {uid: self._partial.get(uid, now_ms) for uid in partial}
        stuck = [it for uid, it in partial.items() if now_ms - self._partial[uid] > FORMED_MS]
        for one, other in combinations(stuck, 2):
            if self._is_in_the_way(one, other) and self._is_in_the_way(other, one):
                names = f"{one.record.name} and {other.record.name}"
                return f"{names} each hold places that the other one lacks"
        return None

    def _held_in_part(self) -> Iterator[_HeldInPart]:
        for workload, members in self._gangs():
            record = self._record(workload)
            if record is None or record.status.phase is not ReservationPhase.HELD:
                continue
            placed = sum(it.status.state is State.RESERVED for it in members)
            waiting = [it for it in members if it.status.state is State.PENDING]
            lacking = least_members(workload) - placed
            if placed and 0 < lacking <= len(waiting):
                yield _HeldInPart(record, waiting[:lacking])

    def _is_in_the_way(self, one: _HeldInPart, other: _HeldInPart) -> bool:
        """Whether the first gang would be complete with what the other one holds, and not now."""
        ledgers = self._placeable.open_ledgers()
        returned = [self._without(ledger, other.record) for ledger in ledgers]
        return not self._fit_on(one.lacking, ledgers) and self._fit_on(one.lacking, returned)

    def _without(self, ledger: NodeLedger, record: Reservation) -> NodeLedger:
        """The ledger as if what is held under this record were given back."""
        left = ledger
        for it in record.status.claims:
            if self._store_copy.now.get(keys.node_ledger(it.node)) is ledger:
                held = Allocation(it.charge, it.devices, it.ports, record.namespace)
                left = return_allocation(left, held, it.replica)
        return left

    def _record(self, workload: Workload) -> Reservation | None:
        key = f"objects/reservations/{workload.namespace}/{workload.name}-gang"
        found: Any = self._store_copy.now.get(key)
        is_own = isinstance(found, Reservation) and found.spec.owner.uid == workload.metadata.uid
        return found if is_own else None

    def _gangs(self) -> list[tuple[Workload, list[Replica]]]:
        members: dict[str, list[Replica]] = {}
        for replica in self._store_copy.all("objects/replicas/"):
            if replica.spec.gang:
                members.setdefault(replica.spec.workload_uid, []).append(replica)
        workloads: list[Workload] = self._store_copy.all("objects/workloads/")
        return [
            (it, members.get(it.metadata.uid, []))
            for it in workloads
            if it.spec.gang is not None and it.metadata.deletion_timestamp is None
        ]

    def _running_alone(self) -> list[Replica]:
        found = []
        for workload, members in self._gangs():
            record = self._record(workload)
            named: set[str] = set()
            if record is not None and record.status.phase in FORMED:
                named = {it.replica for it in record.status.claims}
            found += [
                it
                for it in members
                if it.status.state in (State.BOUND, State.RUNNING) and it.name not in named
            ]
        return found

    def _fitting(self) -> dict[str, str]:
        """The gangs all of whose needed members wait and would find a place one after the other."""
        found = {}
        for workload, members in self._gangs():
            record = self._record(workload)
            if record is not None and record.status.phase in (*FORMED, *ACTIVE):
                continue
            if any(it.status.state in (State.RESERVED, State.STOPPING, *_BOUND) for it in members):
                continue
            waiting = [it for it in members if it.status.state is State.PENDING]
            least = least_members(workload)
            if len(waiting) >= least and self._fit_together(waiting[:least]):
                found[workload.metadata.uid] = workload.name
        return found

    def _fit_together(self, members: list[Replica]) -> bool:
        if not self._placeable.quota_allows(members[0], len(members)):
            return False
        return self._fit_on(members, self._placeable.open_ledgers())

    def _fit_on(self, members: list[Replica], ledgers: list[NodeLedger]) -> bool:
        demand = demand_of(members[0].spec.template)
        left = len(members)
        for ledger in ledgers:
            after: NodeLedger = ledger
            while left and self._placeable.fits_on(members[0], after):
                held = claim(after, demand)
                if isinstance(held, Refusal):
                    break
                left -= 1
                after = take_allocation(after, held, f"member-{left}")
        return not left
