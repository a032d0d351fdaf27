"""Planted bugs: for each sentence of the worked examples one that makes it untrue."""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.propose.bind_operation import BIND_POLICY
from holdfast.propose.binder import RefusalReaction
from holdfast.sim.catalogue import find_entry
from holdfast.sim.mutants import Mutant, Plant, rewrite, swap

COMMIT = "holdfast.commit."
CORRECT = "holdfast.correct."
MODEL = "holdfast.model."
OBSERVE = "holdfast.observe."
PROPOSE = "holdfast.propose."
RULES = "holdfast.model.placement.placement_rules:"

SC1, SC2, SC3 = "sc1-conservative-binding", "sc2-drain-races-placement", "sc3-answer-lost"
SC7, SC8, SC15 = "sc7-leader-change", "sc8-one-free-slot", "sc15-lost-wakeup"


class Bug(msgspec.Struct, frozen=True):
    """A planted bug, and the sentence of an example that finds it."""

    example: str
    sentence: str
    mutant: Mutant


def bug(example: str, sentence: str, mistake: str, *plants: Plant) -> Bug:
    """A bug that makes one sentence untrue."""
    return Bug(example, sentence, Mutant(sentence, mistake, find_entry(example).scenario, plants))


# A scheduler that checks the quota in its cache does not repeat a bind refused for it.
QUOTA_NOT_CHECKED = swap(
    PROPOSE + "queue.quota_usage:QuotaUsage.room", lambda *asked: (asked[-1], None)
)
NO_REASON_WRITTEN = swap(PROPOSE + "queue.pending_reasons:Notices.say", lambda *_: None)
# Both the rule and the table that is derived from it.
SUSPECT_NODES_TAKE_WORK = (
    rewrite(
        RULES + "gate_refusal",
        "gate.phase is not NodePhase.READY",
        "False",
    ),
    swap(PROPOSE + "filters.readiness:_CODES", np.zeros(64, np.uint8)),
)
# In this example the node is silent, but not for long enough to be marked.
MARKED_AT_ONCE = rewrite(
    CORRECT + "nodes.controller:NodesController._due",
    "if silence_ms >= mark_ms and phase is NodePhase.SUSPECT:",
    "if phase is NodePhase.SUSPECT:",
)
# The looks of binds alone have no bound.
LOST_MEANS_FAILED = rewrite(
    OBSERVE + "operation:OperationMachine._failed",
    "self._in_doubt = True",
    "if self._policy.looks_max is None:\n"
    "        return GiveUp(error, self._tries, Why.UNDONE)\n"
    "    self._in_doubt = True",
)
OWNERS_IGNORED = swap(MODEL + "quota.ledger:DeviceSlot.left", property(lambda _slot: 1000))
NOT_QUEUED_AGAIN = swap(
    PROPOSE + "queue.scheduling_queue:SchedulingQueue.again", lambda _queue, _entry: None
)
NOTHING_RELEASED = rewrite(
    COMMIT + "ledgers.charges:release_binding",
    "return_node(draft, binding.node, held_by_binding(binding), replica)",
    "pass",
)

