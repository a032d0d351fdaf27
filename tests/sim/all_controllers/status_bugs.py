"""Planted bugs about services, per-node work, rollouts, and the status of work."""

from __future__ import annotations

from holdfast.model.lifecycle import READY_STAGES
from holdfast.sim.mutants import rewrite, swap
from tests.sim.all_controllers.planting import COMMIT, CORRECT, DARK, MEMORIES, MODEL, ROLLING, bug

PLACES = (
    bug(
        "two-on-one-node",
        "a per-node replica is created for a node that has one, if that one does not run yet, and "
        "the commit does not check which replica has the place",
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
        "a per-node replica is created without a selector for its node",
        rewrite(
            CORRECT + "workload.each_node:pin_to_node",
            "{**placement.node_selector, NODE_LABEL: node}",
            "{**placement.node_selector}",
        ),
    ),
    bug(
        "predecessors-kept",
        "a replica that was replaced is never removed",
        rewrite(CORRECT + "workload.services:_stops", "yield removal(replica)", "pass"),
    ),
)

LISTS = (
    bug(
        "serving-before-listed",
        "a replica serves as soon as it is ready, whether or not an endpoint list has it",
        rewrite(
            CORRECT + "endpoints:_serving",
            "published.get(entry.replica) == entry",
            "True",
        ),
    ),
    bug(
        "stopped-replica-stays-listed",
        "an endpoint list only grows",
        swap(CORRECT + "endpoints:is_available", lambda it: it.status.stage in READY_STAGES),
    ),
)

COUNTS = (
    bug(
        "ready-not-counted",
        "running replicas are not counted as ready",
        rewrite(
            CORRECT + "status:count_stages",
            "if it.status.state is State.RUNNING and not _is_cut_off(it, silent)",
            "if False",
        ),
    ),
)

SILENCE = (
    bug(
        "silent-counts-as-ready",
        "a replica that was ready at the last heartbeat of its node is counted as ready",
        swap(CORRECT + "status:_is_cut_off", lambda *_: False),
        world=DARK,
    ),
)

MEMORY = (
    bug(
        "touch-forgotten",
        "a change of a replica does not open its ordinal, so that only a resync replaces it",
        rewrite(
            CORRECT + "workload.controller:WorkloadController._keys_of_replica",
            "self._services.places.touch(key, replica.spec.ordinal)",
            "pass",
        ),
        world=MEMORIES,
    ),
    bug(
        "drain-forgets-what-it-waits-for",
        "a drain forgets for which workloads it waits, so that only a resync continues it",
        rewrite(
            CORRECT + "drain:DrainController.reconcile",
            "self._waits[node.name] = frozenset(left.waits)",
            "self._waits[node.name] = frozenset()",
        ),
        world=MEMORIES,
    ),
)

ROLLOUTS = (
    bug(
        "available-again-stopped-for-free",
        "a replica that was unavailable when a rollout looked is stopped for free, though it is "
        "available again",
        rewrite(
            COMMIT + "lifecycle.evict:evict",
            "if request.idle and is_available(replica):",
            "if False:",
        ),
        world=ROLLING,
    ),
    bug(
        "all-places-at-once",
        "a rollout begins all places at once, and stops every replica there",
        rewrite(
            CORRECT + "rollout.widening:widen",
            "room = missing + status.surge - lag",
            "room = len(seen.places)",
        ),
        rewrite(CORRECT + "rollout.widening:to_stop", "elif spare > 0:", "else:"),
    ),
    bug(
        "old-ones-stay",
        "a rollout sets its targets and stops no replica",
        rewrite(CORRECT + "rollout.widening:to_stop", "elif spare > 0:", "elif False:"),
    ),
)

BUDGETS = (
    bug(
        "released-is-not-missed",
        "a place of a service counts as available as soon as its replica is released",
        rewrite(MODEL + "placement.disruption:is_missing", "of is WorkloadType.SERVICE", "False"),
    ),
    bug(
        "budget-not-asked",
        "neither the drain nor the commit checks how many may be unavailable",
        swap(CORRECT + "drain:DisruptionRoom.take", lambda _room, _replica: True),
        swap(MODEL + "placement.disruption:disruption_refusal", lambda *_, **__: None),
    ),
)
