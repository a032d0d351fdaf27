"""What a job's replicas and its account say together: what is complete, and what has failed.

controller:workload decides by this and writes the account from it; controller:status counts by it.
The account is in the job's status, and a replica may go once it is in there. Nothing is counted
twice, however often it is seen: an index is complete or not, and each replica carries how often its
index had failed before it, so that of all that is said of an index the highest count is right.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.correct.endings import ending
from holdfast.model.indexes import Indexes, parse
from holdfast.model.kinds.replica import DEADLINE_PASSED, Replica
from holdfast.model.kinds.workload import FailureAction, Job, Workload
from holdfast.model.lifecycle import State

# How often the index of a replica had failed before it was made.
FAILURES_ANNOTATION = "holdfast.dev/failures-before"
# Ends that are the doing of its node: it was cut off, or started anew within its fence.
_OF_THE_NODE = (DEADLINE_PASSED, "Rebooted")
_SIGNAL_BASE = 128
_DIGITS_MAX = 9


class Tally(msgspec.Struct, frozen=True):
    """Where a job stands.

    `lives` are the replicas of each index, the newest last. `fatal` is one whose end fails the
    whole job, by the rules that its owner gave it.
    """

    completed: Indexes
    failures: dict[int, int]
    lives: dict[int, list[Replica]]
    fatal: Replica | None = None

    @property
    def failed(self) -> int:
        """How many failures there were in all."""
        return sum(self.failures.values())


def tally(job: Workload, mine: Iterable[Replica]) -> Tally:
    """Where a job stands, by its account and its replicas."""
    account = job.status.job
    failures = {int(index): count for index, count in account.failures.items()}
    lives: dict[int, list[Replica]] = {}
    fatal: Replica | None = None
    for replica in sorted(mine, key=lambda it: (it.spec.ordinal, it.spec.incarnation)):
        ordinal = replica.spec.ordinal
        lives.setdefault(ordinal, []).append(replica)
        count = failures_with(job.spec.job, replica)
        if count > failures.get(ordinal, 0):
            failures[ordinal] = count
        if fatal is None and verdict_on(job.spec.job, replica) is FailureAction.FAIL_JOB:
            fatal = replica
    done = (ordinal for ordinal, there in lives.items() if any(map(succeeded, there)))
    return Tally(parse(account.completed_indexes).plus(done), failures, lives, fatal)


def succeeded(replica: Replica) -> bool:
    """Whether it has done its work, also where that became known later."""
    return any(step.to is State.SUCCEEDED for step in replica.status.transitions)


def verdict_on(job: Job, replica: Replica) -> FailureAction | None:
    """What the end of a replica means for its job; None if it did not fail by itself.

    What was stopped on purpose, was lost with its node, or ended because its node was cut off or
    started anew has not failed: it says nothing about the work.
    """
    step, process = ending(replica), replica.status.process
    if step is None or step.to is not State.FAILED or process.reason in _OF_THE_NODE:
        return None
    code = process.exit_code
    if process.signal:
        code = _SIGNAL_BASE + process.signal
    rules = (rule for rule in job.failure_policy if code is not None and code in rule.exit_codes)
    found = next(rules, None)
    return found.action if found is not None else FailureAction.COUNT


def failures_with(job: Job, replica: Replica) -> int:
    """How often an index has failed, up to and with this replica of it."""
    counts = verdict_on(job, replica) in (FailureAction.COUNT, FailureAction.FAIL_JOB)
    return failures_before(replica) + replica.status.process.restarts + int(counts)


def failures_before(replica: Replica) -> int:
    """What was counted when it was made."""
    text = replica.metadata.annotations.get(FAILURES_ANNOTATION, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0
