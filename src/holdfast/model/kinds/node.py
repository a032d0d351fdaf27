"""Node: a machine that runs work, as registered by its agent and observed by controllers."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import (
    OPERATORS,
    Kind,
    KindRules,
    Unwritten,
    Writers,
    count,
    join_map,
    moment,
    text,
)
from holdfast.model.kinds.placement import Isolation, Taint
from holdfast.model.lifecycle import Actor
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
    """The health of a node. Only controller:nodes changes it."""

    READY = "Ready"
    SUSPECT = "Suspect"
    UNKNOWN = "Unknown"
    FENCED = "Fenced"
    LOST = "Lost"


# The phases of a node that is given up: what it may run no longer counts, except work that keeps
# running when cut off.
GONE = (NodePhase.FENCED, NodePhase.LOST)
# The condition that says how far a drain is.
DRAINED = "Drained"
# The class of devices that GPUs have.
GPU = "gpu"


class Device(Part, frozen=True):
    """One device of a node.

    id: unique on the node.
    device_class: the class of device, such as gpu.
    model: the model, such as A100.
    memory: the device's own memory.
    numa: the NUMA node it is attached to.
    """

    list_keys = ("id",)

    id: str
    device_class: str
    model: str = ""
    memory: Quantity = 0
    numa: Count = 0


class Protection(Part, frozen=True):
    """The work that a protected node or pool accepts; it must match every non-empty list.

    tenants: only these tenants.
    priority_classes: only these priority classes.
    """

    tenants: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()


class PortShare(Part, frozen=True):
    """The fixed ports of a node that shares its machine's network with other nodes.

    Each port belongs to the node whose index is the port number modulo `of`.

    index: the index of this node among them, from 0.
    of: the number of nodes.
    """

    index: Count
    of: Count

    def has(self, port: int) -> bool:
        """Whether a port belongs to this node."""
        return port % self.of == self.index


class NodeDrain(Part, frozen=True):
    """Evicts all work from the node.

    reason: why, for users.
    deadline: after this, disruption budgets no longer delay the drain.
    """

    reason: str = ""
    deadline: Timestamp | None = None


class NodeSpec(Part, frozen=True):
    """The properties of the machine, and its operator's settings.

    region: where it is; set at registration.
    zone: the failure domain within the region.
    pool: the pool it belongs to.
    capacity: its capacity, by resource.
    reserved: what is reserved for the system, by resource.
    devices: its devices.
    port_share: which fixed ports it offers; all of them unless it shares its machine's network.
    overcommit: the allocatable percentage of the capacity, by resource; only cpu and memory may
        exceed 100. A tenth of the memory is headroom, to which a factor above 100 does not apply.
    cordoned: take no new work.
    taints: exclude work that does not tolerate them.
    drain: evict all work.
    protected_for: the only work that it accepts.
    cost_per_hour: its cost, for ranking.
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
    """The committed statement that a node is out of contact.

    Fencing the node or clearing the mark compares its number.

    number: grows with every mark of this node.
    at: when it was committed, by the authority's clock.
    by: the controller that set it.
    epoch: that controller's epoch.
    reason: what that controller observed.
    """

    number: Count
    at: Timestamp
    by: str = ""
    epoch: Count = 0
    reason: str = ""


class HeldTiming(Part, frozen=True):
    """The greatest fence timing that work on a node may use; its fence waits for all of it.

    number: grows with every change.
    ack_window_ms: the greatest age of a read by which a renewal is acknowledged.
    self_stop_after_ms: how long work continues without a renewal.
    grace_ms: how long work may then take to stop.
    kill_bound_ms: how long a kill may take.
    drift_ppm: the greatest clock drift, in millionths.
    margin_ms: a safety margin.
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

    phase: the health of the node.
    mark: the committed statement that it is out of contact.
    marks: how many marks it ever had.
    incarnation: the incarnation that may report; grows with a registration after a fence.
    agent_version: the version of its agent.
    address: where its agent can be reached.
    boot_id: the boot of the machine.
    installation: the id of its agent's data directory.
    images: the images on it, for ranking; one that was pulled for a tenant follows its name and a
        space.
    timing: the greatest fence timing that work on it may use; its fence waits for it.
    isolation: how it isolates the work of tenants; absent if its agent does not report it.
    isolation_notes: why its isolation is not stronger, and what its operator should know.
    last_heartbeat: when its agent last renewed, as the server that answers has heard. It is not
        stored, and a heartbeat alone is no event of a watch.
    used: what its work used when its agent last sampled it, by resource; not stored either.
    used_at: when that was.
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
    used: dict[str, str] = {}
    used_at: Timestamp | None = None
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True, kw_only=True, tag="Node"):
    """A machine that runs work.

    spec: its properties and its operator's settings.
    status: what was observed.
    """

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


def _phase(node: Node) -> str:
    gates = [node.status.phase.value]
    if node.spec.cordoned:
        gates.append("Cordoned")
    if node.spec.drain is not None:
        gates.append("Draining")
    return ",".join(gates)


def _node_rules() -> KindRules:
    from holdfast.model.validation import node

    return KindRules(node.node, node.node_status, node.node_update)


NODE_KIND = Kind(
    Node,
    "nodes",
    rules=_node_rules,
    writers=Writers(
        spec=OPERATORS,
        conditions={"Ready": Actor.NODES, "Pressure": Actor.AGENT, DRAINED: Actor.DRAIN},
    ),
    columns=(
        text("Phase", _phase, "what may be believed about it, and whether it takes work"),
        text("Region", lambda o: o.spec.region, "where it is"),
        text("Zone", lambda o: o.spec.zone, "its failure domain"),
        text("Pool", lambda o: o.spec.pool, "the pool it belongs to"),
        text("Capacity", lambda o: join_map(o.spec.capacity), "what it has", wide=True),
        text("Used", lambda o: join_map(o.status.used) or "-", "what its work uses", wide=True),
        count("Devices", lambda o: len(o.spec.devices), "how many devices it has"),
        text("Address", lambda o: o.status.address or "-", "of its agent", wide=True),
        text("Version", lambda o: o.status.agent_version or "-", "of its agent", wide=True),
        moment("Heartbeat", lambda o: o.status.last_heartbeat, "when its agent renewed", wide=True),
    ),
    namespaced=False,
    short_names=("no",),
    dotted=True,
    immutable=("spec.region", "spec.zone"),
    computed=("last_heartbeat", "used", "used_at"),
    unwritten=Unwritten((), ("Ready", "Pressure")),
)
