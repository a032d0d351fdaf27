"""Planted bugs that show with too little time, too little capacity, or lost watch events."""

from __future__ import annotations

from holdfast.correct.controller import ReconcilePlan
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.mutants import rewrite, swap
from tests.sim.end_to_end.planting import (
    AGENT,
    COMMIT,
    CORRECT,
    CROWDED,
    LOSSY,
    MODEL,
    OBSERVE,
    PROPOSE,
    SHIM,
    SKEWED,
    TAKEOVER,
    TIGHT,
    ZONE,
    bug,
)
from tests.sim.scenarios.bugs import LOST_MEANS_FAILED


def _blind_to_drift(timing: FenceTiming) -> int:
    """The law of fencing without the term for clock drift."""
    running = timing.ack_window_ms + timing.self_stop_after_ms + timing.grace_ms
    return running + timing.kill_bound_ms + timing.margin_ms


COUNTING = (
    bug(
        "deadline-from-the-answer",
        "the deadline counts from the answer to a renewal, not from its sending",
        rewrite(
            AGENT + "heartbeats:NodeHeartbeats.answered",
            "until_ms = sent_ms +",
            "until_ms = now_ms +",
        ),
        world=TIGHT,
    ),
    bug(
        "deadline-not-checked-before-exec",
        "the shim starts work without a look at the deadline: after a pause it starts it late",
        rewrite(SHIM + "_exec", "held.shim.is_late(self._now_ms(host))", "False"),
        world=TIGHT,
    ),
    bug(
        "fence-without-drift",
        "the fence does not allow for clock drift",
        swap(MODEL + "nodes.fence:fence_after_min_ms", _blind_to_drift),
        world=SKEWED,
    ),
    bug(
        "acknowledged-under-a-mark",
        "a renewal counts as acknowledged whatever mark the server has read",
        rewrite(
            MODEL + "nodes.heartbeat:Renewed.acknowledges",
            "return self.is_of(renew) and is_trusted and not self.mark",
            "return self.is_of(renew)",
        ),
        world=TIGHT,
    ),
    bug(
        "countdown-by-the-calendar",
        "a new controller resumes the countdown of a fence by the date of the mark",
        rewrite(
            CORRECT + "nodes.controller:NodesController.reconcile",
            "self._sees_mark(node, now_ms)",
            "mark = node.status.mark\n"
            "    age_ms = now.wall_ms - int(mark.at.timestamp() * 1000) if mark else 0\n"
            "    self._sees_mark(node, now_ms - age_ms)",
        ),
        world=TAKEOVER,
    ),
    bug(
        "countdown-not-restarted",
        "a controller that finds a mark assumes that its predecessor has waited",
        rewrite(
            CORRECT + "nodes.controller:NodesController._sees_mark",
            "(mark.number, now_ms)",
            "(mark.number, now_ms - 60_000)",
        ),
        world=TIGHT,
    ),
)

OBSERVERS = (
    bug(
        "no-zone-limit",
        "nodes are marked and fenced however many of their zone are silent",
        swap(CORRECT + "nodes.disruption_limits:DisruptionLimits.weigh", lambda *_, **__: ""),
        world=ZONE,
    ),
    bug(
        "zone-held-for-ever",
        "a zone is held back for as long as most of it is silent",
        swap(CORRECT + "nodes.controller:zone_wait_ms", lambda *_: 10**9),
        world=ZONE,
    ),
    bug(
        "held-from-the-first-silence",
        "the wait of a silent zone goes on over times in which it was heard",
        rewrite(
            CORRECT + "nodes.disruption_limits:DisruptionLimits.weigh",
            "for table in (self.held, self.given_up, self.approvals, self._since_ms):",
            "for table in (self.held, self.given_up, self.approvals):",
        ),
        world=ZONE,
    ),
    bug(
        "fresh-server-believed",
        "nodes without a heartbeat at a server that has just started count as silent",
        rewrite(
            CORRECT + "nodes.silence:NodeSilence._take_report",
            "server.blind_until_ms = max(server.blind_until_ms, since_ms)",
            "pass",
        ),
        world=ZONE,
    ),
)

LATER_LIVES = (
    bug(
        "registered-before-the-end",
        "a node begins its new incarnation while work of the old one is being stopped",
        rewrite(AGENT + "agent:Agent._enter", "if self._workers.has_strays:", "if False:"),
        world=TIGHT,
    ),
    bug(
        "old-life-adopted",
        "work of an earlier incarnation of the node is treated like any other",
        rewrite(
            AGENT + "next_step:next_step",
            "if view.life is None or here != view.life:",
            "if view.life is None:\n        return WAIT\n    if here.uid != view.life.uid:",
        ),
        rewrite(AGENT + "agent:Agent._enter", "if self._workers.has_strays:", "if False:"),
        world=TIGHT,
    ),
    bug(
        "restarted-before-the-exit",
        "ill work is started again as soon as its stop was requested",
        rewrite(
            AGENT + "replica_workers:ReplicaWorkers._take_step",
            "self._halt(work, step, out)",
            "self._halt(work, step, out)\n"
            "            if work.health is not None and work.health.ill:\n"
            "                known = work.process\n"
            "                process = Process(id=known.id, signal=15, reason='Stopped')\n"
            "                work.ended(process, True, view.now_ms, self._rng)\n"
            "                self._queue.add(work.uid, view.now_ms)",
        ),
        world=TIGHT,
    ),
    bug(
        "adopted-by-pid",
        "after a reboot another process has the PID of the work, and is taken for it",
        rewrite(
            SHIM + "_report_inventory",
            "held.is_running,\n",
            'held.is_running or held.process.reason == "Rebooted",\n',
        ),
        world=TIGHT,
    ),
)

WAITING = (
    bug(
        "lost-events-not-found",
        "lost watch events are never found: there is no resync",
        rewrite(OBSERVE + "cache:Cache._next_resync_ms", "return ", "return 10**9 + "),
        world=LOSSY,
    ),
    bug(
        "last-comes-first",
        "of replicas that ask for the same the youngest is placed first",
        rewrite(
            PROPOSE + "queue.scheduling_queue:SchedulingQueue._line_up",
            "line.append((entry.ticket, entry.key))",
            "line.appendleft((entry.ticket, entry.key))",
        ),
        world=CROWDED,
    ),
    bug(
        "assumed-for-ever",
        "an assumed binding is never given up",
        swap(PROPOSE + "binder:Binder._give_up", lambda *_: None),
        world=CROWDED,
    ),
)

SENDERS = (
    bug(
        "reserved-for-ever",
        "an expired reservation is never given back",
        swap(CORRECT + "repair:RepairController._reserved", lambda *_: ReconcilePlan()),
        world=TIGHT,
    ),
    bug(
        "bound-elsewhere-after-a-lost-answer",
        "a bind without an answer is given up for another node, and the commit accepts both",
        LOST_MEANS_FAILED,
        rewrite(
            COMMIT + "lifecycle.bind:_bind",
            "replica = current_replica(draft, request.target, request.operation, mark)",
            "replica = find_replica(draft, request.target)\n"
            "    if isinstance(replica, Replica):\n"
            "        status = msgspec.structs.replace(replica.status, state=State.PENDING)\n"
            "        replica = msgspec.structs.replace(replica, status=status)",
        ),
        world=TIGHT,
    ),
)
