"""Planted bugs in the plane: controllers, their caches, and the commit that checks them."""

from __future__ import annotations

from holdfast.correct.controller import ReconcilePlan
from holdfast.model.kinds.node import NodePhase
from holdfast.sim.mutants import rewrite, swap
from tests.sim.end_to_end.planting import COMMIT, CORRECT, MODEL, OBSERVE, bug

NODES = (
    bug(
        "fenced-at-once",
        "a fence does not wait for deadlines to pass: silence was long enough",
        rewrite(
            CORRECT + "nodes.controller:NodesController._fence",
            "wait_ms = seen_ms + fence_wait_ms(node.status.timing, timing) - now_ms",
            "wait_ms = 0",
        ),
    ),
    bug(
        "marks-never-cleared",
        "a node whose heartbeats return keeps its mark, and is not fenced either",
        rewrite(
            CORRECT + "nodes.controller:NodesController._due",
            "return self._fence(view, node, timing, is_heard, now)",
            "return None, HELD_PAUSE_MS",
        ),
    ),
    bug(
        "same-life-after-a-fence",
        "a fenced node returns without a new incarnation",
        rewrite(
            COMMIT + "lifecycle.node_requests:_returned",
            "incarnation=old.status.incarnation + 1",
            "incarnation=old.status.incarnation",
        ),
    ),
)

WORK = (
    bug(
        "repaired-before-the-fence",
        "work on a marked node is declared gone, and the commit does not require a fence either",
        swap(CORRECT + "repair:GONE", (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)),
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "if later or ledger.gate.phase in GONE:",
            "if True:",
        ),
    ),
    bug(
        "replaced-when-unknown",
        "a replica in state Unknown is replaced at once",
        rewrite(
            MODEL + "placement.vacancy:vacates",
            "return state is State.RELEASED",
            "return state in (State.RELEASED, State.UNKNOWN)",
        ),
    ),
    bug(
        "replaced-when-stopping",
        "a replica is replaced as soon as its stop was requested",
        rewrite(
            MODEL + "placement.vacancy:vacates",
            "return state is State.RELEASED",
            "return state in (State.RELEASED, State.STOPPING, State.FAILED)",
        ),
    ),
    bug(
        "new-name-after-a-lost-answer",
        "every try to create a replica uses a name of its own",
        rewrite(
            CORRECT + "workload.replica_creation:ReplicaCreation.create",
            "incarnation = self._reached.get(workload.metadata.uid, {}).get(ordinal, -1) + 1",
            "tries = vars(self).setdefault('_tries', [0]); tries[0] += 1; incarnation = tries[0]",
        ),
    ),
    bug(
        "fenced-work-not-repaired",
        "work whose node was fenced is never repaired",
        swap(CORRECT + "repair:RepairController._ended", lambda *_: ReconcilePlan()),
    ),
    bug(
        "surplus-not-stopped",
        "surplus replicas are not stopped",
        rewrite(
            CORRECT + "workload.services:_stops",
            "yield from stop(replica, Cause.SCALE_DOWN, term)",
            "pass",
        ),
    ),
)

CACHES = (
    bug(
        "expired-is-resumed",
        "a stream whose history has expired is opened again at its old revision",
        rewrite(OBSERVE + "cache:Cache._ended", "informer.reflector.must_list = True", "pass"),
    ),
    bug(
        "silent-streams-kept",
        "a stream that has gone silent is never given up",
        rewrite(
            OBSERVE + "cache:Cache._woken", "elif now_ms >= informer.gives_up_ms:", "elif False:"
        ),
        rewrite(
            OBSERVE + "cache:Cache._reopen_later",
            "channel.retry_at_ms = now.monotonic_ms",
            "channel.retry_at_ms = 10**12 + now.monotonic_ms",
        ),
    ),
    bug(
        "history-skipped",
        "a server that starts lists objects of an older revision and follows the store from now on",
        rewrite(
            OBSERVE + "watch_hub:WatchHub._loaded",
            "self._entry_table, self._revision = entry_table, page.revision",
            "self._entry_table, self._revision = entry_table, max(page.revision, self._ready_from)",
        ),
    ),
)
