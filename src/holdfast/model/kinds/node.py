"""Node: a machine that runs work, as its agent registered it and as controllers judge it."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kinds.placement import Isolation, Taint
from holdfast.model.meta import (
    Condition,
    Count,
    Int,
    Millis,
    Object,
    Part,
    Quantity,
    Revision,
    Timestamp,
)


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


class PortShare(Part, frozen=True):
    """Which fixed ports a node offers that has its machine's network in common with other nodes.

    Each port belongs to one of them: the one whose index is the remainder of port and `of`.

    index: which of those nodes this one is, from 0.
    of: how many they are.
    """

    index: Count
    of: Count

    def has(self, port: int) -> bool:
        """Whether a port belongs to this node."""
        return port % self.of == self.index


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
    port_share: which fixed ports it offers; all of them unless it shares its machine's network.
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
    port_share: PortShare | None = None
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


class HeldTiming(Part, frozen=True):
    """The greatest times that anything on a node may hold; its fence waits for all of them.

    number: grows with every change.
    ack_window_ms: how old a read may be by which a renewal is acknowledged.
    self_stop_after_ms: how long work runs on without a renewal.
    grace_ms: how long work may take to stop then.
    kill_bound_ms: how long a kill may take.
    drift_ppm: by how much clocks may run wrong, in millionths.
    margin_ms: what is added to all of it.
    fence_after_ms: how long a fence waits after the mark was seen.
    """

    number: Revision = 0
    ack_window_ms: Millis = 0
    self_stop_after_ms: Millis = 0
    grace_ms: Millis = 0
    kill_bound_ms: Millis = 0
    drift_ppm: Count = 0
    margin_ms: Millis = 0
    fence_after_ms: Millis = 0


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
    timing: the greatest times that work on it may hold; its fence waits for these.
    isolation: how it keeps the work of tenants apart; absent where its agent does not say.
    isolation_notes: what keeps it from more, and what its operator should know of it.
    last_heartbeat: when its agent last renewed, as the server that answers has heard. It is not
        stored, and a heartbeat alone is no event of a watch.
    conditions: each type has one writer; Ready and Pressure are not written yet.
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
    timing: HeldTiming | None = None
    isolation: Isolation | None = None
    isolation_notes: tuple[str, ...] = ()
    last_heartbeat: Timestamp | None = None
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True, kw_only=True, tag="Node"):
    """A machine that runs work.

    spec: what it is and what its operator wants of it.
    status: what was observed.
    """

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
