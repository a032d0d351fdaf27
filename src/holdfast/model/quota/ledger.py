"""Ledgers: the sums that decide whether capacity, quota or budget is still free.

A ledger is a separate record in the store. Every transaction that takes or returns something
compares and writes the ledger, so two of them can never both take the last unit. Ledgers hold only
sums and owners; the proof of a charge is the replica or reservation that carries it, and a checker
can always recount those.

Other facts that a decision needs about a node or a tenant (the *gate*, the limits) are mirrored
here by the transaction that changes them, so that ordinary status writes never conflict with a
bind.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.model.kinds.node import Node, NodePhase, PortShare, Protection
from holdfast.model.kinds.placement import Isolation, Taint
from holdfast.model.kinds.tenant import CapacityClass, Quota
from holdfast.model.kinds.workload import WorkloadType
from holdfast.model.meta import Part, Quantity, Timestamp
from holdfast.model.quantity import MILLI, Resource, capacity, demand

# The replica slots of a node that does not state them; the default of Kubernetes.
REPLICAS_PER_NODE = 110
# The part of the memory of a node that is not overcommitted.
MEMORY_HEADROOM_PERCENT = 10
# A workload has at most this many pages of ordinals, so one transaction can delete all of them.
PLACES_PAGES = 64
PLACES_PER_PAGE = 1_024

Amounts = dict[str, int]
# Limits as a quota states them.
_Stated = tuple[tuple[str, Quantity], ...]
_Classes = tuple[tuple[str, _Stated], ...]


class NodeGate(Part, frozen=True):
    """Facts about the node: whether it takes new work, where it is, and its agent's incarnation."""

    uid: str
    phase: NodePhase = NodePhase.READY
    cordoned: bool = False
    draining: bool = False
    taints: tuple[Taint, ...] = ()
    incarnation: int = 0
    mark: int = 0
    region: str = ""
    zone: str = ""
    pool: str = ""
    protected_for: Protection | None = None
    installation: str = ""
    address: str = ""
    isolation: Isolation | None = None


class DeviceSlot(Part, frozen=True):
    """A device: its properties, and how many thousandths of it each owner has.

    `absent` means that the node no longer lists it, so no more of it is allocated.
    """

    device_class: str
    model: str = ""
    memory: int = 0
    numa: int = 0
    owners: Amounts = {}
    promised: str = ""
    absent: bool = False

    @property
    def left(self) -> int:
        """The thousandths without an owner."""
        return MILLI - sum(self.owners.values())

    def free(self, holder: str = "") -> int:
        """What `holder` may still take. A promised device is free only for its reservation."""
        if self.absent or self.promised not in ("", holder):
            return 0
        return self.left


