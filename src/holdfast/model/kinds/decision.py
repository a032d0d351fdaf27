"""Decision: why a scheduler chose as it did, so that it can be explained and computed again."""

from __future__ import annotations

from holdfast.model.meta import Count, Int, Millis, Object, Part, Revision, Timestamp


class ScoredCandidate(Part, frozen=True):
    """One of the best candidates, with what each scorer gave it.

    node: the candidate.
    total: the weighted sum.
    scores: what each scorer gave.
    """

    node: str
    total: Int = 0
    scores: dict[str, Int] = {}


class DecisionSpec(Part, frozen=True):
    """What was decided, on what, and what came of it.

    replica: the replica it is about.
    replica_uid: that replica's uid.
    attempt: which attempt this was.
    operation: the operation id, which joins it to the store's history and to the agent.
    scheduler: who decided.
    scope: under which lease.
    epoch: under which epoch of it.
    generation: of the replica, as the scheduler saw it; 0 if its record does not say.
    revision: of the workload's template, which says what the workload was then.
    policy: the SchedulerPolicy revision.
    snapshot_revision: the revision that was seen.
    snapshot_age_ms: how old that was.
    seen: the revision that was seen of each kind; streams are not equally fast.
    assumed: placements that were assumed but not yet seen, as the sequence of their round and the
        bits of its members in hex.
    shunned: nodes that were left alone after a refusal, with its reason.
    seed: the seed of ties.
    nodes: how many nodes were looked at.
    candidates: how many of them would do.
    filtered: how many nodes each reason ruled out.
    best: the best candidates.
    quota: the state of the quota.
    chosen: the node that was proposed.
    result: Accepted, or the reason of the refusal.
    message: a sentence for people.
    verdict: how much of a hope there is, for one that waits.
    nearest_miss: the node that came closest and what it lacked.
    smallest_change: the smallest change that would let it fit.
    next_owner: who moves next.
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

    spec: what was decided, on what, and what came of it.
    """

    spec: DecisionSpec
