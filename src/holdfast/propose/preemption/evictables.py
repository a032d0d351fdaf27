"""What could be stopped on each node: the running work as candidates, and its sums in columns.

The fleet keeps this up to date beside the node columns. Reclaimable work is summed by priority, so
that a search asks of all nodes at once how much room stopping everything below a priority would
make. Committed work is listed by tenant: it is a candidate only while its tenant has borrowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import Allocation, sums_of
from holdfast.model.preemption import Contender, Loss, loss_of
from holdfast.observe.cache import Key
from holdfast.observe.node_columns import Ints, NodeColumns

_RUNS = (State.BOUND, State.RUNNING)


class Evictable(msgspec.Struct, frozen=True, gc=False):
    """One running replica, as a search for victims looks at it."""

    uid: str
    key: Key
    row: int
    of: CapacityClass
    priority: int
    held: Allocation
    loss: Loss
    workload_uid: str
    gang: tuple[str, str, str]

    @property
    def tenant(self) -> str:
        return self.key[0]

    def contender(self, cohort: str) -> Contender:
        """The same for the rule."""
        return Contender(self.tenant, self.priority, self.of, cohort, self.held.charge)


def evictable_of(replica: Replica, row: int) -> Evictable | None:
    """A replica as a candidate; None if there is nothing to stop any more."""
    status, binding = replica.status, replica.status.binding
    is_leaving = status.cause is not None or replica.metadata.deletion_timestamp is not None
    if binding is None or status.state not in _RUNS or is_leaving:
        return None
    of = CapacityClass(binding.capacity_class) if binding.capacity_class else CapacityClass.HARD
    held = Allocation(binding.charge, binding.devices, binding.ports, replica.namespace)
    spec = replica.spec
    gang = (replica.namespace, spec.workload_uid, spec.gang) if spec.gang else ("", "", "")
    key = replica.namespace, replica.name
    uid, loss = replica.metadata.uid, loss_of(replica)
    return Evictable(uid, key, row, of, spec.priority, held, loss, spec.workload_uid, gang)


class Evictables:
    """See the module's docstring."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._all: dict[str, Evictable] = {}
        self._on: dict[int, dict[str, Evictable]] = {}
        self._committed: dict[str, dict[str, Evictable]] = {}
        self._gangs: dict[tuple[str, str, str], dict[str, Evictable]] = {}
        self._workloads: dict[str, dict[str, Evictable]] = {}
        # By priority of reclaimable work: by resource, then by row.
        self._sums: dict[int, Ints] = {}
        # What is about to leave for a plan of ours, as it is known meanwhile.
        self._hidden: dict[str, Evictable | None] = {}

    def copy(self, columns: NodeColumns) -> Evictables:
        """The same, to be changed by itself."""
        made = Evictables(columns)
        made._all = dict(self._all)
        made._on = {row: dict(there) for row, there in self._on.items()}
        made._committed = {tenant: dict(of) for tenant, of in self._committed.items()}
        made._workloads = {workload: dict(of) for workload, of in self._workloads.items()}
        made._gangs = {gang: dict(of) for gang, of in self._gangs.items()}
        made._hidden = dict(self._hidden)
        made._sums = {priority: sums.copy() for priority, sums in self._sums.items()}
        return made

    # Changes -------------------------------------------------------------------------------------

    def put(self, uid: str, found: Evictable | None) -> None:
        """Set what is known of a replica; None takes it out."""
        if uid in self._hidden:
            self._hidden[uid] = found
        else:
            self._set(uid, found)

    def hide(self, uid: str) -> None:
        """Take out a replica that is about to leave, until `show`."""
        self._hidden[uid] = self._all.get(uid)
        self._set(uid, None)

    def show(self, uid: str) -> None:
        """Its plan has ended: it is a candidate again, if it still runs."""
        self._set(uid, self._hidden.pop(uid))

    def _set(self, uid: str, found: Evictable | None) -> None:
        old = self._all.pop(uid, None)
        if old is not None:
            self._count(old, -1)
            for table, name in self._places(old):
                del table[name][uid]
                if not table[name]:
                    del table[name]
        if found is not None:
            self._all[uid] = found
            self._count(found, 1)
            for table, name in self._places(found):
                table.setdefault(name, {})[uid] = found

    def _places(self, it: Evictable) -> list[tuple[dict[object, dict[str, Evictable]], object]]:
        places: list[tuple[object, object]] = [
            (self._on, it.row),
            (self._workloads, it.workload_uid),
        ]
        if it.of is CapacityClass.HARD:
            places.append((self._committed, it.tenant))
        if it.gang[2]:
            places.append((self._gangs, it.gang))
        return places  # type: ignore[return-value]

    def _count(self, it: Evictable, sign: int) -> None:
        if it.of is CapacityClass.HARD:
            return
        sums = self._sums.get(it.priority)
        if sums is None or sums.shape != self._columns.total.shape:
            sums = self._sums[it.priority] = self._resized(sums)
        self._add(sums, it, sign)

    def _add(self, sums: Ints, it: Evictable, sign: int) -> None:
        for resource, units in sums_of(it.held).items():
            sums[self._columns.resources.number(resource), it.row] += sign * units

    def _resized(self, sums: Ints | None) -> Ints:
        made: Ints = np.zeros(self._columns.total.shape, np.int64)
        if sums is not None:
            made[: sums.shape[0], : sums.shape[1]] = sums
        return made

    # Questions -----------------------------------------------------------------------------------

    def get(self, uid: str) -> Evictable | None:
        return self._all.get(uid)

    def on(self, row: int) -> Iterable[Evictable]:
        """All candidates on one row, in no order that matters."""
        return self._on.get(row, {}).values()

    def committed_work(self, tenant: str) -> Iterable[Evictable]:
        """The committed work of a tenant."""
        return self._committed.get(tenant, {}).values()

    def held_by(self, tenants: Iterable[str], kept: Iterable[Evictable] = ()) -> Ints:
        """The sums of the committed work of these tenants, by resource and row, without `kept`."""
        sums = np.zeros(self._columns.total.shape, np.int64)
        of = dict.fromkeys(tenants)
        for it in kept:
            if it.of is CapacityClass.HARD and it.tenant in of:
                self._add(sums, it, -1)
        for tenant in of:
            for it in self.committed_work(tenant):
                self._add(sums, it, 1)
        return sums

    def of_workload(self, uid: str) -> Iterable[Evictable]:
        """The candidates of one workload."""
        return self._workloads.get(uid, {}).values()

    def gang(self, it: Evictable) -> list[Evictable]:
        """All running members of its gang; only itself if it belongs to none."""
        return list(self._gangs[it.gang].values()) if it.gang[2] else [it]

    def below(self, priority: int, kept: Sequence[Evictable] = ()) -> list[Ints]:
        """The sums of reclaimable work by priority, from the lowest, each below this one and
        without `kept`.
        """
        found = []
        for each in sorted(self._sums):
            if each >= priority:
                break
            sums = self._sums[each]
            if sums.shape != self._columns.total.shape:
                sums = self._sums[each] = self._resized(sums)
            less = [it for it in kept if it.of is not CapacityClass.HARD and it.priority == each]
            if less:
                sums = sums.copy()
            for it in less:
                self._add(sums, it, -1)
            found.append(sums)
        return found
