"""Disruption budgets: how many replicas of a workload may be stopped on purpose at once.

There is one budget for all causes: drains, rollouts, preemption and rebalancing use the same
ledger, inside the transaction that evicts. Replicas that are missing for other reasons count as
well, so a drain waits while a node is down.

Whether a replica counts as missing follows from its own status, and each transaction that changes
that updates the ledger (`commit/ledgers/derived_records.py`). A replica is missing from its
creation until its agent reports it ready. Ordinals without a replica are the difference between
desired and healthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Disruption, Workload, WorkloadType
from holdfast.model.lifecycle import READY_STAGES, Cause, State
from holdfast.model.quota.ledger import DisruptionLedger
from holdfast.model.refusal import Reason, Refusal

# Portions: a whole number, or a percentage of a total, as in Kubernetes.
#
# Rollouts, disruption budgets and canary steps state a portion of a workload either as a number of
# replicas (3) or as a share of all of them ("25%"). Validation refuses every other text, so that
# `portion` is total for accepted objects.

# A workload has at most this many replicas, so no portion of it can be larger.
PORTION_MAX = 1_000_000
RULE = f'must be a whole number from 0 to {PORTION_MAX} or a percentage from "0%" to "100%"'

_PERCENT = re.compile(r"(0|[1-9][0-9]?|100)%", re.ASCII)


def percent(value: int | str) -> int | None:
    """The percentage of a portion; None if it is a number."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found is not None else None


def is_portion(value: int | str) -> bool:
    """Whether this is a portion. A number in quotes is not, as in Kubernetes."""
    if isinstance(value, str):
        return percent(value) is not None
    return not isinstance(value, bool) and 0 <= value <= PORTION_MAX


def is_nothing(value: int | str) -> bool:
    """Whether this portion of any total is zero."""
    return value in (0, "0%")


def portion(value: int | str, total: int, *, round_up: bool) -> int:
    """The size of a portion of `total`.

    A number is used as it is, even beyond the total: a surge of 3 on top of 2 replicas means 3.
    Only a percentage is rounded, up or down, whichever is safe for the caller.
    """
    if not is_portion(value):
        error = FieldError(path="", value=repr(value)[:60], rule=RULE)
        raise Invalid(str(error), (error,))
    share = percent(value)
    if share is None:
        return int(value)
    return -(-total * share // 100) if round_up else total * share // 100


# These causes stop work for the benefit of other work, so the budget applies. The other causes
# follow the workload owner's own request, or remove what has already failed; they are counted but
# never refused.
BUDGETED = frozenset({Cause.DRAIN, Cause.TAINT, Cause.ROLLOUT, Cause.PREEMPTION})


def is_available(replica: Replica) -> bool:
    """Whether it is ready and not being deleted."""
    status = replica.status
    is_wanted = replica.metadata.deletion_timestamp is None
    return is_wanted and status.state is State.RUNNING and status.stage in READY_STAGES


def is_missing(of: WorkloadType, replica: Replica) -> bool:
    """Whether this replica counts against the budget of a workload of this type.

    A replica of a service counts until its successor is ready. A replica whose work may have ended
    for good, by itself or because its node is drained, counts until it is released.
    """
    if is_available(replica):
        return False
    if of is WorkloadType.SERVICE:
        return True
    is_evicted = replica.status.cause is not None
    is_left = replica.status.state is not State.RELEASED
    return is_left and (is_evicted or of is WorkloadType.PER_NODE)


def availability_key(replica: Replica | None) -> tuple[bool, bool, bool] | None:
    """All inputs of `is_missing`. While they stay the same, no ledger write is needed."""
    if replica is None:
        return None
    status = replica.status
    return is_available(replica), status.state is State.RELEASED, status.cause is not None


def count_change(
    ledger: DisruptionLedger, before: Replica | None, after: Replica | None
) -> DisruptionLedger:
    """The ledger after a replica was created, changed or deleted."""
    there, healthy = ledger.replicas, ledger.healthy
    for replica, change in ((before, -1), (after, 1)):
        if replica is not None:
            there += change
            healthy += 0 if is_missing(ledger.type, replica) else change
    return msgspec.structs.replace(ledger, replicas=there, healthy=healthy)


def desired_of(workload: Workload) -> int | None:
    """The desired count, for a service with a budget; None otherwise."""
    is_counted = workload.spec.type is WorkloadType.SERVICE
    is_asked = workload.spec.disruption is not None
    return workload.spec.replicas if is_counted and is_asked else None


def allowed_missing(budget: Disruption | None, desired: int) -> int | None:
    """How many replicas may be missing at once; None without a budget.

    A percentage rounds to protect more, as in Kubernetes: minAvailable rounds up. maxUnavailable
    rounds up too, so that a single replica can still be moved.
    """
    if budget is None:
        return None
    if budget.min_available is not None:
        return max(0, desired - portion(budget.min_available, desired, round_up=True))
    if budget.max_unavailable is not None:
        return portion(budget.max_unavailable, desired, round_up=True)
    return None


def disruption_ledger_of(
    workload: Workload, replicas: Iterable[Replica], pages: tuple[int, ...] = ()
) -> DisruptionLedger:
    """The ledger of a workload with these replicas and places pages."""
    ledger = DisruptionLedger(
        allowed=allowed_missing(workload.spec.disruption, workload.spec.replicas),
        desired=desired_of(workload),
        pages=pages,
        type=workload.spec.type,
    )
    for replica in replicas:
        ledger = count_change(ledger, None, replica)
    return ledger


def missing_count(ledger: DisruptionLedger) -> int:
    """How many replicas are missing, for any reason. Extra replicas make up for them."""
    wanted = ledger.replicas if ledger.desired is None else ledger.desired
    return max(0, wanted - ledger.healthy)


def disruption_refusal(
    ledger: DisruptionLedger, cause: Cause, *, available: bool = True
) -> Refusal | None:
    """Refuses to stop one more replica. One that is not ready costs nothing."""
    if ledger.allowed is None or cause not in BUDGETED or not available:
        return None
    gone = missing_count(ledger)
    if gone < ledger.allowed:
        return None
    return Refusal(
        Reason.DISRUPTION_BUDGET,
        f"{gone} replicas are already missing, at most {ledger.allowed} may be",
        {"missing": str(gone), "allowed": str(ledger.allowed)},
    )
