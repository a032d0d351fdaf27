"""Filters: whether a node can take a replica at all. One file each, in the order below.

Each applies the same rule of the model as the commit, so it can only be wrong by looking at an old
snapshot. It exists twice: for one node, to give the reason as text, and for many nodes at once, as
codes; a property test checks that both agree. The order goes from cheap and permanent rules to
expensive and transient ones: a node is counted under the first reason that rules it out, and the
node that passed most filters is the nearest miss.

Rules about where other replicas are (`propose/topology/affinity.py`) come after all of these.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model.refusal import Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters import (
    free_resources,
    isolation,
    labels,
    readiness,
    reserved_nodes,
    residency,
    shunned,
    site,
    taints,
)
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

Rule = Callable[[PendingWork, Candidate], Refusal | None]
# For each row 0, or the number of the reason from 1; None where the filter rules out no node.
Judge = Callable[[PendingWork, FleetSnapshot, Rows, Level], Codes | None]


class Filter(msgspec.Struct, frozen=True):
    """A rule with its name, for one node and for many.

    `passes` says that what it refuses may be allowed later on the same node, without a change of
    the node itself. `by_load` says that its result depends on the load of a node, and not only on
    the node; `is_exact` that placing more of the same work changes it by sums that are known in
    advance, or not at all. `reasons` are the reasons of its refusals, in the order of its codes.
    """

    name: str
    rule: Rule
    judge: Judge
    reasons: tuple[str, ...]
    passes: bool
    by_load: bool = False
    is_exact: bool = False


FILTERS: tuple[Filter, ...] = (
    Filter("site", site.site, site.site_codes, site.REASONS, passes=False),
    Filter(
        "residency", residency.residency, residency.residency_codes, residency.REASONS, passes=False
    ),
    Filter(
        "tenancy",
        reserved_nodes.tenancy,
        reserved_nodes.tenancy_codes,
        reserved_nodes.REASONS,
        passes=False,
    ),
    Filter(
        "isolation", isolation.isolation, isolation.isolation_codes, isolation.REASONS, passes=False
    ),
    Filter("labels", labels.labels, labels.label_codes, labels.REASONS, passes=False),
    Filter("taints", taints.taints, taints.taint_codes, taints.REASONS, passes=False),
    Filter(
        "resources",
        free_resources.resources,
        free_resources.resource_codes,
        free_resources.REASONS,
        passes=True,
        by_load=True,
        is_exact=True,
    ),
    Filter(
        "neighbours",
        isolation.neighbours,
        isolation.neighbour_codes,
        isolation.NEIGHBOUR_REASONS,
        passes=True,
        by_load=True,
        # More of the same work belongs to the same tenant.
        is_exact=True,
    ),
    Filter(
        "readiness", readiness.readiness, readiness.readiness_codes, readiness.REASONS, passes=True
    ),
    # Each node has the reason of its own refusal.
    Filter("shunned", shunned.shunned, shunned.shunned_codes, ("",), passes=True),
)


def first_refusal(
    work: PendingWork, candidate: Candidate, filters: tuple[Filter, ...] = FILTERS
) -> tuple[int, Refusal] | None:
    """The position of the first filter that rules the node out, and its refusal."""
    for place, each in enumerate(filters):
        refusal = each.rule(work, candidate)
        if refusal is not None:
            return place, refusal
    return None
