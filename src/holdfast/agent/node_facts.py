"""The facts about the machine that its agent registers.

The host detects or configures them before it creates the agent; the agent never asks the machine
itself.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.node import Device, Node, NodeSpec, NodeStatus, PortShare
from holdfast.model.kinds.placement import Isolation
from holdfast.model.meta import ObjectMeta, Quantity


def as_seen(node: Node, seen: Node | None) -> Node:
    """The Node to register over `seen`: the registration names the version that it replaces."""
    if seen is None:
        return node
    uid, version = seen.metadata.uid, seen.metadata.resource_version
    metadata = msgspec.structs.replace(node.metadata, uid=uid, resource_version=version)
    return msgspec.structs.replace(node, metadata=metadata)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an agent may set on its Node. The boot comes with `Started`.

    Region, zone, pool, labels and cost count at the first registration only: afterwards the
    operator owns them.
    """

    region: str = ""
    zone: str = ""
    pool: str = "general"
    labels: dict[str, str] = {}
    cost_per_hour: Quantity = 0
    capacity: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    devices: tuple[Device, ...] = ()
    port_share: PortShare | None = None
    images: tuple[str, ...] = ()
    agent_version: str = ""
    address: str = ""
    isolation: Isolation | None = None
    isolation_notes: tuple[str, ...] = ()
    # Tells this agent from another one with the same name; empty if agents cannot be told apart.
    installation: str = ""

    def node(self, name: str, boot: str) -> Node:
        """The Node to register."""
        spec = NodeSpec(
            region=self.region,
            zone=self.zone,
            pool=self.pool,
            cost_per_hour=self.cost_per_hour,
            capacity=self.capacity,
            reserved=self.reserved,
            devices=self.devices,
            port_share=self.port_share,
        )
        status = NodeStatus(
            agent_version=self.agent_version,
            address=self.address,
            boot_id=boot,
            installation=self.installation,
            images=self.images,
            isolation=self.isolation,
            isolation_notes=self.isolation_notes,
        )
        return Node(ObjectMeta(name=name, labels=self.labels), spec=spec, status=status)
