"""Ledgers: the few sums that decide whether something is still free.

A ledger is its own record in the store. Every transaction that takes or returns something compares
and writes the ledger, so two of them can never both take the last unit. Ledgers hold sums and
owners only; the proof of a charge is the replica or reservation that carries it, and a checker can
always add those up again.

What a decision needs to know about a node or a tenant besides sums (the *gate*, the limits) is
mirrored here by the very transaction that changes it, so that ordinary status writes never get in
the way of a bind.
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

# A node's slots for replicas when it does not state them itself; Kubernetes' own default.
REPLICAS_PER_NODE = 110
# A workload has so many pages of places at most: all of them can be deleted in one transaction.
PLACES_PAGES = 64
PLACES_PER_PAGE = 1_024

Amounts = dict[str, int]
# Limits as a quota states them.
_Stated = tuple[tuple[str, Quantity], ...]
_Classes = tuple[tuple[str, _Stated], ...]


class NodeGate(Part, frozen=True):
    """What the ledger knows of its node: whether it takes work, and in which life of its agent."""

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
    """A device: what it is, and how much of it belongs to whom, in thousandths.

    `absent` means that the node no longer lists it: nobody gets any more of it.
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
        """What nobody owns."""
        return MILLI - sum(self.owners.values())

    def free(self, holder: str = "") -> int:
        """What `holder` may still take; what is promised to a reservation is free for it only."""
        if self.absent or self.promised not in ("", holder):
            return 0
        return self.left


class NodeLedger(Part, frozen=True):
    """What a node has, and what is taken of it.

    A preemption stops its victims first and binds later. Until then its share is `promised` to a
    reservation, and what the victims still hold is `leaving`; nobody else gets the difference.
    `tenants` is how many replicas and claims of each tenant hold something of it.
    """

    gate: NodeGate
    allocatable: Amounts = {}
    used: Amounts = {}
    devices: dict[str, DeviceSlot] = {}
    ports: dict[str, str] = {}
    promised: dict[str, Amounts] = {}
    promised_ports: dict[str, str] = {}
    leaving: Amounts = {}
    # Whether it was found to disagree with the objects: nothing more is taken until it is repaired.
    quarantined: bool = False
    port_share: PortShare | None = None
    tenants: Amounts = {}

    def offers(self, port: str) -> bool:
        """Whether a fixed port such as TCP/80 is this node's to give, taken or not."""
        return self.port_share is None or self.port_share.has(int(port.partition("/")[2]))

    def free(self, resource: str, holder: str = "") -> int:
        """What `holder` may still take of a resource, after what is promised to others."""
        rest = self.allocatable.get(resource, 0) - self.used.get(resource, 0)
        if not self.promised:
            return rest
        others = sum(a.get(resource, 0) for who, a in self.promised.items() if who != holder)
        return rest - max(0, others - self.leaving.get(resource, 0))


class TenantLimits(Part, frozen=True):
    """A tenant's limits inside its cohort's ledger, in internal units.

    What is not named is not limited. `classes` are the budgets of priority classes.
    """

    hard: Amounts = {}
    reclaimable: Amounts = {}
    borrowing: Amounts = {}
    classes: dict[str, Amounts] = {}


class TenantUse(Part, frozen=True):
    """What a tenant has charged, by class of capacity, and the same again by priority class.

    A priority class is counted whether it has a budget or not: a budget that is set later must
    find what is charged already.
    """

    hard: Amounts = {}
    reclaimable: Amounts = {}
    classes: dict[str, Amounts] = {}


class QuotaLedger(Part, frozen=True):
    """Limits and sums of all tenants of one cohort."""

    limits: dict[str, TenantLimits] = {}
    used: dict[str, TenantUse] = {}
    # As of a node's ledger.
    quarantined: bool = False


class ObjectsLedger(Part, frozen=True):
    """How many objects a tenant has, by plural, how many bytes were written into all of them, and
    how many replicas its workloads want together, for its caps. `model/weights.py` says what
    counts of an object.
    """

    counts: Amounts = {}
    bytes: int = 0
    wanted: int = 0


class DisruptionLedger(Part, frozen=True):
    """How many replicas one workload has, and how many of them may be missing.

    `replicas` is how many objects there are, `healthy` how many of them do not count as missing.
    These are counts and no names, so that a birth costs the same however many there are; whether
    one replica counts is said by itself (`model/placement/disruption.py`). `allowed` is None where
    the workload states no budget, and `desired` where no count says how many there should be.
    `type` is the workload's. `pages` are those of its places ledger that there are.
    """

    allowed: int | None = None
    replicas: int = 0
    desired: int | None = None
    pages: tuple[int, ...] = ()
    healthy: int = 0
    type: WorkloadType = WorkloadType.SERVICE


class PlacesLedger(Part, frozen=True):
    """The highest incarnation at each of some places of a workload, of those whose object is gone.

    What is still there says so itself, so births only read this: an object that goes leaves its
    incarnation here. All pages of a workload go with it.
    """

    reached: dict[int, int] = {}

    def at(self, ordinal: int) -> int:
        """The highest incarnation that a place has lost; -1 if none."""
        return self.reached.get(ordinal, -1)


def places_page(ordinal: int) -> int:
    """The page that a place is on. Those that are born together are mostly on one."""
    return ordinal // PLACES_PER_PAGE % PLACES_PAGES


class PoolsLedger(Part, frozen=True):
    """All protected pools of all regions, so that admission need not read every region."""

    protected: dict[str, dict[str, Protection]] = {}


class GrantLedger(Part, frozen=True):
    """What the global plane lets this region spend for a tenant, and until when."""

    serial: int = 0
    expires: Timestamp | None = None
    budgets: dict[str, Amounts] = {}
    used: dict[str, Amounts] = {}


def add(left: Amounts, right: Amounts) -> Amounts:
    """The sum of two amounts. Nothing of a resource is no entry, so that equal sums are equal."""
    total = dict(left)
    for resource, units in right.items():
        total[resource] = total.get(resource, 0) + units
    if 0 not in total.values():
        return total
    return {resource: units for resource, units in total.items() if units != 0}


def subtract(left: Amounts, right: Amounts) -> Amounts:
    """What is left. What comes to nothing disappears: an emptied ledger equals a new one."""
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


def allocatable_of(node: Node) -> Amounts:
    """What may be set aside here: capacity less what the system keeps, times the overcommit."""
    total = {Resource.REPLICAS.value: REPLICAS_PER_NODE}
    for resource, value in node.spec.capacity.items():
        # What is kept is a demand: rounded up, or the fraction would be promised to others.
        kept = demand(resource, node.spec.reserved.get(resource, 0))
        percent = node.spec.overcommit.get(resource, 100)
        total[resource] = max(0, capacity(resource, value) - kept) * percent // 100
    return total


def mirror_node(node: Node, ledger: NodeLedger | None) -> NodeLedger:
    """The node's ledger after a change of the node: new gate and capacity, the same use and owners.

    A device that disappears while it has an owner, or is promised to one, keeps its slot: its owner
    is charged until proof of stop, and nobody else is put on it should it come back.
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


# Every birth asks, and a tenant has one quota.
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
    """The sums of one class. Soft capacity is only expected, so nothing is ever charged to it."""
    match of:
        case CapacityClass.HARD:
            return use.hard
        case CapacityClass.RECLAIMABLE:
            return use.reclaimable
        case CapacityClass.SOFT:
            return {}
