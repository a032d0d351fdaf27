"""Filters: whether a node can take a replica at all. One file each, in the order below.

Each asks the one rule of the model that the commit asks as well, so that it can be wrong only by
looking at something old. It exists twice: for one node, to say why in words, and for many nodes at
once, as codes; a property test holds the two together. The order goes from what is cheap and lasts
to what is dear and passes: a node is counted under the first reason that rules it out, and the node
that got furthest is the nearest miss.

What depends on where other replicas are (`propose/topology/affinity.py`) comes after all of these.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model.refusal import Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.decision_view import Candidate, PendingWork, View
from holdfast.propose.filters import (
    isolation,
    labels,
    readiness,
    residency,
    resources,
    shunned,
    site,
    taints,
    tenancy,
)

Rule = Callable[[PendingWork, Candidate], Refusal | None]
# For each of these rows 0, or the place of the reason from 1; None where it rules out no node.
Judge = Callable[[PendingWork, View, Rows, Level], Codes | None]


class Filter(msgspec.Struct, frozen=True):
    """A rule with its name, for one node and for many.

    `passes` says that what it refuses may be allowed later on the very same node, without anybody
    changing what the node is. `by_load` says that its answer changes with what is taken of a node,
    and not only with the node; `is_exact` that placing more of the same work changes it by sums
    that are known ahead, or not at all. `reasons` are the codes of its refusals, in the order of
    its codes.
    """

    name: str
    rule: Rule
    judge: Judge
    reasons: tuple[str, ...]
    passes: bool
    by_load: bool = False
    is_exact: bool = False


FILTERS: tuple[Filter, ...] = (
    Filter("site", site.site, site.sites, site.REASONS, passes=False),
    Filter(
        "residency", residency.residency, residency.residencies, residency.REASONS, passes=False
    ),
    Filter("tenancy", tenancy.tenancy, tenancy.tenancies, tenancy.REASONS, passes=False),
    Filter("isolation", isolation.isolation, isolation.isolated, isolation.REASONS, passes=False),
    Filter("labels", labels.labels, labels.labelled, labels.REASONS, passes=False),
    Filter("taints", taints.taints, taints.tainted, taints.REASONS, passes=False),
    Filter(
        "resources",
        resources.resources,
        resources.fitting,
        resources.REASONS,
        passes=True,
        by_load=True,
        is_exact=True,
    ),
    Filter(
        "neighbours",
        isolation.neighbours,
        isolation.neighboured,
        isolation.NEIGHBOUR_REASONS,
        passes=True,
        by_load=True,
        # More of the same work is of the same tenant.
        is_exact=True,
    ),
    Filter("readiness", readiness.readiness, readiness.ready, readiness.REASONS, passes=True),
    # Each for the reason of its own refusal.
    Filter("shunned", shunned.shunned, shunned.left_alone, ("",), passes=True),
)


def first_refusal(
    work: PendingWork, candidate: Candidate, filters: tuple[Filter, ...] = FILTERS
) -> tuple[int, Refusal] | None:
    """The first filter that rules the node out, by its place in the order, and why."""
    for place, each in enumerate(filters):
        refusal = each.rule(work, candidate)
        if refusal is not None:
            return place, refusal
    return None
