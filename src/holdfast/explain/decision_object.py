"""One member of a decision round as the Decision object that users read.

The servers call this for the rounds that they keep (`host/server/decision_archive.py`). It adds
only names to the record: the operation, and the owner of the next step.
"""

from __future__ import annotations

import hashlib

from holdfast.model.access.identity import agent
from holdfast.model.kinds.decision import Decision, DecisionSpec, ScoredCandidate
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import timestamp
from holdfast.propose.bind_operation import operation_of
from holdfast.propose.decision_rounds import ACCEPTED, Case, DecisionRound

# The label that selects the decisions about one replica.
REPLICA_LABEL = "holdfast.dev/replica"
_UNKNOWN = "Unknown"
_WORDS = {
    ACCEPTED: "bound",
    "": "the answer is unknown: the scheduler was still waiting for it",
}


def decision_of(decided: DecisionRound, case: Case, number: int, member: int) -> Decision:
    """The Decision of entry `number` of a case, which is member `member` of its round."""
    uid, replica = case.uids[number], case.replicas[number]
    chosen = case.nodes[number] if case.nodes else ""
    result = case.results[number] if case.results else ""
    at = timestamp(decided.decided_ms)
    metadata = ObjectMeta(
        name=f"{decided.name}-{member}",
        namespace=case.namespace,
        uid=_uid(decided, member),
        creation_timestamp=at,
        labels={REPLICA_LABEL: replica},
    )
    waits = case.waits
    spec = DecisionSpec(
        replica=replica,
        replica_uid=uid,
        attempt=case.attempts[number],
        operation=operation_of(decided.scheduler, uid, case.numbers[number], chosen)
        if chosen
        else "",
        scheduler=decided.scheduler,
        scope=decided.scope,
        epoch=decided.epoch,
        generation=case.generations[number] if case.generations else 0,
        revision=case.revisions[number],
        policy=decided.policy,
        snapshot_revision=decided.snapshot_revision,
        snapshot_age_ms=decided.snapshot_age_ms,
        snapshot_age_max_ms=decided.snapshot_age_max_ms,
        seen=decided.seen,
        assumed=tuple(f"{left.sequence}:{left.members}" for left in decided.assumed),
        shunned={node: reason for node, (reason, _) in decided.shunned.items()},
        seed=decided.salt,
        nodes=case.looked_at,
        candidates=case.candidates,
        filtered=case.filtered,
        best=tuple(
            ScoredCandidate(
                node=it.node,
                total=round(it.score),
                scores={name: round(score) for name, score in it.scores.items()},
            )
            for it in case.best
        ),
        quota=case.quota,
        chosen=chosen,
        node_revision=case.node_revisions[number] if case.node_revisions else 0,
        result=result or _UNKNOWN,
        message=waits.message if waits is not None else _message(case, number, result),
        verdict=waits.verdict if waits is not None else "",
        nearest_miss=waits.nearest_miss if waits is not None else "",
        smallest_change=waits.smallest_change if waits is not None else "",
        next_owner=waits.owner if waits is not None else _next_owner(result, chosen),
        queued_at=case.queued[number],
        decided_at=at,
    )
    return Decision(metadata=metadata, spec=spec)


def _message(case: Case, number: int, result: str) -> str:
    said = case.messages.get(number)
    return said if said is not None else _WORDS.get(result, result)


def _next_owner(result: str, chosen: str) -> str:
    return agent(chosen).name if result == ACCEPTED else Actor.SCHEDULER.value


def _uid(decided: DecisionRound, member: int) -> str:
    """A uid that is the same on every server and unique among all objects."""
    text = f"{decided.scope}/{decided.epoch}/{decided.sequence}/{member}"
    digits = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    ends = (8, 12, 16, 20, 32)
    return "-".join(digits[begin:end] for begin, end in zip((0, *ends), ends, strict=False))
