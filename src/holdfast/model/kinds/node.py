"""Node: a machine that runs work, as its agent registered it and as controllers judge it."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kinds.placement import Taint
from holdfast.model.meta import Condition, Count, Int, Object, Part, Quantity, Timestamp


class NodePhase(StrEnum):
    """What may be believed about a node. Only controller:nodes moves it."""

    READY = "Ready"
    SUSPECT = "Suspect"
    UNKNOWN = "Unknown"
    FENCED = "Fenced"
    LOST = "Lost"


class Device(Part, frozen=True):
    """One device of a node.

    id: unique on the node.
    device_class: the class of device, such as gpu.
    model: the model, such as A100.
    memory: the device's own memory.
    numa: the NUMA node it hangs on.
    """

    id: str
    device_class: str
    model: str = ""
    memory: Quantity = 0
    numa: Count = 0


class Protection(Part, frozen=True):
    """Whom a protected node or pool is for; work must match every list that is not empty.

    tenants: only these tenants.
    priority_classes: only these priority classes.
    """

    tenants: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()


class NodeDrain(Part, frozen=True):
    """Take all work off the node.

    reason: why, for people.
    deadline: after this, disruption budgets no longer hold the drain up.
    """

    reason: str = ""
    deadline: Timestamp | None = None


class NodeSpec(Part, frozen=True):
    """What the machine is, and what its operator wants of it.

    region: where it is; set at registration.
    zone: the failure domain within the region.
    pool: the pool it belongs to.
    capacity: what it has, by resource.
    reserved: what is kept for the system.
    devices: its devices.
    overcommit: by resource, how many per cent of the capacity may be set aside; only cpu may
        exceed 100.
    cordoned: take no new work.
    taints: marks that keep work away unless it tolerates them.
    drain: take all work off.
    protected_for: whom its capacity is kept for.
    cost_per_hour: what it costs, to rank by.
    """

    region: str = ""
    zone: str = ""
    pool: str = "general"
    capacity: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    devices: tuple[Device, ...] = ()
    overcommit: dict[str, Int] = {}
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    drain: NodeDrain | None = None
    protected_for: Protection | None = None
    cost_per_hour: Quantity = 0


class Mark(Part, frozen=True):
    """The committed word that a node is out of contact.

    Fencing it, or clearing it, compares this very mark.

    number: grows with every mark of this node.
    at: when it was committed, by the authority's clock.
    by: the controller that set it.
    epoch: that controller's epoch.
    reason: what it saw.
    """

    number: Count
    at: Timestamp
    by: str = ""
    epoch: Count = 0
    reason: str = ""


class NodeStatus(Part, frozen=True):
    """What was observed.

    phase: what may be believed about the node.
    mark: the committed word that it is out of contact.
    marks: how many marks it ever had.
    incarnation: which life of its agent may report; grows with a registration after a fence.
    agent_version: the version of its agent.
    address: where its agent can be reached.
    boot_id: the boot of the machine.
    installation: which of all agents this life belongs to, by the directory that it keeps.
    images: what is on it already, to rank by.
    last_heartbeat: the last one that was written down; newer ones are kept in memory.
    conditions: each type has one writer.
    """

    phase: NodePhase = NodePhase.READY
    mark: Mark | None = None
    marks: Count = 0
    incarnation: Count = 0
    agent_version: str = ""
    address: str = ""
    boot_id: str = ""
    installation: str = ""
    images: tuple[str, ...] = ()
    last_heartbeat: Timestamp | None = None
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True, kw_only=True, tag="Node"):
    """A machine that runs work.

    spec: what it is and what its operator wants of it.
    status: what was observed.
    """

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
