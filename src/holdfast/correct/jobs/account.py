"""The account of a job: what is complete, what has failed, and how it ended.

Part of controller:workload, which calls `settled` for a job as a whole; `jobs.py` runs its
replicas. The account is in the job's status. No birth of an index that is in it is accepted, and
only what is in it is cleared away (`tally.py`).

    an index succeeded                -> into the account
    all complete                      -> Complete
    retries used up, a rule of the failure policy, or the deadline
                                      -> Failed
    finished                          -> removed after ttlSecondsAfterFinished
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.correct.controller import BY_WORKLOAD, ReconcilePlan, View, operation, sooner
from holdfast.correct.pacing import Cooldowns, MonotonicWaits
from holdfast.correct.workload.endings import ending
from holdfast.correct.workload.replica_creation import FURTHER, IDENTITY, is_of
from holdfast.model.indexes import Indexes, parse
from holdfast.model.jobs import COMPLETE, DEADLINE_EXCEEDED, FAILED, completions, finished_condition
from holdfast.model.kinds.replica import DEADLINE_PASSED, Replica
from holdfast.model.kinds.workload import FailureAction, Job, JobStatus, Workload, WorkloadStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.requests import Remove, Update
from holdfast.model.time import Instant, rfc3339, timestamp, wall_ms

# What a job's replicas and its account say together: what is complete, and what has failed.
#
# controller:workload decides by this and writes the account from it; controller:status counts by
# it. The account is in the job's status, and a replica may go once it is in there. Nothing is
# counted twice, however often it is seen: an index is complete or not, and each replica carries how
# often its index had failed before it, so that of all that is said of an index the highest count is
# right.

# How often the index of a replica had failed before it was made.
FAILURES_ANNOTATION = "holdfast.dev/failures-before"
# Ends that are the doing of its node: it was cut off, or started anew within its fence.
_OF_THE_NODE = (DEADLINE_PASSED, "Rebooted")
_SIGNAL_BASE = 128
_DIGITS_MAX = 9


class JobTally(msgspec.Struct, frozen=True):
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


def tally(job: Workload, mine: Iterable[Replica]) -> JobTally:
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
    return JobTally(parse(account.completed_indexes).plus(done), failures, lives, fatal)


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


# When a job is over, and why. Asked by the two halves of `jobs.py` alike, and by status.

ALL_SUCCEEDED = "AllSucceeded"
RETRIES_EXCEEDED = "RetriesExceeded"
FAILURE_POLICY = "FailurePolicy"


def deadline_ms(job: Workload) -> int | None:
    """By when, on the calendar, a job has to be complete. It counts from the job's creation."""
    begun, within_s = job.metadata.creation_timestamp, job.spec.job.deadline_seconds
    if begun is None or within_s is None:
        return None
    return wall_ms(begun) + within_s * 1_000


def verdict(job: Workload, counted: JobTally, *, is_late: bool) -> Condition | None:
    """How a job that goes on has just ended, if it has. `is_late` says that its time is over."""
    total, done = completions(job.spec), len(counted.completed)
    if done >= total:
        return _said(job, COMPLETE, ALL_SUCCEEDED, f"{done} of {total} have succeeded")
    so_far = f"{done} of {total} had succeeded"
    if counted.fatal is not None:
        process = counted.fatal.status.process
        how = f"signal {process.signal}" if process.signal else f"exit code {process.exit_code}"
        why = f"{counted.fatal.name} ended with {how}, which fails the job; {so_far}"
        return _said(job, FAILED, FAILURE_POLICY, why)
    if counted.failed > job.spec.job.retries:
        why = f"{counted.failed} failures, {job.spec.job.retries} retries; {so_far}"
        return _said(job, FAILED, RETRIES_EXCEEDED, why)
    due_ms = deadline_ms(job)
    if due_ms is not None and is_late:
        why = f"the deadline was {rfc3339(due_ms)}; {so_far}"
        return _said(job, FAILED, DEADLINE_EXCEEDED, why)
    return None


def _said(job: Workload, kind: str, reason: str, message: str) -> Condition:
    generation = job.metadata.generation
    return Condition(kind, ConditionStatus.TRUE, generation, reason=reason, message=message)


# The account is written no more often than this, but for the end, which is written at once.
ACCOUNT_PAUSE_MS = 1_000
# Time is judged again by the authority; where it disagrees, it is asked again after this.
REFUSED_PAUSE_MS = 5_000
TTL, DEADLINE = "ttl", "deadline"


