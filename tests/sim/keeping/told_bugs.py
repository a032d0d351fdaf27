"""Planted bugs about services and one per node, and about what is told of work."""

from __future__ import annotations

from holdfast.correct.controller import Plan
from holdfast.sim.mutants import rewrite, swap
from tests.sim.keeping.planting import CORRECT, MODEL, bug

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
)

COUNTS = (
    bug(
        "nobody-counts-the-ready",
        "what runs is not counted",
        rewrite(
            CORRECT + "status:counted",
            "running = [it.status.stage for it in there if it.status.state is State.RUNNING]",
            "running = []",
        ),
    ),
)

ROLLOUTS = (
    bug(
        "all-places-at-once",
        "a rollout begins all places at once, and stops whoever is there",
        rewrite(
            CORRECT + "rollout_widening:widened",
            "room = missing + status.surge - lag",
            "room = len(seen.places)",
        ),
        rewrite(CORRECT + "rollout_widening:to_stop", "elif spare > 0:", "else:"),
    ),
    bug(
        "old-ones-stay",
        "a rollout sets its targets and stops nobody",
        rewrite(CORRECT + "rollout_widening:to_stop", "elif spare > 0:", "elif False:"),
    ),
)

BUDGETS = (
    bug(
        "nobody-settles",
        "nobody says that a replica has become ready, so that its place is missing for ever",
        swap(CORRECT + "disruption:DisruptionController.reconcile", lambda *_: Plan()),
    ),
    bug(
        "budget-not-asked",
        "neither the drain nor the commit asks how many may be missing",
        swap(CORRECT + "drain_room:Room.take", lambda _room, _replica: True),
        swap(MODEL + "disruption:disruption_refusal", lambda *_, **__: None),
    ),
)