BUGS = (
    bug(
        SC1,
        "sc1.quota-first",
        "a bind is committed without the tenant's quota",
        rewrite(
            COMMIT + "lifecycle.bind:_take",
            "charge_tenant(draft, context, replica.namespace, of, held.charge, budget)",
            "cohort_of(draft, replica.namespace)",
        ),
        swap(COMMIT + "ledgers.charges:refund_tenant", lambda *_: None),
    ),
    bug(SC1, "sc1.says-why", "the reason why a replica waits is not written", NO_REASON_WRITTEN),
    bug(SC1, "sc1.one-bind", "a node whose heartbeat is late takes work", *SUSPECT_NODES_TAKE_WORK),
    bug(
        SC1,
        "sc1.next-candidate",
        "after a refusal the scheduler waits for a change of the replica and tries no other node",
        swap(PROPOSE + "binder:reaction_to", lambda _reason: RefusalReaction.AWAIT_CHANGE),
    ),
    bug(SC1, "sc1.one-owner", "the owners of a device are not checked", OWNERS_IGNORED),
    bug(
        SC2,
        "sc2.refused",
        "a node that is being drained takes work",
        rewrite(RULES + "closed_refusal", "if gate.draining:", "if False:"),
    ),
    bug(
        SC2,
        "sc2.names-revisions",
        "a refusal does not name the revision of the proposal",
        swap(COMMIT + "lifecycle.bind:_with_seen", lambda _draft, _request, refusal: refusal),
    ),
    bug(
        SC2,
        "sc2.names-revisions",
        "a bind does not say which revision of the node it was proposed on",
        rewrite(
            PROPOSE + "bind_operation:bind_of",
            "node_revision=proposal.node_revision,",
            "",
        ),
    ),
    bug(SC2, "sc2.elsewhere", "a refused replica is not queued again", NOT_QUEUED_AGAIN),
    bug(
        SC2,
        "sc2.drain-ends",
        "a released replica keeps its ordinal",
        rewrite(MODEL + "placement.vacancy:vacates", "state is State.RELEASED", "False"),
    ),
    bug(SC3, "sc3.read-by-operation", "a lost answer counts as a failed bind", LOST_MEANS_FAILED),
    bug(
        SC3,
        "sc3.bound-published",
        "a bind leaves the pending reason in the status",
        rewrite(COMMIT + "lifecycle.bind:_bind", "pending=None,", ""),
    ),
    bug(SC3, "sc3.no-second", "a lost answer counts as a failed bind", LOST_MEANS_FAILED),
    bug(
        SC3,
        "sc3.count-stays",
        "a Suspect node is marked at once, and replicas in state Unknown are replaced",
        MARKED_AT_ONCE,
        rewrite(
            MODEL + "placement.vacancy:vacates",
            "state is State.RELEASED",
            "state in (State.RELEASED, State.UNKNOWN)",
        ),
    ),
    bug(
        SC3,
        "sc3.node-spared",
        "a node whose heartbeat is late takes work",
        *SUSPECT_NODES_TAKE_WORK,
    ),
    bug(
        SC3,
        "sc3.not-destroyed",
        "a Suspect node is marked and fenced at once",
        MARKED_AT_ONCE,
        rewrite(
            CORRECT + "nodes.controller:NodesController._fence",
            "wait_ms = seen_ms + fence_wait_ms(node.status.timing, timing) - now_ms",
            "wait_ms = 0",
        ),
    ),
    bug(SC3, "sc3.retrying", "the reason why a replica waits is not written", NO_REASON_WRITTEN),
    bug(
        SC3,
        "sc3.backs-off",
        "a bind whose answer was lost is sent again at once",
        rewrite(
            OBSERVE + "operation:OperationMachine._looked",
            "return self._pause(_Next.SEND, _lost(), 0, now_ms)",
            "return self._send(now_ms)",
        ),
    ),
    bug(
        SC3,
        "sc3.fresh-candidate",
        "the scheduler keeps its first choice, and cordons are ignored",
        swap(PROPOSE + "binder:BIND_POLICY", msgspec.structs.replace(BIND_POLICY, tries_max=1_000)),
        rewrite(RULES + "closed_refusal", "if gate.cordoned:", "if False:"),
    ),
    bug(
        SC3,
        "sc3.one-in-the-end",
        "a bind that was lost three times is given up",
        rewrite(
            PROPOSE + "binder:Binder._untraced",
            "self._pause(entry, SCHEDULING_RETRYING, message, now)",
            "pass",
        ),
    ),
    bug(
        SC7,
        "sc7.epochs",
        "a takeover does not raise the epoch",
        rewrite(
            COMMIT + "leases:acquire",
            "_last_epoch(draft, request.scope) + 1",
            "max(1, _last_epoch(draft, request.scope))",
        ),
    ),
    bug(
        SC7,
        "sc7.stale-epoch",
        "a former leader gets the state of the replica as refusal reason, not StaleEpoch",
        swap(COMMIT + "leases:former_holder_refusal", lambda _d, _c, _t, refusal: refusal),
    ),
    bug(
        SC7,
        "sc7.kept",
        "epochs are not checked, and the new leader is slow",
        rewrite(
            COMMIT + "lifecycle.bind:_bind",
            "term_refusal(draft, context, request.term)\n",
            "None\n",
        ),
        rewrite(
            PROPOSE + "scheduler:Scheduler._may_decide",
            "return room > 0 and",
            "return not self.identity.endswith(':b') and room > 0 and",
        ),
    ),
    bug(
        SC7,
        "sc7.not-repeated",
        "a scheduler schedules replicas that are bound",
        rewrite(PROPOSE + "scheduler:is_waiting", "return is_pending and", "return"),
    ),
    bug(SC8, "sc8.one-gpu", "the owners of a device are not checked", OWNERS_IGNORED),
    bug(
        SC8,
        "sc8.one-cpu",
        "the used capacity of a node is not checked",
        rewrite(MODEL + "placement.fit:shortage", "units <= free", "True"),
    ),
    bug(
        SC8,
        "sc8.one-quota",
        "a tenant's quota is not checked",
        swap(MODEL + "quota.allowance:quota_refusal", lambda *_: None),
    ),
    bug(
        SC8,
        "sc8.learns",
        "after any refusal another node is tried at once",
        swap(PROPOSE + "binder:reaction_to", lambda _reason: RefusalReaction.ANOTHER_NODE),
        QUOTA_NOT_CHECKED,
    ),
    bug(
        SC8,
        "sc8.requeues",
        "waiting replicas are never woken",
        swap(PROPOSE + "queue.scheduling_queue:SchedulingQueue.wake", lambda *_: None),
    ),
    bug(SC8, "sc8.explains", "the reason why a replica waits is not written", NO_REASON_WRITTEN),
    bug(SC8, "sc8.nothing-leaks", "released capacity stays charged", NOTHING_RELEASED),
    bug(
        SC15,
        "sc15.woken",
        "watch events wake no replica",
        swap(PROPOSE + "queue.queueing_hints:QueueingHints.after_changes", lambda *_: None),
        swap(PROPOSE + "queue.queueing_hints:QueueingHints.after_releases", lambda *_: None),
    ),
    bug(
        SC15,
        "sc15.zero",
        "every listed change counts as missed, also when the watch delivered it",
        rewrite(
            OBSERVE + "reflector:Reflector.take_resync",
            "self.resync_revision = event.revision",
            "self.resync_revision, self.missed = event.revision, self.missed + 1",
        ),
    ),
    bug(
        SC15,
        "sc15.found",
        "there is no resync, neither of the cache nor of the queue",
        rewrite(
            OBSERVE + "cache:Cache._next_resync_ms",
            "now.monotonic_ms +",
            "10**9 + now.monotonic_ms +",
        ),
        rewrite(
            PROPOSE + "scheduler:Scheduler._resync",
            "now.monotonic_ms < self._resync_at_ms",
            "True",
        ),
    ),
    bug(
        SC15,
        "sc15.counted",
        "changes that only a list found are not counted",
        rewrite(OBSERVE + "reflector:Reflector.take_resync", "self.missed += len(found)", "pass"),
        rewrite(
            OBSERVE + "reflector:Reflector.take", "self.missed += len(self._unconfirmed)", "pass"
        ),
    ),
)
