"""What one decision looks at: the fleet, the objects that rules need, and their age.

The scheduler makes one per round; tests and what-if make their own. Nothing in it changes during a
decision.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota, Tenant
from holdfast.model.ledger import NodeGate
from holdfast.model.placement.fit import Demand, demand_of
from holdfast.model.refusal import Refusal
from holdfast.observe.node_columns import Codes, NodeColumns
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.queue.quota_usage import QuotaUsage

# The default names: of a tenant's quota, and of the priority class.
QUOTA_NAME = "default"
PRIORITY_NAME = "default"


class Objects(Protocol):
    """Where to look up objects. A `Cache` is one."""

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        ...


class PendingWork(msgspec.Struct, frozen=True):
    """A replica that needs a node, with what the rules about nodes need repeatedly.

    `units` is its demand of each resource by column number, except devices, which are assigned one
    by one. `tables` caches the results of rules for each different place, taint and so on.
    """

    replica: Replica
    demand: Demand
    tenant: Tenant | None
    units: tuple[tuple[int, int], ...] = ()
    tables: dict[str, Codes] = {}

    @property
    def namespace(self) -> str:
        return self.replica.namespace

    @property
    def placement(self) -> Placement:
        return self.replica.spec.template.placement

    @property
    def priority_class(self) -> str:
        return self.replica.spec.template.priority_class

    @property
    def budget(self) -> str:
        """The priority class whose budget is charged."""
        return budget_of(self.replica)


class View(msgspec.Struct, frozen=True):
    """See the module's docstring. `policy` is the policy in force, if there is one.

    `rules` grows when tenants, regions, quotas or priority classes change: results computed before
    that are invalid. `quota_usage` is what tenants use of their quotas.
    """

    fleet: Fleet
    objects: Objects
    revision: int = 0
    age_ms: int = 0
    policy: SchedulerPolicy | None = None
    rules: int = 0
    quota_usage: QuotaUsage | None = None

    @property
    def columns(self) -> NodeColumns:
        return self.fleet.columns

    def work(self, replica: Replica) -> PendingWork:
        """A replica with its demand and its tenant."""
        tenant: Tenant | None = self.objects.get("tenants", "", replica.namespace)
        demand = demand_of(replica.spec.template)
        owned = frozenset(device.device_class for device in demand.devices)
        units = tuple(self.columns.units(demand.amounts, owned))
        return PendingWork(replica, demand, tenant, units)

    def region(self, name: str) -> Region | None:
        found: Region | None = self.objects.get("regions", "", name) if name else None
        return found

    def quota(self, tenant: str) -> Quota | None:
        found: Quota | None = self.objects.get("quotas", tenant, QUOTA_NAME)
        return found

    def priority_class(self, name: str) -> PriorityClass | None:
        found: PriorityClass | None = self.objects.get("priorityclasses", "", name or PRIORITY_NAME)
        return found

    def capacity_class(self, priority_class: str) -> CapacityClass:
        """Whether work of this class is charged as committed or as reclaimable capacity."""
        return capacity_class(self.objects, priority_class)


def budget_of(replica: Replica) -> str:
    """The priority class whose budget a replica is charged to: the default if it names none."""
    return replica.spec.template.priority_class or PRIORITY_NAME


def capacity_class(objects: Objects, priority_class: str) -> CapacityClass:
    """The same as `View.capacity_class`, for any source of objects."""
    name = priority_class or PRIORITY_NAME
    found: PriorityClass | None = objects.get("priorityclasses", "", name)
    return found.spec.capacity_class if found is not None else CapacityClass.HARD


class Candidate(msgspec.Struct, frozen=True):
    """One node in one decision; `shunned` is why it is avoided at the moment, if it is."""

    site: NodeState
    gate: NodeGate
    region: Region | None
    shunned: Refusal | None = None


def policy_in_force(policies: list[SchedulerPolicy]) -> SchedulerPolicy | None:
    """The policy that applies to all work; if several are active, the first by name."""
    active = [policy for policy in policies if policy.spec.stage is PolicyStage.ACTIVE]
    return min(active, key=lambda policy: policy.name, default=None)