class NodeLedger(Part, frozen=True):
    """The capacity of a node, and what is allocated of it.

    A preemption stops its victims first and binds later. Until then its share is `promised` to a
    reservation, and what the victims still hold is `leaving`; no other work gets the difference.
    `tenants` counts the replicas and claims of each tenant on the node.
    """

    gate: NodeGate
    allocatable: Amounts = {}
    used: Amounts = {}
    devices: dict[str, DeviceSlot] = {}
    ports: dict[str, str] = {}
    promised: dict[str, Amounts] = {}
    promised_ports: dict[str, str] = {}
    leaving: Amounts = {}
    # Whether it disagrees with the objects: nothing more is allocated until it is repaired.
    quarantined: bool = False
    port_share: PortShare | None = None
    tenants: Amounts = {}
    # What is really there of a resource, where more than that is allocatable.
    firm: Amounts = {}
    # The part of `used` that recovery reservations hold.
    recovery: Amounts = {}

    def offers(self, port: str) -> bool:
        """Whether a fixed port such as TCP/80 belongs to this node, in use or not."""
        return self.port_share is None or self.port_share.has(int(port.partition("/")[2]))

    def free(self, resource: str, holder: str = "") -> int:
        """What `holder` may still take of a resource, after what is promised to others."""
        rest = self.allocatable.get(resource, 0) - self.used.get(resource, 0)
        if self.firm and self.recovery:
            rest -= self._undiluted(resource)
        if not self.promised:
            return rest
        others = sum(a.get(resource, 0) for who, a in self.promised.items() if who != holder)
        return rest - max(0, others - self.leaving.get(resource, 0))

    def _undiluted(self, resource: str) -> int:
        """What an overcommitted node does not allocate, because it is reserved for recovery.

        A recovery reservation holds its full amount of what is there. Only the rest is
        overcommitted: others may use (there - held) * allocatable / there.
        """
        there, held = self.firm.get(resource, 0), self.recovery.get(resource, 0)
        if not there or not held:
            return 0
        beyond = self.allocatable.get(resource, 0) - there
        return -(-held * beyond // there)


class TenantLimits(Part, frozen=True):
    """A tenant's limits inside its cohort's ledger, in internal units.

    A resource that is not named is not limited. `classes` are the budgets of priority classes.
    """

    hard: Amounts = {}
    reclaimable: Amounts = {}
    borrowing: Amounts = {}
    classes: dict[str, Amounts] = {}


class TenantUse(Part, frozen=True):
    """The charges of a tenant, by capacity class, and again by priority class.

    A priority class is counted even without a budget: a budget that is set later must include the
    existing charges. `leaving` is the part of `hard` that is being given back: what
    the work still holds that was stopped by a preemption or a reclaim.
    """

    hard: Amounts = {}
    reclaimable: Amounts = {}
    classes: dict[str, Amounts] = {}
    leaving: Amounts = {}


class QuotaLedger(Part, frozen=True):
    """Limits and sums of all tenants of one cohort."""

    limits: dict[str, TenantLimits] = {}
    used: dict[str, TenantUse] = {}
    # As in a node's ledger.
    quarantined: bool = False


class ObjectsLedger(Part, frozen=True):
    """A tenant's objects by plural, their bytes, and the replicas its workloads want, for its caps.

    `model/quota/weights.py` computes what an object counts.
    """

    counts: Amounts = {}
    bytes: int = 0
    wanted: int = 0


class DisruptionLedger(Part, frozen=True):
    """How many replicas a workload has, and how many may be missing.

    `replicas` counts its replica objects, `healthy` those that do not count as missing. These are
    counts without names, so that creating a replica costs the same for any number of them; a
    replica's own status decides whether it counts (`model/placement/disruption.py`). `allowed` is
    None if the workload has no disruption budget, `desired` if no count is stated. `type` is the
    workload's type. `pages` are the existing pages of its places ledger.
    """

    allowed: int | None = None
    replicas: int = 0
    desired: int | None = None
    pages: tuple[int, ...] = ()
    healthy: int = 0
    type: WorkloadType = WorkloadType.SERVICE


class PlacesLedger(Part, frozen=True):
    """One page of the highest deleted incarnation at each ordinal of a workload.

    Existing replicas state their incarnation themselves, so creating one only reads this. A deleted
    replica leaves its incarnation here. All pages of a workload are deleted with it.
    """

    reached: dict[int, int] = {}

    def at(self, ordinal: int) -> int:
        """The highest deleted incarnation at an ordinal; -1 if none."""
        return self.reached.get(ordinal, -1)


def places_page(ordinal: int) -> int:
    """The page of an ordinal. Replicas that are created together mostly share a page."""
    return ordinal // PLACES_PER_PAGE % PLACES_PAGES


class PoolsLedger(Part, frozen=True):
    """All protected pools of all regions, so that admission need not read every region."""

    protected: dict[str, dict[str, Protection]] = {}


class GrantLedger(Part, frozen=True):
    """What the global plane allows this region to spend for a tenant, and until when."""

    serial: int = 0
    expires: Timestamp | None = None
    budgets: dict[str, Amounts] = {}
    used: dict[str, Amounts] = {}


def add(left: Amounts, right: Amounts) -> Amounts:
    """The sum of two amounts. A zero has no entry, so that equal sums compare equal."""
    total = dict(left)
    for resource, units in right.items():
        total[resource] = total.get(resource, 0) + units
    if 0 not in total.values():
        return total
    return {resource: units for resource, units in total.items() if units != 0}


def subtract(left: Amounts, right: Amounts) -> Amounts:
    """The difference. A zero has no entry: an emptied ledger equals a new one."""
    rest = dict(left)
    for resource, units in right.items():
        rest[resource] = rest.get(resource, 0) - units
    return {resource: units for resource, units in rest.items() if units != 0}


def gate_of(node: Node) -> NodeGate:
    """The gate that mirrors this node."""
    spec, status = node.spec, node.status
    return NodeGate(
        uid=node.metadata.uid,
        phase=status.phase,
        cordoned=spec.cordoned,
        draining=spec.drain is not None,
        taints=spec.taints,
        incarnation=status.incarnation,
        mark=status.mark.number if status.mark is not None else 0,
        region=spec.region,
        zone=spec.zone,
        pool=spec.pool,
        protected_for=spec.protected_for,
        installation=status.installation,
        address=status.address,
        isolation=status.isolation,
    )


def physical_of(node: Node) -> Amounts:
    """The amounts that are there for work: capacity less what the system reserves."""
    total = {Resource.REPLICAS.value: REPLICAS_PER_NODE}
    for resource, value in node.spec.capacity.items():
        # What is reserved is a demand: rounded up, or the fraction would be allocated to work.
        kept = demand(resource, node.spec.reserved.get(resource, 0))
        total[resource] = max(0, capacity(resource, value) - kept)
    return total


def with_overcommit(resource: str, there: int, percent: int) -> int:
    """What may be allocated of this amount under an overcommit.

    Work that lacks memory is killed, so a tenth of the memory is headroom: the factor applies to
    the rest, and one that gains less than the headroom changes nothing.
    """
    if resource == Resource.MEMORY and percent > 100:
        headroom = -(-there * MEMORY_HEADROOM_PERCENT // 100)
        return max(there, (there - headroom) * percent // 100)
    return there * percent // 100


def allocatable_of(node: Node) -> Amounts:
    """The allocatable amounts of a node: the only place where an overcommit is applied."""
    percents = node.spec.overcommit
    return {
        resource: with_overcommit(resource, there, percents.get(resource, 100))
        for resource, there in physical_of(node).items()
    }


def firm_of(node: Node) -> Amounts:
    """What is there of the resources of which more than that is allocatable."""
    allocatable = allocatable_of(node)
    return {
        resource: there
        for resource, there in physical_of(node).items()
        if allocatable[resource] > there
    }


def mirror_node(node: Node, ledger: NodeLedger | None) -> NodeLedger:
    """The ledger after a change of the node: new gate and capacity, the same usage and owners.

    A device that disappears while it is owned or promised keeps its slot: its owner is charged
    until proof of stop, and no other work gets the device should it come back.
    """
    before = ledger if ledger is not None else NodeLedger(gate=gate_of(node))
    devices = {
        d.id: DeviceSlot(
            device_class=d.device_class,
            model=d.model,
            memory=capacity(Resource.MEMORY, d.memory),
            numa=d.numa,
            owners=before.devices[d.id].owners if d.id in before.devices else {},
            promised=before.devices[d.id].promised if d.id in before.devices else "",
        )
        for d in node.spec.devices
    }
    for device, slot in before.devices.items():
        if device not in devices and (slot.owners or slot.promised):
            devices[device] = msgspec.structs.replace(slot, absent=True)
    return msgspec.structs.replace(
        before,
        gate=gate_of(node),
        allocatable=allocatable_of(node),
        firm=firm_of(node),
        devices=devices,
        port_share=node.spec.port_share,
    )


def limits_of(quota: Quota) -> TenantLimits:
    """The limits that mirror this quota."""
    spec = quota.spec
    return _limits(
        tuple(spec.hard.items()),
        tuple(spec.reclaimable.items()),
        tuple(spec.borrowing.items()),
        tuple((name, tuple(most.items())) for name, most in spec.priority_classes.items()),
    )


# Creating a replica calls this every time, and a tenant has one quota.
@lru_cache(maxsize=4096)
def _limits(
    hard: _Stated, reclaimable: _Stated, borrowing: _Stated, classes: _Classes
) -> TenantLimits:
    return TenantLimits(
        hard=_read(hard),
        reclaimable=_read(reclaimable),
        borrowing=_read(borrowing),
        classes={name: _read(most) for name, most in classes},
    )


def _read(stated: _Stated) -> Amounts:
    return {name: capacity(name, value) for name, value in stated}


def use_of(use: TenantUse, of: CapacityClass) -> Amounts:
    """The sums of one capacity class. Soft capacity is only expected, so it is never charged."""
    match of:
        case CapacityClass.HARD:
            return use.hard
        case CapacityClass.RECLAIMABLE:
            return use.reclaimable
        case CapacityClass.SOFT:
            return {}