def replicas_of(view: View, job: Workload) -> list[Replica]:
    """The replicas of this very job."""
    named: list[Replica] = view.found(BY_WORKLOAD, f"{job.namespace}/{job.name}")
    return [it for it in named if is_of(it, job)]


class JobAccounts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rests = Cooldowns()
        self._waits = MonotonicWaits()
        # When the account of each job was last asked to be written, by its uid.
        self._written_ms: dict[str, int] = {}

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget jobs that are gone, and look at all others at once."""
        self._rests.clear()
        self._waits.forget_all_but(uids)
        self._written_ms = {uid: ms for uid, ms in self._written_ms.items() if uid in uids}

    def late_in_ms(self, job: Workload, now: Instant) -> int | None:
        """In how long the deadline of a job passes, if it has one."""
        begun, within_s = job.metadata.creation_timestamp, job.spec.job.deadline_seconds
        if begun is None or within_s is None:
            return None
        uid, within_ms = job.metadata.uid, within_s * 1_000
        return self._waits.left_ms(uid, DEADLINE, begun, within_ms, now, credit=True)

    def settled(self, view: View, job: Workload, now: Instant) -> ReconcilePlan:
        """Write the account when it has changed, and remove what is over for long enough."""
        over = finished_condition(job)
        ttl_s = job.spec.job.ttl_seconds_after_finished
        left_ms: int | None = None
        if over is not None and over.last_transition_time is not None and ttl_s is not None:
            since, uid = over.last_transition_time, job.metadata.uid
            left_ms = self._waits.left_ms(uid, TTL, since, ttl_s * 1_000, now, credit=True)
            if not left_ms:
                return ReconcilePlan((_removed(job),), wake_after_ms=REFUSED_PAUSE_MS)
        key = job.namespace, job.name
        rest_ms = self._rests.left_ms(key, now)
        if rest_ms:
            return ReconcilePlan(wake_after_ms=rest_ms)
        mine = replicas_of(view, job)
        self._rests.rest(key, len(mine), now)
        counted = tally(job, mine)
        late_in_ms = self.late_in_ms(job, now)
        ends = verdict(job, counted, is_late=late_in_ms == 0) if over is None else None
        account = _account(job, counted, now, has_ended=ends is not None)
        status = msgspec.structs.replace(job.status, job=account)
        if ends is not None:
            said = with_condition(job.status.conditions, ends, timestamp(now.wall_ms))
            status = msgspec.structs.replace(status, conditions=said)
        if over is None and late_in_ms is not None:
            # The authority's clock may be behind ours: then the end is said again.
            left_ms = late_in_ms or REFUSED_PAUSE_MS
        if status == job.status:
            return ReconcilePlan(wake_after_ms=left_ms)
        return self._written(job, status, left_ms, now, at_once=ends is not None)

    def _written(
        self,
        job: Workload,
        status: WorkloadStatus,
        left_ms: int | None,
        now: Instant,
        *,
        at_once: bool,
    ) -> ReconcilePlan:
        uid = job.metadata.uid
        rest_ms = self._written_ms.get(uid, -ACCOUNT_PAUSE_MS) + ACCOUNT_PAUSE_MS
        if not at_once and rest_ms > now.monotonic_ms:
            return ReconcilePlan(wake_after_ms=sooner(left_ms, rest_ms - now.monotonic_ms))
        self._written_ms[uid] = now.monotonic_ms
        written = msgspec.structs.replace(job, status=status)
        return ReconcilePlan((Update(written, "status"),), wake_after_ms=left_ms)


def _account(job: Workload, counted: JobTally, now: Instant, *, has_ended: bool) -> JobStatus:
    before = job.status.job
    alive = [
        it
        for lives in counted.lives.values()
        for it in lives
        if it.status.state in (*FURTHER, State.STOPPING)
    ]
    return JobStatus(
        active=len(alive),
        succeeded=len(counted.completed),
        failed=counted.failed,
        completed_indexes=str(counted.completed),
        failures={str(index): count for index, count in sorted(counted.failures.items())},
        start_time=before.start_time or job.metadata.creation_timestamp,
        completion_time=timestamp(now.wall_ms) if has_ended else before.completion_time,
    )


def _removed(job: Workload) -> Remove:
    uid = job.metadata.uid
    intent = operation(IDENTITY, uid, "finished", "remove")
    return Remove("workloads", job.namespace, job.name, uid, operation=intent)
