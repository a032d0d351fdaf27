"""How much of a workload may be taken away on purpose at the same time.

One budget for all causes: drains, rollouts, preemption and rebalancing draw on the same ledger,
inside the same transaction that evicts. What is missing for other reasons counts as well, so that
a drain waits while a node is down.

A replica counts as available only after it was seen ready by the authority itself. From its birth
on it is `missing`; one that is stopped is `out`; and a place that nobody was born for yet is the
difference between what is wanted and what is there. So whoever is slow to settle a ledger holds
evictions up, and never lets one pass too many.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Disruption, Workload, WorkloadType
from holdfast.model.ledger import DisruptionLedger
from holdfast.model.lifecycle import STAGES, Cause, Stage, State
from holdfast.model.portions import portion
from holdfast.model.refusal import Reason, Refusal

# These take work away to serve somebody else, so they must ask. The other causes carry out what
# the workload's own owner wants, or clear away what has already failed; they are counted but never
# refused.
BUDGETED = frozenset({Cause.DRAIN, Cause.ROLLOUT, Cause.PREEMPTION})

_READY = STAGES[STAGES.index(Stage.READY) :]
_RUNS_ON = (WorkloadType.SERVICE, WorkloadType.PER_NODE)


def is_available(replica: Replica) -> bool:
    """Whether it does its work, and is to be left to do so."""
    status = replica.status
    is_wanted = replica.metadata.deletion_timestamp is None
    return is_wanted and status.state is State.RUNNING and status.stage in _READY


def counts_missing(workload: Workload) -> bool:
    """Whether replicas that are not ready count against its budget.

    Those of a job come and go by themselves: only what was taken from it on purpose counts.
    """
    return workload.spec.disruption is not None and workload.spec.type in _RUNS_ON


def is_missing(workload: Workload, replica: Replica) -> bool:
    """Whether this replica counts against the budget of its workload at present.

    At a place of a service it does until its successor works. Where the work may have ended for
    good, by itself or because its node is emptied, it does until it is released.
    """
    if is_available(replica):
        return False
    if workload.spec.type is WorkloadType.SERVICE:
        return True
    is_evicted = replica.status.cause is not None
    is_left = replica.status.state is not State.RELEASED
    return is_left and (is_evicted or workload.spec.type is WorkloadType.PER_NODE)


def desired_of(workload: Workload) -> int | None:
    """How many should be there, where a count says so."""
    is_counted = counts_missing(workload) and workload.spec.type is WorkloadType.SERVICE
    return workload.spec.replicas if is_counted else None


def allowed_missing(budget: Disruption | None, desired: int) -> int | None:
    """How many may be missing at once; None where nothing is stated.

    A percentage rounds so that it protects more, as in Kubernetes: what must stay rounds up. A
    stated budget of maxUnavailable rounds up too, so that a single replica can still be moved.
    """
    if budget is None:
        return None
    if budget.min_available is not None:
        return max(0, desired - portion(budget.min_available, desired, round_up=True))
    if budget.max_unavailable is not None:
        return portion(budget.max_unavailable, desired, round_up=True)
    return None


def absent(ledger: DisruptionLedger) -> int:
    """How many are missing, for whatever reason. Too many elsewhere make up for them."""
    gone = len({*ledger.out, *ledger.missing})
    if ledger.desired is None:
        return gone
    return max(0, ledger.desired - (ledger.replicas - gone))


def disruption_refusal(
    ledger: DisruptionLedger, uid: str, cause: Cause, *, available: bool = True
) -> Refusal | None:
    """Whether this one may be taken away. One that does no work at the moment costs nothing.

    Whether it does is for the caller to see on the replica itself: the ledger learns of it later.
    """
    if ledger.allowed is None or cause not in BUDGETED or not available:
        return None
    gone = absent(made_up(ledger, uid))
    if gone < ledger.allowed:
        return None
    return Refusal(
        Reason.DISRUPTION_BUDGET,
        f"{gone} of {ledger.allowed} allowed are missing already",
        {"missing": str(gone), "allowed": str(ledger.allowed)},
    )


def disrupted(ledger: DisruptionLedger, uid: str, cause: Cause) -> DisruptionLedger:
    """The ledger after this replica was taken away on purpose."""
    return msgspec.structs.replace(
        ledger,
        out={**ledger.out, uid: cause},
        missing=tuple(who for who in ledger.missing if who != uid),
    )


def lost(ledger: DisruptionLedger, uid: str) -> DisruptionLedger:
    """The ledger after this replica was born, or was seen not to be ready."""
    if uid in ledger.out or uid in ledger.missing:
        return ledger
    return msgspec.structs.replace(ledger, missing=(*ledger.missing, uid))


def made_up(ledger: DisruptionLedger, uid: str) -> DisruptionLedger:
    """The ledger after this replica was seen ready, or is gone."""
    if uid not in ledger.out and uid not in ledger.missing:
        return ledger
    rest = {who: cause for who, cause in ledger.out.items() if who != uid}
    return msgspec.structs.replace(
        ledger, out=rest, missing=tuple(who for who in ledger.missing if who != uid)
    )
