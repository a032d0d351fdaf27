"""Planted bugs about services and one per node, and about what is told of work."""

from __future__ import annotations

from holdfast.correct.controller import Plan
from holdfast.sim.mutants import rewrite, swap
from tests.sim.keeping.planting import CORRECT, bug

PLACES = (
    bug(
        "two-on-one-node",
        "one per node is made for a node that has one, if that one does not run yet",
        rewrite(
            CORRECT + "each_node:EachNode.spread",
            "not all(vacates(it) for it in lives)",
            "any(it.status.state is State.RUNNING for it in lives)",
        ),
    ),
    bug(
        "any-node-will-do",
        "one per node is made without asking for its node",
        rewrite(
            CORRECT + "each_node:pinned",
            "{**placement.node_selector, NODE_LABEL: node}",
            "{**placement.node_selector}",
        ),
    ),
    bug(
        "predecessors-kept",
        "a replica that was replaced is never cleared away",
        rewrite(CORRECT + "services:_stops", "yield removal(replica)", "pass"),
    ),
)

LISTS = (
    bug(
        "serving-before-listed",
        "a replica serves as soon as it is ready, whether or not anybody can know where",
        rewrite(
            CORRECT + "endpoints:_serving",
            "published.get(entry.replica) == entry",
            "True",
        ),
    ),
    bug(
        "who-leaves-stays-listed",
        "a list only grows",
        rewrite(
            CORRECT + "endpoints:_is_ready",
            "return is_wanted and status.state is State.RUNNING and status.stage in _READY",
            "return status.stage in _READY",
        ),
    ),
    bug(
        "lists-outlive",
        "the list of a workload that is gone stays",
        swap(CORRECT + "endpoints:EndpointsController._removed", lambda *_: Plan()),
    ),
)

COUNTS = (
    bug(
        "stopping-counts-as-ready",
        "what is being stopped counts as ready, since its stage still says so",
        rewrite(
            CORRECT + "status:counted",
            "ready=sum(stage in _READY for stage in running)",
            "ready=sum(it.status.stage in _READY for it in mine)",
        ),
    ),
    bug(
        "counts-of-a-generation",
        "the counts are written when the spec changes, and not when they do",
        rewrite(
            CORRECT + "status:StatusController.reconcile",
            "if status == workload.status:",
            "if status.observed_generation == workload.status.observed_generation:",
        ),
    ),
)

BUDGETS = (
    bug(
        "nobody-settles",
        "nobody says that a replica has become ready, so that its place is missing for ever",
        swap(CORRECT + "disruption:DisruptionController.reconcile", lambda *_: Plan()),
    ),
)
