"""What must hold of gangs that preempt and are preempted, judged by replicas and workloads alone.

GANG-SPLIT: of a gang that gives way as many go on as it needs, or none. GANG-ROOM: other work is
stopped only for as many members as start together. GANG-WITHIN: the members of a gang that states
a required domain run in one. V6: a gang that may preempt does not wait where stopping less valuable
work makes room for all its members.
"""

from __future__ import annotations

from holdfast.model import keys
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.model.quota.ledger import NodeLedger
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import ACTIVE, StoreCopy
from holdfast.sim.planes.checkers.liveness import PlaceableReplicas
from holdfast.sim.world import World
from holdfast.sim.worlds.placing.gang_checks import FORMED, least_members
from holdfast.sim.worlds.placing.preemption_checks import (
    REPLICAS,
    RESERVATIONS,
    RUNS,
    gate_forbids,
    is_new_promise,
    is_stopped_for_other_work,
    preempts,
)

_GOES_ON = (State.RESERVED, State.BOUND, State.RUNNING, State.UNKNOWN)
_HAS_A_PLACE = (*_GOES_ON, State.STOPPING, State.SUCCEEDED)


class PreemptedGangs(Checker):
    """See the module's docstring."""

    invariants = ("GANG-SPLIT", "GANG-ROOM", "GANG-WITHIN")

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # Gangs that gave members or ended for other work, and gangs for which work was stopped.
        self.shrunk = self.ended = self.preemptions = self.within = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        stopped: dict[str, list[Replica]] = {}
        moved: set[str] = set()
        for _, old, new in self._store_copy.changed(REPLICAS):
            if not isinstance(new, Replica) or not new.spec.gang:
                continue
            uid = new.spec.workload_uid
            if is_stopped_for_other_work(old, new):
                stopped.setdefault(uid, []).append(new)
            elif not isinstance(old, Replica) or old.status.state is not new.status.state:
                moved.add(uid)
        for uid, victims in stopped.items():
            # What else happened to the gang in this commit may have come before or after.
            if uid not in moved:
                self._check_split(uid, victims)
        promised: dict[str, list[Replica]] = {}
        for _, old, new in self._store_copy.changed(RESERVATIONS):
            owner = self._member(new) if is_new_promise(old, new) else None
            if owner is not None:
                promised.setdefault(owner.spec.workload_uid, []).append(owner)
            if isinstance(new, Reservation) and new.status.phase in FORMED:
                self._check_within(new)
        for members in promised.values():
            self._check_room(members)

    def _member(self, promise: Reservation) -> Replica | None:
        """The member of a gang for which a promise was made."""
        key = f"{REPLICAS}{promise.namespace}/{promise.spec.owner.name}"
        owner: Replica | None = self._store_copy.now.get(key)
        return owner if owner is not None and owner.spec.gang else None

    def _least(self, member: Replica) -> int:
        """As few as its gang has needed, by what its workload and its record stated."""
        place = f"{member.namespace}/{member.spec.workload}"
        found = self._store_copy.versions(f"objects/workloads/{place}")
        mine = [it for it in found if it.metadata.uid == member.spec.workload_uid]
        records = self._store_copy.versions(f"{RESERVATIONS}{place}-gang")
        stated = [
            it.spec.min_available
            for it in records
            if it.spec.owner.uid == member.spec.workload_uid and it.status.phase in FORMED
        ]
        return min([*(least_members(it) for it in mine), *stated], default=0)

    def _check_split(self, uid: str, victims: list[Replica]) -> None:
        everyone: list[Replica] = self._store_copy.all(REPLICAS)
        mine = [it for it in everyone if it.spec.workload_uid == uid]
        left, least = sum(it.status.state in _GOES_ON for it in mine), self._least(victims[0])
        if left + len(victims) < least:
            # It was over before.
            return
        self.shrunk, self.ended = self.shrunk + bool(left), self.ended + (not left)
        if 0 < left < least:
            what = f"{left} of {least} members of {victims[0].spec.gang} run on"
            self.violated("GANG-SPLIT", f"{victims[0].name} was stopped for other work, and {what}")

    def _check_room(self, members: list[Replica]) -> None:
        least, gang = self._least(members[0]), members[0].spec.gang
        key = f"{RESERVATIONS}{members[0].namespace}/{gang}-gang"
        record: Reservation | None = self._store_copy.before.get(key)
        runs = record is not None and record.status.phase in FORMED and record.status.claims
        self.preemptions += 1
        if len(members) < least and not runs:
            what = f"places are promised to {len(members)} of {least} members of {gang}"
            self.violated("GANG-ROOM", f"work was stopped, and {what}")

    def _check_within(self, record: Reservation) -> None:
        owner = record.spec.owner
        key = f"objects/workloads/{record.namespace}/{owner.name}"
        found: list[Workload] = self._store_copy.versions(key)
        gangs = [it.spec.gang for it in found if it.metadata.uid == owner.uid]
        if not gangs or any(it is None or not it.within_required for it in gangs):
            return
        within = {it.within for it in gangs if it is not None}
        if within != {"zone"} and within != {"region"}:
            return
        nodes = (
            self._store_copy.now.get(f"objects/nodes/{it.node}") for it in record.status.claims
        )
        places = {
            it.spec.region if "region" in within else f"{it.spec.region}/{it.spec.zone}"
            for it in nodes
            if isinstance(it, Node)
        }
        self.within += len(record.status.claims) > 1
        if len(places) > 1:
            self.violated("GANG-WITHIN", f"{record.name} has members in {sorted(places)}")


