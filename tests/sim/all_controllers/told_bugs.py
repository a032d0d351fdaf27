"""Planted bugs about services and one per node, and about what is told of work."""

from __future__ import annotations

from holdfast.model import requests as ask
from holdfast.sim.mutants import rewrite, swap
from tests.sim.all_controllers.planting import COMMIT, CORRECT, DARK, MODEL, ROLLING, bug
from tests.sim.authority.planting import handler

PLACES = (
    bug(
        "two-on-one-node",
        "one per node is made for a node that has one, if that one does not run yet, and the "
        "commit does not look at who has the place",
        rewrite(
            CORRECT + "workload.each_node:PerNodeReplicas.reconcile",
            "not all(vacates(it) for it in lives)",
            "any(it.status.state is State.RUNNING for it in lives)",
        ),
        rewrite(
            COMMIT + "lifecycle.replica_birth:_place_refusal", "if not vacates(last):", "if False:"
        ),
    ),
    bug(
        "any-node-will-do",
        "one per node is made without asking for its node",
        rewrite(
            CORRECT + "workload.each_node:pinned",
            "{**placement.node_selector, NODE_LABEL: node}",
            "{**placement.node_selector}",
        ),
    ),
    bug(
        "predecessors-kept",
        "a replica that was replaced is never cleared away",
        rewrite(CORRECT + "workload.services:_stops", "yield removal(replica)", "pass"),
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
            "if it.status.state is State.RUNNING and not _is_cut_off(it, silent)",
            "if False",
        ),
    ),
)

SILENCE = (
    bug(
        "silent-counts-as-ready",
        "what was ready when its node was last heard is counted as ready",
        swap(CORRECT + "status:_is_cut_off", lambda *_: False),
        world=DARK,
    ),
)

ROLLOUTS = (
    bug(
        "at-work-again-stopped-for-free",
        "what was idle when a rollout looked is stopped for free, though it is at work again",
        handler(
            ask.Evict,
            COMMIT + "lifecycle.evict:evict",
            "if request.idle and is_available(replica):",
            "if False:",
        ),
        world=ROLLING,
    ),
    bug(
        "all-places-at-once",
        "a rollout begins all places at once, and stops whoever is there",
        rewrite(
            CORRECT + "rollout.widening:widened",
            "room = missing + status.surge - lag",
            "room = len(seen.places)",
        ),
        rewrite(CORRECT + "rollout.widening:to_stop", "elif spare > 0:", "else:"),
    ),
    bug(
        "old-ones-stay",
        "a rollout sets its targets and stops nobody",
        rewrite(CORRECT + "rollout.widening:to_stop", "elif spare > 0:", "elif False:"),
    ),
)

BUDGETS = (
    bug(
        "released-is-not-missed",
        "a place of a service counts as well served as soon as its replica is released",
        rewrite(MODEL + "placement.disruption:is_missing", "of is WorkloadType.SERVICE", "False"),
    ),
    bug(
        "budget-not-asked",
        "neither the drain nor the commit asks how many may be missing",
        swap(CORRECT + "drain:DisruptionRoom.take", lambda _room, _replica: True),
        swap(MODEL + "placement.disruption:disruption_refusal", lambda *_, **__: None),
    ),
)
