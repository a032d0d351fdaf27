"""How much of a workload may be taken away on purpose at the same time.

One budget for all causes: drains, rollouts, preemption and rebalancing draw on the same ledger,
inside the same transaction that evicts. What is missing for other reasons counts as well, so that
a drain waits while a node is down.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.workload import Disruption
from holdfast.model.ledger import DisruptionLedger
from holdfast.model.lifecycle import Cause
from holdfast.model.portions import portion
from holdfast.model.refusal import Reason, Refusal

# These take work away to serve somebody else, so they must ask. The other causes carry out what
# the workload's own owner wants, or clear away what has already failed; they are counted but never
# refused.
BUDGETED = frozenset({Cause.DRAIN, Cause.ROLLOUT, Cause.PREEMPTION})


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


def disruption_refusal(ledger: DisruptionLedger, uid: str, cause: Cause) -> Refusal | None:
    """Whether one more may be taken away. One that is already missing or out costs nothing."""
    if ledger.allowed is None or cause not in BUDGETED:
        return None
    gone = {*ledger.out, *ledger.missing}
    if uid in gone or len(gone) < ledger.allowed:
        return None
    return Refusal(
        Reason.DISRUPTION_BUDGET,
        f"{len(gone)} of {ledger.allowed} allowed are missing already",
        {"missing": str(len(gone)), "allowed": str(ledger.allowed)},
    )


def disrupted(ledger: DisruptionLedger, uid: str, cause: Cause) -> DisruptionLedger:
    """The ledger after this replica was taken away on purpose."""
    return msgspec.structs.replace(ledger, out={**ledger.out, uid: cause})


def made_up(ledger: DisruptionLedger, uid: str) -> DisruptionLedger:
    """The ledger after the loss of this replica was made up for, or no longer matters."""
    rest = {who: cause for who, cause in ledger.out.items() if who != uid}
    return msgspec.structs.replace(
        ledger, out=rest, missing=tuple(who for who in ledger.missing if who != uid)
    )