class StuckGangs:
    """See the module's docstring."""

    def __init__(self, store_copy: StoreCopy, placeable: PlaceableReplicas) -> None:
        self._store_copy, self._placeable = store_copy, placeable

    def missing(self, _world: World) -> str | None:
        workloads: list[Workload] = self._store_copy.all("objects/workloads/")
        budgeted = {it.metadata.uid for it in workloads if it.spec.disruption is not None}
        everyone: list[Replica] = self._store_copy.all(REPLICAS)
        for workload in workloads:
            gang = workload.spec.gang
            if gang is None or gang.within or workload.metadata.deletion_timestamp is not None:
                continue
            members = [it for it in everyone if it.spec.workload_uid == workload.metadata.uid]
            waiting = [it for it in members if self._waits_for_room(it)]
            least = least_members(workload)
            is_underway = any(it.status.state in _HAS_A_PLACE for it in members)
            if is_underway or len(waiting) < least or not self._may_start(workload, waiting, least):
                continue
            running = [
                it
                for it in everyone
                if it.status.state in RUNS
                and not it.spec.gang
                and it.spec.workload_uid not in budgeted
                and it.metadata.deletion_timestamp is None
            ]
            nodes: list[Node] = self._store_copy.all("objects/nodes/")
            room = sum(self._room(node, waiting[0], running) for node in nodes)
            if room >= least:
                return f"gang {workload.name} waits, and reclaimable work could make room for it"
        return None

    @staticmethod
    def _waits_for_room(it: Replica) -> bool:
        pending = it.status.pending
        is_waiting = it.status.state is State.PENDING and it.metadata.deletion_timestamp is None
        if not is_waiting or pending is None or it.status.displaced is not None:
            return False
        return not set(pending.reasons) - {"NodeFull", "GangWaits"}

    def _may_start(self, workload: Workload, waiting: list[Replica], least: int) -> bool:
        record = self._store_copy.now.get(
            f"{RESERVATIONS}{workload.namespace}/{workload.name}-gang"
        )
        is_held = isinstance(record, Reservation) and record.status.phase in (*ACTIVE, *FORMED)
        template = waiting[0].spec.template
        if is_held or template.devices or template.ports:
            return False
        may = preempts(self._store_copy, waiting[0])
        return may and self._placeable.quota_allows(waiting[0], least)

    def _room(self, node: Node, member: Replica, running: list[Replica]) -> int:
        """How many members fit on one node without the work that may be stopped for them."""
        ledger: NodeLedger | None = self._store_copy.now.get(keys.node_ledger(node.name))
        spec = node.spec
        is_open = node.status.phase is NodePhase.READY and not spec.cordoned and not spec.drain
        if ledger is None or not is_open or spec.taints or ledger.promised:
            return 0
        if gate_forbids(node, member):
            return 0
        gone = [
            binding.charge
            for it in running
            if (binding := it.status.binding) is not None
            and binding.node == node.name
            and binding.capacity_class == "reclaimable"
            and it.spec.priority < member.spec.priority
        ]
        return min(
            max(0, ledger.free(resource) + sum(it.get(resource, 0) for it in gone)) // units
            for resource, units in demand_of(member.spec.template).amounts.items()
            if units
        )
