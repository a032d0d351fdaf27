"""How much of a workload may be taken away on purpose at the same time.

One budget for all causes: drains, rollouts, preemption and rebalancing draw on the same ledger,
inside the same transaction that evicts. What is missing for other reasons counts as well, so that
a drain waits while a node is down.

Whether a replica counts as missing is said by the replica itself, and each transaction that changes
that counts it in the ledger (`commit/ledgers/derived_records.py`). From its birth on it is missing
until its agent reports it ready. A place without a replica is the difference between what is
desired and what is healthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Disruption, Workload, WorkloadType
from holdfast.model.ledger import DisruptionLedger
from holdfast.model.lifecycle import STAGES, Cause, Stage, State
from holdfast.model.refusal import Reason, Refusal

# Portions: a whole number, or per cent of a total, as Kubernetes writes them.
#
# Rollouts, disruption budgets and canary steps state how much of a workload they mean either as a
# number of replicas (3) or as a share of all of them ("25%"). Validation refuses every other text,
# so that `portion` is total for accepted objects.

# A workload has at most so many replicas, so no portion of it can be larger.
PORTION_MAX = 1_000_000
RULE = f'must be a whole number from 0 to {PORTION_MAX} or a percentage from "0%" to "100%"'

_PERCENT = re.compile(r"(0|[1-9][0-9]?|100)%", re.ASCII)


def percent(value: int | str) -> int | None:
    """The per cent that a portion states, or None where it states a number."""
    found = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found is not None else None


def is_portion(value: int | str) -> bool:
    """Whether this is a portion at all. A number in quotes is not, as in Kubernetes."""
    if isinstance(value, str):
        return percent(value) is not None
    return not isinstance(value, bool) and 0 <= value <= PORTION_MAX


def is_nothing(value: int | str) -> bool:
    """Whether this portion of any total is zero."""
    return value in (0, "0%")


def portion(value: int | str, total: int, *, round_up: bool) -> int:
    """How many of `total` are meant.

    A number is taken as it is, also beyond the total: a surge of 3 on top of 2 replicas means 3.
    Only a percentage is rounded, up or down as the caller needs to stay on the safe side.
    """
    if not is_portion(value):
        error = FieldError(path="", value=repr(value)[:60], rule=RULE)
        raise Invalid(str(error), (error,))
    share = percent(value)
    if share is None:
        return int(value)
    return -(-total * share // 100) if round_up else total * share // 100


# These take work away to serve somebody else, so they must ask. The other causes carry out what
# the workload's own owner wants, or clear away what has already failed; they are counted but never
# refused.
BUDGETED = frozenset({Cause.DRAIN, Cause.ROLLOUT, Cause.PREEMPTION})

_READY = STAGES[STAGES.index(Stage.READY) :]


def is_available(replica: Replica) -> bool:
    """Whether it does its work, and is to be left to do so."""
    status = replica.status
    is_wanted = replica.metadata.deletion_timestamp is None
    return is_wanted and status.state is State.RUNNING and status.stage in _READY


def is_missing(of: WorkloadType, replica: Replica) -> bool:
    """Whether this replica of a workload of this type counts against its budget at present.

    At a place of a service it does until its successor works. Where the work may have ended for
    good, by itself or because its node is emptied, it does until it is released.
    """
    if is_available(replica):
        return False
    if of is WorkloadType.SERVICE:
        return True
    is_evicted = replica.status.cause is not None
    is_left = replica.status.state is not State.RELEASED
    return is_left and (is_evicted or of is WorkloadType.PER_NODE)


def availability_key(replica: Replica | None) -> tuple[bool, bool, bool] | None:
    """All that `is_missing` looks at. While it stays the same, no ledger has to be written."""
    if replica is None:
        return None
    status = replica.status
    return is_available(replica), status.state is State.RELEASED, status.cause is not None


def count_change(
    ledger: DisruptionLedger, before: Replica | None, after: Replica | None
) -> DisruptionLedger:
    """The ledger after a replica was born, changed, or went."""
    there, healthy = ledger.replicas, ledger.healthy
    for replica, change in ((before, -1), (after, 1)):
        if replica is not None:
            there += change
            healthy += 0 if is_missing(ledger.type, replica) else change
    return msgspec.structs.replace(ledger, replicas=there, healthy=healthy)


def desired_of(workload: Workload) -> int | None:
    """How many should be there, where a count says so and a budget asks."""
    is_counted = workload.spec.type is WorkloadType.SERVICE
    is_asked = workload.spec.disruption is not None
    return workload.spec.replicas if is_counted and is_asked else None


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


def disruption_ledger_of(
    workload: Workload, replicas: Iterable[Replica], pages: tuple[int, ...] = ()
) -> DisruptionLedger:
    """The ledger of a workload with these replicas, and these pages of places."""
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
    """How many are missing, for whatever reason. Too many elsewhere make up for them."""
    wanted = ledger.replicas if ledger.desired is None else ledger.desired
    return max(0, wanted - ledger.healthy)


def disruption_refusal(
    ledger: DisruptionLedger, cause: Cause, *, available: bool = True
) -> Refusal | None:
    """Whether one may be taken away. One that does no work at the moment costs nothing."""
    if ledger.allowed is None or cause not in BUDGETED or not available:
        return None
    gone = missing_count(ledger)
    if gone < ledger.allowed:
        return None
    return Refusal(
        Reason.DISRUPTION_BUDGET,
        f"{gone} of {ledger.allowed} allowed are missing already",
        {"missing": str(gone), "allowed": str(ledger.allowed)},
    )
