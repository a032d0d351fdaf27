"""controller:repair: ends replicas whose agent can no longer report on them.

It owns the end of replicas that a fence, or a later incarnation of their node, proved to be gone,
and releases reservations that were held for too long. controller:nodes fences before it;
controller:workload replaces the replicas afterwards.

    Unknown              -> Failed    its node is fenced, or lives on without it
    Unknown, `keep` work -> Failed    replaceAfter has passed, and its installation is not back
    Failed, Succeeded,
    Stopping             -> Released  its node is fenced or lives on; or it was never bound
    Bound, Running       -> Stopping  its node lives on without it
    Bound                -> Stopping  it did not start within startupDeadlineSeconds
    Bound, Running       -> Stopping  its gang is over: too few members are left, or it runs
                                      without this one; then the gang starts again as a whole
    Reserved             -> Pending   the deadline of its reservation has passed

`keep` work continues when its node is disconnected: only the installation that ran it can prove
that it has stopped, whichever installation has the node's name by then. The commit proves all of
this again, from the node's ledger in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.correct.controller import BY_NODE, Controller, ReconcilePlan, key_of, step_id
from holdfast.correct.pacing import MonotonicWaits, held_left_ms
from holdfast.correct.remembered import Notes, keys_of, uids_of
from holdfast.model.kinds.node import GONE, Node, NodePhase
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.lifecycle import ENDING, Actor, Cause, State
from holdfast.model.nodes.installations import awaits_adoption, is_kept_elsewhere, keeps
from holdfast.model.placement.gang import claim_of, gang_record_name, is_formed
from holdfast.model.placement.vacancy import NODE_RETURNED
from holdfast.model.requests import Evict, Move, Term, Unreserve, target
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

# Deadlines are on the authority's wall clock, which acts two seconds late itself. With one second
# more, a controller's clock may be a little ahead without a refused request.
LATE_MS = 3_000
# How soon to reconcile again when the cache may lack a related object.
UNTOLD_PAUSE_MS = 1_000

_CONCERNS = (State.RESERVED, State.BOUND, State.RUNNING, State.UNKNOWN, *ENDING)


class RepairController(Controller):
    """See the module's docstring."""

    actor = Actor.REPAIR
    follows = ("replicas", "nodes", "reservations")
    indexes = (BY_NODE,)

    def __init__(self) -> None:
        # When each replica was first seen bound, by its key.
        self._bound_ms: Notes[Key, tuple[str, int]] = Notes(keys_of("replicas"))
        self._waits = MonotonicWaits(uids_of("replicas", "reservations"))
        self.remembers = (self._bound_ms, self._waits)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A node concerns all replicas bound to it, a reservation the replicas of its claims.

        A change of a node's capacity concerns no replica.
        """
        obj: Any = change.object
        match obj:
            case Node():
                before: Any = change.before
                if change.after is not None and before is not None and _same_life(before, obj):
                    return ()
                return [key_of(replica) for replica in view.found(BY_NODE, obj.name)]
            case Reservation():
                known: Any = change.before if change.before is not None else obj
                claims = (*known.status.claims, *obj.status.claims)
                names = dict.fromkeys(it.replica for it in claims if it.replica)
                return [(obj.namespace, name) for name in names]
        return (key_of(obj),)

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return [key_of(it) for it in view.all("replicas") if it.status.state in _CONCERNS]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        replica: Replica | None = view.get("replicas", *key)
        state_now = replica.status.state if replica is not None else None
        if state_now is not State.BOUND:
            self._bound_ms.pop(key, None)
        if replica is None or state_now not in _CONCERNS:
            return ReconcilePlan()
        state, binding = replica.status.state, replica.status.binding
        if state is State.RESERVED:
            return self._reserved(view, replica, term, now)
        if binding is None:
            return self._move(replica, State.RELEASED, "NeverBound", "it was never bound", term)
        node: Node | None = view.get("nodes", "", binding.node)
        if node is None:
            if not view.knows_all_of(replica):
                return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
            return self._ended(replica, "NodeGone", f"node {binding.node} is gone", term)
        if node.status.incarnation > binding.node_incarnation:
            return self._of_earlier_life(replica, node, binding, term, now)
        over = self._without_gang(view, replica, term)
        if over is not None:
            return over
        if keeps(replica) and state is not State.BOUND:
            is_out = node.status.mark is not None
            return self._kept(replica, term, now) if is_out else ReconcilePlan()
        if node.status.phase in GONE:
            return self._ended(replica, "Fenced", f"node {node.name} is fenced", term)
        if state is State.BOUND and node.status.phase is NodePhase.READY:
            return self._starting(replica, term, now)
        return ReconcilePlan()

    def _of_earlier_life(
        self, replica: Replica, node: Node, binding: Binding, term: Term, now: Instant
    ) -> ReconcilePlan:
        """Its node has a new incarnation; only its own installation may adopt the replica."""
        if is_kept_elsewhere(replica, binding, node.status.installation):
            return self._kept(replica, term, now)
        if awaits_adoption(replica, binding):
            return ReconcilePlan()
        evidence = f"node {node.name} lives in incarnation {node.status.incarnation}"
        return self._ended(replica, NODE_RETURNED, evidence, term)

    def _starting(self, replica: Replica, term: Term, now: Instant) -> ReconcilePlan:
        """Evict work that does not start on its node in time, so that it is placed again.

        Only on a node in contact, since its agent has to prove that the work has stopped. The time
        counts on the monotonic clock since the replica was seen bound: a wall clock that jumps must
        not stop work that is about to start.
        """
        binding, within_s = replica.status.binding, replica.spec.template.startup_deadline_seconds
        if binding is None:
            return ReconcilePlan()
        uid, since_ms = self._bound_ms.get(key_of(replica), ("", 0))
        if uid != replica.metadata.uid:
            since_ms = now.monotonic_ms
            self._bound_ms[key_of(replica)] = replica.metadata.uid, since_ms
        left_ms = since_ms + within_s * 1_000 - now.monotonic_ms
        if left_ms > 0:
            return ReconcilePlan(wake_after_ms=left_ms)
        evidence = f"not started on {binding.node} within startupDeadlineSeconds={within_s}"
        operation = step_id(self.identity, replica, "stop-overdue")
        return ReconcilePlan((Evict(target(replica), Cause.REPAIR, evidence, term, operation),))

    def _without_gang(self, view: Snapshot, replica: Replica, term: Term) -> ReconcilePlan | None:
        """Stop a member whose gang does not run, or runs without it; None if all is well.

        The record is written with the bind and with each end of a member, so a view that knows all
        that the replica's last write knew has the right one.
        """
        if not replica.spec.gang or replica.status.state not in (State.BOUND, State.RUNNING):
            return None
        if not view.knows_all_of(replica):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        name = gang_record_name(replica.spec.gang)
        record: Reservation | None = view.get("reservations", replica.namespace, name)
        if record is not None and is_formed(record, replica.spec.workload_uid):
            if claim_of(record, replica.name) is not None:
                return None
            why = f"gang {replica.spec.gang} runs without it"
        elif record is not None:
            why = f"gang {replica.spec.gang} is over: {record.status.reason}"
        else:
            why = f"gang {replica.spec.gang} has no record"
        operation = step_id(self.identity, replica, "stop-gang")
        return ReconcilePlan((Evict(target(replica), Cause.REPAIR, why, term, operation),))

    def _ended(self, replica: Replica, reason: str, evidence: str, term: Term) -> ReconcilePlan:
        """One step towards the release of work that its node can no longer be running."""
        match replica.status.state:
            case State.BOUND | State.RUNNING if reason == NODE_RETURNED:
                cause = Cause.REPAIR
                operation = step_id(self.identity, replica, f"stop-{reason}")
                return ReconcilePlan((Evict(target(replica), cause, evidence, term, operation),))
            case State.UNKNOWN:
                return self._move(replica, State.FAILED, reason, evidence, term)
            case State.FAILED | State.SUCCEEDED | State.STOPPING if not keeps(replica):
                return self._move(replica, State.RELEASED, reason, evidence, term)
        return ReconcilePlan()

    def _kept(self, replica: Replica, term: Term, now: Instant) -> ReconcilePlan:
        """Fail `keep` work that is out of contact for longer than its owner wants to wait."""
        wait_s = replica.spec.template.replace_after_seconds
        is_out = replica.status.state is State.UNKNOWN
        if not is_out or wait_s is None or not replica.status.transitions:
            return ReconcilePlan()
        since, uid = replica.status.transitions[-1].at, replica.metadata.uid
        wait_ms = wait_s * 1_000 + LATE_MS
        left_ms = self._waits.left_ms(uid, "contact", since, wait_ms, now, credit=True)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        evidence = f"out of contact for replaceAfterSeconds={wait_s}"
        return self._move(replica, State.FAILED, "ReplaceAfter", evidence, term)

    def _reserved(
        self, view: Snapshot, replica: Replica, term: Term, now: Instant
    ) -> ReconcilePlan:
        held: Reservation | None = view.get(
            "reservations", replica.namespace, replica.status.reservation
        )
        if held is None and not view.knows_all_of(replica):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        left_ms = held_left_ms(held, self._waits, LATE_MS, now) if held is not None else 0
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        operation = step_id(self.identity, replica, "unreserve")
        return ReconcilePlan((Unreserve(target(replica), "Expired", term, operation),))

    def _move(
        self, replica: Replica, to: State, reason: str, evidence: str, term: Term
    ) -> ReconcilePlan:
        move = Move(
            target(replica),
            to,
            reason,
            evidence,
            term=term,
            operation=step_id(self.identity, replica, f"{to.value}-{reason}"),
        )
        return ReconcilePlan((move,))


def _same_life(before: Node, after: Node) -> bool:
    """Whether phase, mark and incarnation are unchanged: work on the node depends on these."""
    was, now = before.status, after.status
    return (was.phase, was.mark, was.incarnation) == (now.phase, now.mark, now.incarnation)
