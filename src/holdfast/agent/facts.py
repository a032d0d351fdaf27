"""What the machine is, as its agent presents it to the servers.

The host finds these out (or is told by its configuration) before it makes the agent; the agent
registers them and never asks the machine itself.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.node import Device, Node, NodeSpec, NodeStatus
from holdfast.model.meta import ObjectMeta, Quantity


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a Node that its agent may say. The boot comes with `Started`.

    Region, zone, pool, labels and cost count at the first registration only: afterwards they are
    the operator's.
    """

    region: str = ""
    zone: str = ""
    pool: str = "general"
    labels: dict[str, str] = {}
    cost_per_hour: Quantity = 0
    capacity: dict[str, Quantity] = {}
    reserved: dict[str, Quantity] = {}
    devices: tuple[Device, ...] = ()
    images: tuple[str, ...] = ()
    agent_version: str = ""
    address: str = ""
    # Tells this agent from another one under the same name; nobody is told apart without it.
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
        )
        status = NodeStatus(
            agent_version=self.agent_version,
            address=self.address,
            boot_id=boot,
            installation=self.installation,
            images=self.images,
        )
        return Node(ObjectMeta(name=name, labels=self.labels), spec=spec, status=status)
