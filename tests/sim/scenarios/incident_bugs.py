"""Planted bugs for the sentences about stuck replicas, lost nodes and leaks."""

from __future__ import annotations

import numpy as np

from holdfast.correct.controller import ReconcilePlan
from holdfast.model.kinds.node import NodePhase
from holdfast.model.nodes.heartbeat import ProgressNotes
from holdfast.sim.mutants import rewrite, swap
from tests.sim.scenarios.bugs import (
    COMMIT,
    CORRECT,
    MODEL,
    PROPOSE,
    Bug,
    bug,
)

AGENT = "holdfast.agent."
EXPLAIN = "holdfast.explain."
SHIM = "holdfast.sim.planes.process_table:Processes."

SC4, SC6, SC13 = "sc4-stuck-replica", "sc6-node-loss", "sc13-repair-in-an-incident"

NO_DEADLINE = rewrite(AGENT + "next_step:_launch", "None if is_kept else view.deadline_ms", "None")


STUCK = (
    bug(
        SC4,
        "sc4.quota",
        "the explanation does not count what the tenant uses of its quota",
        rewrite(EXPLAIN + "feasible_nodes:find_feasible_nodes", "quota=over", "quota=None"),
    ),
    bug(
        SC4,
        "sc4.unseen",
        "the explanation never concludes from an agent's missing report",
        rewrite(EXPLAIN + "on_node:_unseen", "or not is_later", "or True"),
    ),
    bug(
        SC4,
        "sc4.unpropagated",
        "an agent does not list its unacknowledged reports",
        swap(AGENT + "replica_workers:ReplicaWorkers.unsaid", lambda _workers: ProgressNotes()),
    ),
    bug(
        SC4,
        "sc4.fence",
        "the deadline given for the fence is that of the self-stop",
        rewrite(
            EXPLAIN + "node_contact:_marked",
            "after(max(begun), wait_ms)",
            "after(max(begun), facts.timing.self_stop_after_ms)",
        ),
    ),
    bug(
        SC4,
        "sc4.stale",
        "a scheduler's last pending reason is taken as current",
        rewrite(
            EXPLAIN + "unplaced:diagnose_pending", "is_free = bool(found.node)", "is_free = False"
        ),
    ),
    bug(
        SC4,
        "sc4.evidence",
        "an answer does not include its evidence",
        rewrite(EXPLAIN + "explain_replica:explain", "*found.signs, ", ""),
    ),
    bug(
        SC4,
        "sc4.goes-on",
        "an agent never resyncs",
        swap(AGENT + "agent:RESYNC_MS", 10**9),
    ),
)

LOST = (
    bug(
        SC6,
        "sc6.no-new-work",
        "a node whose heartbeat is late takes work",
        rewrite(
            MODEL + "placement.placement_rules:gate_refusal",
            "gate.phase is not NodePhase.READY",
            "gate.phase not in (NodePhase.READY, NodePhase.SUSPECT)",
        ),
        swap(PROPOSE + "filters.readiness:_CODES", np.zeros(64, np.uint8)),
    ),
    bug(
        SC6,
        "sc6.not-before",
        "work on a marked node is declared failed, and the commit does not require a fence",
        swap(CORRECT + "repair:GONE", (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)),
        rewrite(
            COMMIT + "lifecycle.transition_proofs:_fence_refusal",
            "if later or ledger.gate.phase in GONE:",
            "if True:",
        ),
    ),
    bug(
        SC6,
        "sc6.self-stop",
        "work is started without a deadline; the agent is trusted to stop it",
        NO_DEADLINE,
    ),
    bug(
        SC6,
        "sc6.one-after",
        "work on a fenced node is never declared failed",
        swap(CORRECT + "repair:RepairController._ended", lambda *_: ReconcilePlan()),
    ),
    bug(
        SC6,
        "sc6.no-resurrection",
        "a node registers again while work from before the fence runs",
        NO_DEADLINE,
        swap(AGENT + "replica_workers:ReplicaWorkers.has_strays", property(lambda _workers: False)),
        swap(AGENT + "replica_workers:ReplicaWorkers.halt_strays", lambda *_: None),
    ),
    bug(
        SC6,
        "sc6.keep",
        "work of policy keep is started with a deadline like any other",
        rewrite(
            AGENT + "next_step:_launch", "None if is_kept else view.deadline_ms", "view.deadline_ms"
        ),
    ),
    bug(
        SC6,
        "sc6.a-second-before",
        "a node that renews again keeps its mark, and is not fenced either",
        rewrite(
            CORRECT + "nodes.controller:NodesController._due",
            "return self._fence(view, node, timing, is_heard, now)",
            "return None, HELD_PAUSE_MS",
        ),
    ),
    bug(
        SC6,
        "sc6.zone-limit",
        "nodes are marked however many of their zone are silent",
        swap(CORRECT + "nodes.disruption_limits:SILENT_PERCENT_MAX", 101),
    ),
    bug(
        SC6,
        "sc6.given-up",
        "a zone is held back for as long as most of it is silent",
        rewrite(
            CORRECT + "nodes.disruption_limits:DisruptionLimits.weigh",
            "if now_ms - since_ms >= wait_ms:",
            "if False:",
        ),
    ),
)

LEAKING = (
    bug(
        SC13,
        "sc13.expired",
        "a reservation never expires",
        rewrite(
            CORRECT + "garbage.controller:_over_in_ms",
            "return held_left_ms(obj, waits, LATE_MS, now)",
            "return None",
        ),
    ),
    bug(
        SC13,
        "sc13.ownerless",
        "objects without an owner are not collected",
        rewrite(
            CORRECT + "garbage.controller:GarbageController.reconcile",
            "bool(owners) and not any(is_there(view, obj, it) for it in owners)",
            "False",
        ),
    ),
    bug(
        SC13,
        "sc13.finalizer",
        "no event says what a deletion waits for",
        swap(CORRECT + "events.overdue:_held", lambda *_: ()),
    ),
    bug(
        SC13,
        "sc13.dead-nodes",
        "replicas on a dead node are ended without evidence",
        rewrite(
            CORRECT + "repair:RepairController._move",
            "        evidence,\n",
            "        '',\n",
        ),
    ),
    bug(
        SC13,
        "sc13.progress",
        "one missing owner is enough to collect an object, and the commit accepts it",
        rewrite(
            CORRECT + "garbage.controller:GarbageController.reconcile",
            "not any(is_there(view, obj, it) for it in owners)",
            "not all(is_there(view, obj, it) for it in owners)",
        ),
        rewrite(COMMIT + "ledgers.leaks:leak_refusal", "if owners and all(gone):", "if True:"),
    ),
    bug(
        SC13,
        "sc13.rate",
        "everything is collected at once",
        swap(CORRECT + "pacing:RateLimiter.takes", lambda *_: True),
    ),
)

INCIDENT_BUGS: tuple[Bug, ...] = (*STUCK, *LOST, *LEAKING)
