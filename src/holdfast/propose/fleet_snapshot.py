"""A snapshot with the fleet: what a decision about nodes looks at.

The scheduler makes one per round from the fleet that it keeps up to date; explain and what-if build
theirs from objects with `snapshot_of`. A hypothesis copies the columns and applies the difference,
so that `propose` answers for a fleet that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import msgspec

from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import PolicyStage, SchedulerPolicy
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota, Tenant
from holdfast.model.meta import Object
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.placement.fit import Demand, demand_of
from holdfast.model.quota.charging import QUOTA_NAME, budget_of, capacity_class_of
from holdfast.model.quota.ledger import Amounts, NodeGate
from holdfast.model.refusal import Refusal
from holdfast.observe.cache import ObjectChange
from holdfast.observe.node_columns import Codes, NodeColumns
from holdfast.observe.snapshot import Objects, ObjectTable, Snapshot
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.queue.quota_usage import QuotaUsage

# The kinds that the fleet is built from, in the order in which it receives them.
_PLACES = ("nodes", "reservations", "replicas")
# A change of one of these invalidates what was computed for a class of work.
RULES = ("tenants", "regions", "quotas", "priorityclasses")


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
        return budget_of(self.priority_class)


class FleetSnapshot(Snapshot, frozen=True, kw_only=True):
    """See the module's docstring. `policy` is the policy in force, if there is one.

    `rules` grows when tenants, regions, quotas or priority classes change: results computed before
    that are invalid. `quota_usage` is what tenants use of their quotas.
    """

    fleet: Fleet
    policy: SchedulerPolicy | None = None
    rules: int = 0
    quota_usage: QuotaUsage | None = None
    # Rows that the work of this decision must leave to a job with a reserved start.
    closed: tuple[int, ...] = ()

    @property
    def columns(self) -> NodeColumns:
        return self.fleet.columns

    def work(self, replica: Replica) -> PendingWork:
        """A replica with its demand and its tenant."""
        tenant: Tenant | None = self.get("tenants", "", replica.namespace)
        demand = demand_of(replica.spec.template)
        owned = frozenset(device.device_class for device in demand.devices)
        units = tuple(self.columns.units(demand.amounts, owned))
        return PendingWork(replica, demand, tenant, units)

    def region(self, name: str) -> Region | None:
        found: Region | None = self.get("regions", "", name) if name else None
        return found

    def quota(self, tenant: str) -> Quota | None:
        found: Quota | None = self.get("quotas", tenant, QUOTA_NAME)
        return found

    def capacity_class(self, priority_class: str) -> CapacityClass:
        """Whether work of this class is charged as committed or as reclaimable capacity."""
        found: PriorityClass | None = self.get("priorityclasses", "", budget_of(priority_class))
        return capacity_class_of(found)

    def only(self, node: str, *, is_empty: bool = False) -> Self:
        """The same, if there were only this node, with what is settled on it or empty."""
        return msgspec.structs.replace(
            self, fleet=self.fleet.only(node, is_empty=is_empty), closed=()
        )

    def only_without(self, node: str, gone: Iterable[str]) -> Self:
        """The same, if there were only this node, and these owners held nothing on it."""
        return msgspec.structs.replace(self, fleet=self.fleet.only_without(node, gone), closed=())

    def _suppose(self, changes: Sequence[ObjectChange]) -> Self:
        supposed = super()._suppose(changes)
        fleet = self.fleet.copy()
        usage = self.quota_usage.copy() if self.quota_usage is not None else None
        policy = self.policy
        for change in changes:
            fleet.notice(change)
            if change.plural == "schedulerpolicies":
                policy = policy_in_force(supposed.all("schedulerpolicies"))
            elif change.plural == "quotas" and usage is not None:
                limit_tenant(usage, change.object.namespace, supposed, fleet)
            elif change.plural in ("replicas", "reservations") and usage is not None:
                usage.notice(change.before, change.after)
        return msgspec.structs.replace(supposed, fleet=fleet, quota_usage=usage, policy=policy)


def snapshot_of(
    objects: Mapping[str, Iterable[Object]],
    revision: int = 0,
    age_ms: int = 0,
    age_max_ms: int = OBSERVATION_AGE_MAX_MS,
) -> FleetSnapshot:
    """The snapshot of all these objects, by plural."""
    table, fleet, usage = ObjectTable(objects), Fleet(), QuotaUsage()
    for plural in _PLACES:
        for obj in table.all(plural):
            fleet.notice(ObjectChange(plural, None, obj))
    for quota in table.all("quotas"):
        limit_tenant(usage, quota.namespace, table, fleet)
    policy = policy_in_force(table.all("schedulerpolicies"))
    return FleetSnapshot(
        table, revision, age_ms, age_max_ms, fleet=fleet, policy=policy, quota_usage=usage
    )


# What is charged to quotas ------------------------------------------------------------------------


def limit_tenant(usage: QuotaUsage, tenant: str, objects: Objects | Snapshot, fleet: Fleet) -> None:
    """Apply the quota of a tenant; with the first one of all, count everything."""
    if not usage.limit(tenant, objects.get("quotas", tenant, QUOTA_NAME)):
        return
    usage.recount(objects.all("replicas"), objects.all("reservations"))
    for uid, assumed in fleet.all_assumed():
        replica: Replica | None = objects.get("replicas", *assumed.key)
        if replica is not None and replica.metadata.uid == uid:
            charge_assumed(usage, replica, assumed.held.charge, objects)


def charge_assumed(
    usage: QuotaUsage, replica: Replica, charge: Amounts, objects: Objects | Snapshot
) -> None:
    """Count a placement that is only assumed."""
    if usage.is_counting:
        budget = budget_of(replica.spec.template.priority_class)
        of = capacity_class_of(objects.get("priorityclasses", "", budget))
        usage.assume(replica.metadata.uid, replica.namespace, of, charge, budget)


class Candidate(msgspec.Struct, frozen=True):
    """One node in one decision; `shunned` is why it is avoided at the moment, if it is."""

    site: NodeState
    gate: NodeGate
    region: Region | None
    shunned: Refusal | None = None


def policy_in_force(policies: Iterator[SchedulerPolicy]) -> SchedulerPolicy | None:
    """The policy that applies to all work; if several are active, the first by name."""
    active = [policy for policy in policies if policy.spec.stage is PolicyStage.ACTIVE]
    return min(active, key=lambda policy: policy.name, default=None)
