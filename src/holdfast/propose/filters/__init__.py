"""Filters: whether a node can take a replica at all. One file each, in the order below.

Each asks the one rule of the model that the commit asks as well, so that it can be wrong only by
looking at something old. The order goes from what is cheap and lasts to what is dear and passes: a
node is counted under the first reason that rules it out, and the node that got furthest is the
nearest miss.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model.refusal import Refusal
from holdfast.propose.filters.labels import labels
from holdfast.propose.filters.readiness import readiness
from holdfast.propose.filters.residency import residency
from holdfast.propose.filters.resources import resources
from holdfast.propose.filters.shunned import shunned
from holdfast.propose.filters.site import site
from holdfast.propose.filters.taints import taints
from holdfast.propose.filters.tenancy import tenancy
from holdfast.propose.view import Candidate, Work

Rule = Callable[[Work, Candidate], Refusal | None]


class Filter(msgspec.Struct, frozen=True):
    """A rule with its name.

    `passes` says that what it refuses may be allowed later on the very same node, without anybody
    changing what the node is.
    """

    name: str
    rule: Rule
    passes: bool


FILTERS: tuple[Filter, ...] = (
    Filter("site", site, passes=False),
    Filter("residency", residency, passes=False),
    Filter("tenancy", tenancy, passes=False),
    Filter("labels", labels, passes=False),
    Filter("taints", taints, passes=False),
    Filter("resources", resources, passes=True),
    Filter("readiness", readiness, passes=True),
    Filter("shunned", shunned, passes=True),
)


def first_refusal(work: Work, candidate: Candidate) -> tuple[int, Refusal] | None:
    """The first filter that rules the node out, by its place in the order, and why."""
    for place, each in enumerate(FILTERS):
        refusal = each.rule(work, candidate)
        if refusal is not None:
            return place, refusal
    return None
