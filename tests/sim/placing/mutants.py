"""Bugs planted in placement.

    python -m holdfast.sim mutants tests.sim.placing.mutants:MUTANTS \
        --record tests/sim/placing/found.json

searches for each in the placing world and records the seed that found it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.propose.binder import RefusalReaction
from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

RECORDED = Path(__file__).with_name("found.json")
WORLD = "holdfast.sim.worlds.placing.scenario:SCENARIO"
SHARDS = "holdfast.sim.worlds.placing.scenario:SHARDS"
PROMPT = "holdfast.sim.worlds.placing.scenario:PROMPT"
SMALL = "holdfast.sim.worlds.placing.small_worlds:"
CONTENDED = "holdfast.sim.worlds.placing.contended:CONTENDED"
COMMIT = "holdfast.commit."
MODEL = "holdfast.model."
OBSERVE = "holdfast.observe."
PROPOSE = "holdfast.propose."


# The scheduler does not check quotas before it binds, so that the commit refuses for them.
UNCHECKED_QUOTA = swap(
    PROPOSE + "queue.quota_usage:QuotaUsage.room", lambda *asked: (asked[-1], None)
)


def _bug(name: str, mistake: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, WORLD, plants)


def _unfair(name: str, mistake: str, *plants: Plant) -> Mutant:
    return Mutant(name, mistake, CONTENDED, plants)


PREEMPTION = (
    _unfair(
        "anything-is-a-victim",
        "committed work inside its share is stopped for more important work",
        swap(MODEL + "preemption:eviction_refusal", lambda *_: None),
        # And schedulers propose it: the most valuable work first.
        swap(PROPOSE + "preemption.victim_search:VictimSearch._is_legal", lambda *_: True),
        rewrite(
            PROPOSE + "preemption.victim_search:VictimSearch._room_at",
            "key=lambda it: it.rank))[::-1]",
            "key=lambda it: it.rank))",
        ),
    ),
    _unfair(
        "every-class-preempts",
        "work whose class does not preempt stops other work",
        swap(MODEL + "preemption:preempts_refusal", lambda *_: None),
    ),
    _unfair(
        "all-on-the-node-stop",
        "everything that may be stopped on a node is, however little is needed",
        rewrite(
            PROPOSE + "preemption.victim_search:VictimSearch._least_by_sums",
            "if any(amount > spare[resource]",
            "if True or any(amount > spare[resource]",
        ),
        swap(COMMIT + "lifecycle.preempt:_unneeded_refusal", lambda *_: None),
    ),
    _unfair(
        "promise-open-to-all",
        "a promised place is given to other work",
        rewrite(MODEL + "quota.ledger:NodeLedger.free", "if not self.promised:", "if True:"),
    ),
    _unfair(
        "stopped-for-nothing",
        "victims are stopped, and no place is promised",
        rewrite(COMMIT + "lifecycle.preempt:_promise", "save(draft, promise)", "pass"),
    ),
    _unfair(
        "departure-never-ends",
        "what a victim held is about to be given back for ever",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "note_departure(draft, replica, binding, replica.status.cause, None)",
            "pass",
        ),
    ),
    _unfair(
        "promise-keeps-its-charge",
        "a promise that ends stays charged to its tenant",
        rewrite(
            COMMIT + "lifecycle.reservations:give_back",
            "if spec.quota:",
            "if spec.quota and not is_promise(reservation):",
        ),
    ),
    _unfair(
        "budget-ends-at-preemption",
        "a preemption stops more of a workload than its budget allows",
        rewrite(
            COMMIT + "lifecycle.evict:stop",
            "if refusal is not None and not (",
            "if refusal is not None and cause is not Cause.PREEMPTION and not (",
        ),
    ),
    _unfair(
        "promise-never-fits",
        "a scheduler does not see that its victims have left",
        swap(PROPOSE + "preemption.promises:fits_now", lambda *_: False),
    ),
    _unfair(
        "promise-forgotten",
        "a scheduler does not look for the promise of a replica before it decides",
        swap(PROPOSE + "preemption.promises:resume_promise", lambda *_: None),
    ),
    _unfair(
        "victim-stopped-twice",
        "work that is being stopped for other work is stopped once more",
        rewrite(
            MODEL + "lifecycle:transition",
            "(source, target)",
            "(State.RUNNING if source is target is State.STOPPING else source, target)",
        ),
        rewrite(
            PROPOSE + "preemption.evictables:evictable_of",
            "status.state not in _RUNS or is_leaving",
            "status.state not in (*_RUNS, State.STOPPING)",
        ),
    ),
    _unfair(
        "borrowed-counts-as-own",
        "what a tenant may borrow counts as its own, whether another tenant has lent it or not",
        rewrite(
            MODEL + "quota.allowance:cohort_nominal",
            "limits.hard.get(resource, 0)",
            "limits.hard.get(resource, 0) + limits.borrowing.get(resource, 0)",
        ),
    ),
    Mutant(
        "cooldown-forgotten",
        "work stops in turn what stopped it",
        f"{SMALL}TURNS",
        (swap(MODEL + "preemption:turn_refusal", lambda *_: None),),
    ),
    Mutant(
        "fair-order-forgotten",
        "the tenant whose name is first gets every turn",
        f"{SMALL}SHARES",
        (
            rewrite(
                PROPOSE + "queue.scheduling_queue:SchedulingQueue._next_of",
                "found.turn_of(now_ms, is_rotation=is_rotation)",
                "min(tenants)",
            ),
        ),
    ),
    Mutant(
        "reserved-start-delayed",
        "work passes a job with a reserved start, however long it runs",
        f"{SMALL}STATED",
        (swap(PROPOSE + "backfill:delays", lambda *_: False),),
    ),
    _unfair(
        "place-assumed-for-ever",
        "what a plan assumed stays assumed when it has ended",
        swap(PROPOSE + "plans:PlanRunner._end_assumption", lambda *_: None),
    ),
)

MUTANTS = (
    *PREEMPTION,
    _bug(
        "refused-and-forgotten",
        "a replica that was refused a node is never tried again",
        swap(PROPOSE + "queue.scheduling_queue:SchedulingQueue.again", lambda *_: None),
        # The proposal does not look at gates, so that it is refused often.
        swap(PROPOSE + "filters.readiness:_CODES", np.zeros(64, np.uint8)),
    ),
    _bug(
        "never-woken",
        "a waiting replica is never tried again",
        swap(PROPOSE + "queue.scheduling_queue:SchedulingQueue.wake", lambda *_: None),
    ),
    _bug(
        "no-pending-reason",
        "no scheduler writes why a replica waits",
        swap(PROPOSE + "queue.pending_reasons:Notices.say", lambda *_: None),
    ),
    _bug(
        "quota-retried-hotly",
        "a replica that is refused for quota is tried on another node at once",
        swap(PROPOSE + "binder:reaction_to", lambda _reason: RefusalReaction.ANOTHER_NODE),
        swap(PROPOSE + "binder:CONFLICTS_MAX", 1_000_000),
        UNCHECKED_QUOTA,
    ),
    _bug(
        "pauses-do-not-grow",
        "a refused replica pauses for a moment, however often it was refused",
        swap(PROPOSE + "queue.scheduling_queue:BACKOFF_MAX_MS", 200),
        swap(PROPOSE + "binder:reaction_to", lambda _reason: RefusalReaction.PAUSE),
        UNCHECKED_QUOTA,
    ),
    _bug(
        "quota-never-given-back",
        "what a tenant released stays used in the scheduler's copy of its quota",
        rewrite(PROPOSE + "queue.quota_usage:QuotaUsage._put", "self._add(old, -1)", "pass"),
    ),
    Mutant(
        "first-in-line-takes-the-turn",
        "released quota wakes the first equivalence class that waits for it, whether it fits or "
        "not",
        PROMPT,
        (
            rewrite(
                PROPOSE + "queue.queueing_hints:QueueingHints.after_releases",
                "self._queue.waiting_for(WakeEvent.QUOTA) if",
                "self._queue.waiting_for(WakeEvent.QUOTA)[:1] if",
            ),
        ),
    ),
    _bug(
        "assumed-for-ever",
        "an assumed binding is kept until an event ends it",
        swap(PROPOSE + "binder:Binder._give_up", lambda *_: None),
    ),
    _bug(
        "no-resync",
        "neither the cache nor the queue is ever compared with the store",
        rewrite(OBSERVE + "cache:Cache._next_resync_ms", "return ", "return 10**9 + "),
        rewrite(
            PROPOSE + "scheduler:Scheduler._resync",
            "now.monotonic_ms < self._resync_at_ms",
            "True",
        ),
    ),
    _bug(
        "lease-never-renewed-again",
        "a scheduler that got no answer about its lease does not ask again",
        rewrite(
            OBSERVE + "leader_election:LeaderElection.answered",
            "self._waiting = False",
            "self._waiting = isinstance(answer, Exception)",
        ),
    ),
    _bug(
        "gates-ignored",
        "phase, cordon and drain of a node are ignored",
        swap(MODEL + "placement.placement_rules:gate_refusal", lambda _gate: None),
        swap(PROPOSE + "filters.readiness:_CODES", np.zeros(64, np.uint8)),
    ),
    _bug(
        "residency-ignored",
        "work is placed outside its data residency",
        swap(MODEL + "placement.placement_rules:residency_refusal", lambda *_: None),
    ),
    _bug(
        "isolation-ignored",
        "work is placed on nodes with weaker isolation than it requests",
        swap(MODEL + "placement.placement_rules:isolation_refusal", lambda *_: None),
    ),
    _bug(
        "neighbours-ignored",
        "a node without tenant isolation takes work of several tenants",
        swap(MODEL + "placement.placement_rules:neighbour_refusal", lambda *_: None),
    ),
    _bug(
        "taints-ignored-by-the-commit",
        "the commit ignores a taint that the proposal has not seen",
        swap(MODEL + "placement.placement_rules:taint_refusal", lambda *_: None),
    ),
    _bug(
        "devices-shared",
        "the owners of a device are ignored",
        swap(MODEL + "quota.ledger:DeviceSlot.left", property(lambda _slot: 1000)),
    ),
    _bug(
        "nodes-overfull",
        "the commit ignores what is already used on a node",
        rewrite(MODEL + "placement.fit:shortage", "units <= free", "True"),
    ),
    _bug(
        "quota-ignored",
        "no limit of a tenant or its cohort applies",
        swap(MODEL + "quota.allowance:quota_refusal", lambda *_: None),
    ),
    _bug(
        "release-keeps-the-node",
        "released capacity stays used",
        rewrite(
            COMMIT + "ledgers.charges:release_binding",
            "return_node(draft, binding.node, held_by_binding(binding), replica)",
            "pass",
        ),
    ),
    _bug(
        "notices-crowd-out",
        "an answer to a notice gives no slot back",
        rewrite(PROPOSE + "scheduler:Scheduler._answered", "self._notices_sent -= 1", "pass"),
    ),
    _bug(
        "room-never-seen",
        "capacity that a replica releases on a node is not seen as free",
        rewrite(
            PROPOSE + "feasibility.fleet:Fleet._put", "self.columns.take(site.row, old, -1)", "pass"
        ),
    ),
    _bug(
        "pauses-never-end",
        "a replica in back-off is never tried again",
        swap(PROPOSE + "queue.scheduling_queue:SchedulingQueue._end_pauses", lambda *_: None),
    ),
    _bug(
        "assumption-counts-on",
        "an assumed use stays counted on its node when the bind is given up",
        rewrite(
            PROPOSE + "feasibility.fleet:Fleet.unassume",
            "self._assumed_at(site, uid, assumed.held, -1)",
            "pass",
        ),
    ),
    _bug(
        "looks-once",
        "a failed read of the outcome of a bind is not repeated",
        rewrite(
            PROPOSE + "binder:Binder._rest",
            "heapq.heappush(self._pauses, (it.due_ms, it.uid))",
            "_ = pause.sends and heapq.heappush(self._pauses, (it.due_ms, it.uid))",
        ),
    ),
    _bug(
        "lost-and-left",
        "a bind whose answer was lost, and that did not happen, is not repeated",
        rewrite(
            PROPOSE + "binder:Binder._rest",
            "heapq.heappush(self._pauses, (it.due_ms, it.uid))",
            "_ = pause.sends or heapq.heappush(self._pauses, (it.due_ms, it.uid))",
        ),
    ),
    Mutant(
        "shards-overlap",
        "a shard takes the work of all tenants",
        SHARDS,
        (swap(PROPOSE + "queue.shard:SchedulerShare.takes", lambda _share, _tenant: True),),
    ),
)
