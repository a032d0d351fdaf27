"""Which nodes would take a replica now, by the rules that the commit enforces.

`unplaced.py` calls this. A scheduler decides on its snapshot; this reads the stored ledgers. If a
node would take a replica for which the scheduler found no place, the snapshot was stale. Spread and
affinity are not checked, because the commit never refuses for them.
"""

from __future__ import annotations

import msgspec

from holdfast.explain.evidence import ReplicaFacts, StoredRecords
from holdfast.model import keys
from holdfast.model.allowance import quota_refusal
from holdfast.model.charging import QUOTA_NAME, budget_of, capacity_class_of, quota_cohort
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.ledger import NodeLedger, QuotaLedger
from holdfast.model.placement.fit import claim, demand_of
from holdfast.model.placement.placement_rules import (
    labels_of,
    neighbour_refusal,
    place_refusal,
    selector_refusal,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.propose.feasibility.outcome import NO_NODES

# The reasons that are checked again here. For a node that was ruled out by another reason, it is
# unknown whether it still would be.
ASKED = frozenset(
    {
        NO_NODES,
        Reason.TENANT_SUSPENDED.value,
        Reason.QUOTA_EXCEEDED.value,
        Reason.COHORT_EXHAUSTED.value,
        Reason.PRIORITY_BUDGET_EXCEEDED.value,
        Reason.NODE_NOT_READY.value,
        Reason.NODE_DRAINING.value,
        Reason.NODE_CORDONED.value,
        Reason.TAINTED.value,
        Reason.REGION_MISMATCH.value,
        Reason.ZONE_MISMATCH.value,
        Reason.POOL_MISMATCH.value,
        Reason.SELECTOR_MISMATCH.value,
        Reason.RESIDENCY_FORBIDDEN.value,
        Reason.RESIDENCY_UNKNOWN.value,
        Reason.TENANCY_FORBIDDEN.value,
        Reason.PROTECTED_CAPACITY.value,
        Reason.ISOLATION_TOO_WEAK.value,
        Reason.USER_NOT_ALLOWED.value,
        Reason.HOST_NETWORK_NOT_ALLOWED.value,
        Reason.IMAGE_NOT_ALLOWED.value,
        Reason.NODE_OF_ANOTHER_TENANT.value,
        Reason.NODE_FULL.value,
        Reason.DEVICE_TAKEN.value,
        Reason.DEVICE_MISSING.value,
        Reason.PORT_TAKEN.value,
        Reason.PORT_NOT_OFFERED.value,
    }
)


class FeasibleNodes(msgspec.Struct, frozen=True):
    """The nodes that would take the replica, by the stored ledgers.

    node: the first of them by name; empty if there is none.
    revision: the last write of that node or its ledger, so the latest that it became feasible.
    count: how many nodes would take it.
    quota: why the tenant's quota refuses it, if it does.
    """

    node: str = ""
    revision: int = 0
    count: int = 0
    quota: Refusal | None = None
    quota_revision: int = 0


def find_feasible_nodes(facts: ReplicaFacts) -> FeasibleNodes:
    """Finds the nodes that would take the replica now."""
    replica, stored = facts.replica, facts.stored
    cohort = cohort_key(stored, replica.namespace)
    found = [it for it in stored.all(Node) if _takes(stored, replica, it)]
    first = min(found, key=lambda it: it.name, default=None)
    return FeasibleNodes(
        node=first.name if first is not None else "",
        revision=_revision(stored, first) if first is not None else 0,
        count=len(found),
        quota=_quota(stored, replica, cohort),
        quota_revision=stored.modified(cohort),
    )


def cohort_key(stored: StoredRecords, tenant: str) -> str:
    """The key of the quota ledger that applies to a tenant."""
    quota = stored.object(Quota, tenant, QUOTA_NAME)
    return keys.quota_ledger(quota_cohort(quota, tenant))


def _quota(stored: StoredRecords, replica: Replica, cohort: str) -> Refusal | None:
    name = budget_of(replica.spec.template.priority_class)
    found = stored.object(PriorityClass, "", name)
    of = capacity_class_of(found)
    ledger: QuotaLedger = stored.get(cohort) or QuotaLedger()
    amounts = demand_of(replica.spec.template).amounts
    return quota_refusal(ledger, replica.namespace, of, amounts, name)


def _takes(stored: StoredRecords, replica: Replica, node: Node) -> bool:
    ledger: NodeLedger | None = stored.get(keys.node_ledger(node.name))
    if ledger is None:
        return False
    template, gate = replica.spec.template, ledger.gate
    region = stored.object(Region, "", gate.region) if gate.region else None
    tenant = stored.object(Tenant, "", replica.namespace)
    refusal = (
        place_refusal(gate, template, replica.namespace, tenant, region)
        or neighbour_refusal(gate, ledger.tenants, replica.namespace)
        or selector_refusal(labels_of(node), template.placement)
    )
    return refusal is None and not isinstance(claim(ledger, demand_of(template)), Refusal)


def _revision(stored: StoredRecords, node: Node) -> int:
    key = keys.key_of(node)
    return max(stored.modified(key), stored.modified(keys.node_ledger(node.name)))
