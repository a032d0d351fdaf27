"""What would be decided about a replica now: `propose`, on the stored objects of one revision.

`unplaced.py` calls this. It is the function by which schedulers decide, so both say the same of the
same objects. If it finds a place where the scheduler found none, the scheduler's snapshot was
stale.
"""

from __future__ import annotations

import msgspec

from holdfast.explain.evidence import ReplicaFacts, StoredRecords
from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.tenant import Quota
from holdfast.model.quota.charging import QUOTA_NAME, quota_cohort
from holdfast.model.refusal import Reason
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import Instant
from holdfast.propose.decide import Feasibility, could_place
from holdfast.propose.feasibility.outcome import (
    GANG_WAITS,
    NO_NODES,
    BindGang,
    BindReplica,
    PlacementReport,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot, snapshot_of
from holdfast.propose.topology import affinity

OF_QUOTA = frozenset(
    {
        Reason.QUOTA_EXCEEDED.value,
        Reason.COHORT_EXHAUSTED.value,
        Reason.CLAIMED_BY_LENDERS.value,
        Reason.PRIORITY_BUDGET_EXCEEDED.value,
    }
)
# The reasons besides those of filters for which a decision on stored objects lets work wait. Others
# are a scheduler's own, such as a node that it avoids for a moment or a limit of binds in flight:
# whether they still hold is not known here.
_ASKED = OF_QUOTA | {
    NO_NODES,
    GANG_WAITS,
    Reason.TENANT_SUSPENDED.value,
    *(reason.value for reason in affinity.REASONS),
}


class FeasibleNodes(msgspec.Struct, frozen=True):
    """Where the replica would go, by the stored objects.

    now: the decision about it, or if its quota refuses it, the decision without that quota.
    node: the node that would be chosen for it; empty if none has room as it is.
    revision: the last write of that node or its ledger, so the latest that it became feasible.
    count: how many nodes would take it, or how many nodes the members of its gang would get.
    quota: why the tenant's quota refuses it, if it does.
    """

    now: Feasibility
    node: str = ""
    revision: int = 0
    count: int = 0
    quota: PlacementReport | None = None
    quota_revision: int = 0

    @property
    def smallest_change(self) -> str:
        """All that would have to change until it fits."""
        reports = (self.quota, self.now.report)
        changes = [it.smallest_change for it in reports if it is not None and it.smallest_change]
        return ", and ".join(changes)


def find_feasible_nodes(
    facts: ReplicaFacts, now: Instant, verdict_cache: VerdictCache
) -> FeasibleNodes:
    """Decides about the replica as a scheduler would that had seen everything."""
    replica, stored = facts.replica, facts.stored
    view = snapshot_of(stored.by_plural(), stored.revision)
    found, over = could_place(view, replica, now, verdict_cache), None
    if found.report is not None and OF_QUOTA.intersection(found.report.reasons):
        over = found.report
        # A decision stops at the first obstacle, and a person who raises a quota wants to know
        # whether that is enough.
        found = could_place(_without_quota(view, replica.namespace), replica, now, verdict_cache)
    node, count = _node_of(found)
    return FeasibleNodes(
        now=found,
        node=node,
        revision=_revision(stored, node),
        count=count,
        quota=over,
        quota_revision=stored.modified(cohort_key(stored, replica.namespace)),
    )


def asked_again(verdict_cache: VerdictCache) -> frozenset[str]:
    """The reasons that a decision on stored objects checks again."""
    return _ASKED | verdict_cache.reasons()


def cohort_key(stored: StoredRecords, tenant: str) -> str:
    """The key of the quota ledger that applies to a tenant."""
    quota = stored.object(Quota, tenant, QUOTA_NAME)
    return keys.quota_ledger(quota_cohort(quota, tenant))


def _without_quota(view: FleetSnapshot, tenant: str) -> FleetSnapshot:
    quota = view.quota(tenant)
    return view.without(quota) if quota is not None else view


def _node_of(found: Feasibility) -> tuple[str, int]:
    """The node that would be chosen, and the number of nodes."""
    match found.decision:
        case BindReplica(node=node, candidates=candidates):
            return node, candidates
        case BindGang(places=places):
            nodes = list(dict.fromkeys(place.node for _, place in places))
            return nodes[0], len(nodes)
    return "", 0


def _revision(stored: StoredRecords, node: str) -> int:
    if not node:
        return 0
    key = keys.object_key(kind_of_struct(Node), "", node)
    return max(stored.modified(key), stored.modified(keys.node_ledger(node)))
