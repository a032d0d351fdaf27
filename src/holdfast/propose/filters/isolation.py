"""Isolation: whether a node isolates tenants as strongly as required, and which tenants it has.

An agent that restarted may offer weaker isolation than an old snapshot shows, and another tenant
may have come to a node that is for one tenant at a time; then the commit refuses the bind.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Runtime
from holdfast.model.placement.placement_rules import (
    isolation_refusal,
    isolation_wanted,
    neighbour_refusal,
    policy_refusal,
)
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.value_tables import code_of, table_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (
    Reason.ISOLATION_TOO_WEAK,
    Reason.USER_NOT_ALLOWED,
    Reason.HOST_NETWORK_NOT_ALLOWED,
    Reason.IMAGE_NOT_ALLOWED,
)
NEIGHBOUR_REASONS = (Reason.NODE_OF_ANOTHER_TENANT,)
_ALONE = NodeGate(uid="", isolation=Isolation.NONE)


def isolation(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node's isolation is strong enough, and the tenant's policy allows the rest."""
    return _refusal(candidate.gate.isolation, work)


def isolation_codes(
    work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level
) -> Codes | None:
    """The same for many nodes: evaluated once for each isolation level."""
    template = work.replica.spec.template
    is_plain = not template.user and template.runtime is Runtime.PROCESS
    if _wanted(work) is Isolation.NONE and is_plain:
        return None

    def code_for(have: Isolation | None) -> int:
        return code_of(_refusal(have, work), REASONS)

    columns = view.columns
    return table_of(work, "isolation", columns.isolations.values, code_for)[columns.isolation[rows]]


def _refusal(have: Isolation | None, work: PendingWork) -> Refusal | None:
    template = work.replica.spec.template
    return isolation_refusal(have, _wanted(work), template.runtime) or policy_refusal(
        have, template, work.tenant
    )


def _wanted(work: PendingWork) -> Isolation:
    return isolation_wanted(work.replica.spec.template, work.tenant)


def neighbours(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node is for one tenant at a time, and has work of another one."""
    return neighbour_refusal(candidate.gate, candidate.site.ledger.tenants, work.namespace)


def neighbour_codes(
    work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level
) -> Codes | None:
    """The same for many nodes. Few planes have such nodes, and only those rows are examined."""
    columns = view.columns
    alone = columns.isolations.known(Isolation.NONE)
    if alone is None or level is Level.EMPTY:
        return None
    there = np.arange(columns.count)[rows]
    codes = np.zeros(len(there), np.uint8)
    for place in np.flatnonzero(columns.isolation[rows] == alone):
        tenants = columns.tenants.get(int(there[place]), {})
        refusal = neighbour_refusal(_ALONE, tenants, work.namespace)
        codes[place] = code_of(refusal, NEIGHBOUR_REASONS)
    return codes
