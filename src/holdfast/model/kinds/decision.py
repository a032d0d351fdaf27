"""Decision: why a scheduler chose as it did, so that it can be explained and replayed."""

from __future__ import annotations

from holdfast.model.kind_declaration import Kind, KindRules, Retention, Writers, text
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Count, Int, Millis, Object, Part, Revision, Timestamp


class ScoredCandidate(Part, frozen=True):
    """One of the best candidates, with its scores.

    node: the candidate.
    total: the weighted sum.
    scores: the score of each scorer.
    """

    node: str
    total: Int = 0
    scores: dict[str, Int] = {}


class DecisionSpec(Part, frozen=True):
    """What was decided, on which snapshot, and the result.

    replica: the replica it is about.
    replica_uid: that replica's uid.
    attempt: the number of the attempt.
    operation: the operation id, which joins it to the store's history and to the agent.
    scheduler: the scheduler that decided.
    scope: the scope of its lease.
    epoch: the epoch of that lease.
    generation: of the replica, as the scheduler saw it; 0 if its record does not say.
    revision: of the workload's template, which says what the workload was then.
    policy: the SchedulerPolicy revision.
    snapshot_revision: the revision that was seen.
    snapshot_age_ms: the age of the snapshot.
    snapshot_age_max_ms: the greatest age that the plane allowed then; 0 if its record does not say.
    seen: the revision that was seen of each kind; streams differ in delay.
    assumed: placements that were assumed but not yet seen, as the sequence of their round and the
        bits of its members in hex.
    shunned: nodes that were avoided after a refusal, with its reason.
    seed: the seed for breaking ties.
    nodes: how many nodes were considered.
    candidates: how many of them were feasible.
    filtered: how many nodes each reason ruled out.
    best: the best candidates.
    quota: the state of the quota.
    chosen: the node that was proposed.
    node_revision: the last write of that node that was seen; 0 if its record does not say.
    result: Accepted, or the reason of the refusal.
    message: a sentence for users.
    verdict: whether a pending replica can ever be placed.
    nearest_miss: the node that came closest and what it lacked.
    smallest_change: the smallest change that would let it fit.
    next_owner: who acts next.
    queued_at: when the replica entered the queue.
    decided_at: when this was decided.
    """

    replica: str
    replica_uid: str = ""
    attempt: Count = 0
    operation: str = ""
    scheduler: str = ""
    scope: str = ""
    epoch: Revision = 0
    generation: Revision = 0
    revision: str = ""
    policy: str = ""
    snapshot_revision: Revision = 0
    snapshot_age_ms: Millis = 0
    snapshot_age_max_ms: Millis = 0
    seen: dict[str, Revision] = {}
    assumed: tuple[str, ...] = ()
    shunned: dict[str, str] = {}
    seed: Int = 0
    nodes: Count = 0
    candidates: Count = 0
    filtered: dict[str, Int] = {}
    best: tuple[ScoredCandidate, ...] = ()
    quota: str = ""
    chosen: str = ""
    node_revision: Revision = 0
    result: str = ""
    message: str = ""
    verdict: str = ""
    nearest_miss: str = ""
    smallest_change: str = ""
    next_owner: str = ""
    queued_at: Timestamp | None = None
    decided_at: Timestamp | None = None


class Decision(Object, frozen=True, kw_only=True, tag="Decision"):
    """Why a scheduler chose as it did.

    spec: what was decided, on which snapshot, and the result.
    """

    spec: DecisionSpec


# If the archive does not grow too large (`host/server/decision_archive.py`).
DECISION_RETENTION = Retention(7 * 86_400_000, "it was made")


def _decision_rules() -> KindRules:
    from holdfast.model.validation import records

    return KindRules(records.decision)


DECISION_KIND = Kind(
    Decision,
    "decisions",
    rules=_decision_rules,
    retention=DECISION_RETENTION,
    writers=Writers(spec=(Actor.SCHEDULER,)),
    columns=(
        text("Replica", lambda o: o.spec.replica, "what it is about"),
        text("Chosen", lambda o: o.spec.chosen or "-", "the node that was proposed"),
        text("Result", lambda o: o.spec.result, "Accepted, or why not"),
        text("Message", lambda o: o.spec.message, "a sentence", wide=True),
    ),
    short_names=("dec",),
    status=False,
    immutable=("spec",),
    removal_order=None,
)
