"""The account of a job: which indexes are complete, which have failed, and how the job ended.

Part of controller:workload, which calls `reconcile` for a job as a whole; `index_runs.py` runs its
replicas. The account is in the job's status. The commit refuses to create a replica of a complete
index, and only replicas whose result is in the account are removed.

    an index succeeded                -> into the account
    all complete                      -> Complete
    retries used up, a rule of the failure policy, or the deadline
                                      -> Failed
    finished                          -> removed after ttlSecondsAfterFinished
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    ReconcilePlan,
    operation,
)
from holdfast.correct.pacing import Cooldowns, MonotonicWaits
from holdfast.correct.remembered import Notes, Remembered, uids_of
from holdfast.correct.workload.endings import ending
from holdfast.correct.workload.replica_creation import FURTHER, IDENTITY, is_of
from holdfast.model.kinds.replica import DEADLINE_PASSED, Replica
from holdfast.model.kinds.workload import FailureAction, Job, JobStatus, Workload, WorkloadStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.requests import Remove, Update
from holdfast.model.time import Instant, rfc3339, sooner, timestamp, wall_ms
from holdfast.model.workload.indexes import Indexes, parse
from holdfast.model.workload.jobs import (
    COMPLETE,
    DEADLINE_EXCEEDED,
    FAILED,
    completions,
    finished_condition,
)
from holdfast.observe.snapshot import Snapshot

# What a job's replicas and its account say together: what is complete, and what has failed.
#
# controller:workload decides by this and writes the account from it; controller:status counts by
# it. A replica may be removed once its result is in the account. Nothing is counted twice: an index
# is complete or not, and each replica stores how often its index had failed before it, so that the
# highest count of an index is the right one.

# How often the index of a replica had failed before it was created.
FAILURES_ANNOTATION = "holdfast.dev/failures-before"
# Ends that its node caused: it was disconnected, or rebooted within its fence.
_OF_THE_NODE = (DEADLINE_PASSED, "Rebooted")
_SIGNAL_BASE = 128
_DIGITS_MAX = 9


class JobTally(msgspec.Struct, frozen=True):
    """The progress of a job.

    `lives` are the replicas of each index, the newest last. `fatal` is a replica whose end fails
    the whole job, by its failure policy.
    """

    completed: Indexes
    failures: dict[int, int]
    lives: dict[int, list[Replica]]
    fatal: Replica | None = None

    @property
    def failed(self) -> int:
        """The total number of failures."""
        return sum(self.failures.values())


def tally(job: Workload, mine: Iterable[Replica]) -> JobTally:
    """The progress of a job, by its account and its replicas."""
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
    done = (ordinal for ordinal, there in lives.items() if any(map(has_succeeded, there)))
    return JobTally(parse(account.completed_indexes).plus(done), failures, lives, fatal)


def has_succeeded(replica: Replica) -> bool:
    """Whether it has ever succeeded, also where that became known later."""
    return any(step.to is State.SUCCEEDED for step in replica.status.transitions)


def verdict_on(job: Job, replica: Replica) -> FailureAction | None:
    """What the end of a replica means for its job; None if it did not fail by itself.

    A replica that was stopped on purpose, was lost with its node, or ended because its node was
    disconnected or rebooted has not failed: its end says nothing about the work.
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
    """How often an index has failed, up to and including this replica."""
    counts = verdict_on(job, replica) in (FailureAction.COUNT, FailureAction.FAIL_JOB)
    return failures_before(replica) + replica.status.process.restarts + int(counts)


def failures_before(replica: Replica) -> int:
    """The count when it was created."""
    text = replica.metadata.annotations.get(FAILURES_ANNOTATION, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else 0


# When a job is over, and why. Used here, by `index_runs.py`, and by controller:status.

ALL_SUCCEEDED = "AllSucceeded"
RETRIES_EXCEEDED = "RetriesExceeded"
FAILURE_POLICY = "FailurePolicy"


def deadline_ms(job: Workload) -> int | None:
    """The deadline of a job on the wall clock, counted from its creation."""
    begun, within_s = job.metadata.creation_timestamp, job.spec.job.deadline_seconds
    if begun is None or within_s is None:
        return None
    return wall_ms(begun) + within_s * 1_000


def verdict(job: Workload, counted: JobTally, *, is_late: bool) -> Condition | None:
    """How a running job has just ended, if it has. `is_late`: its deadline has passed."""
    total, done = completions(job.spec), len(counted.completed)
    if done >= total:
        return _condition(job, COMPLETE, ALL_SUCCEEDED, f"{done} of {total} have succeeded")
    so_far = f"{done} of {total} had succeeded"
    if counted.fatal is not None:
        process = counted.fatal.status.process
        how = f"signal {process.signal}" if process.signal else f"exit code {process.exit_code}"
        why = f"{counted.fatal.name} ended with {how}, which fails the job; {so_far}"
        return _condition(job, FAILED, FAILURE_POLICY, why)
    if counted.failed > job.spec.job.retries:
        why = f"{counted.failed} failures, {job.spec.job.retries} retries; {so_far}"
        return _condition(job, FAILED, RETRIES_EXCEEDED, why)
    due_ms = deadline_ms(job)
    if due_ms is not None and is_late:
        why = f"the deadline was {rfc3339(due_ms)}; {so_far}"
        return _condition(job, FAILED, DEADLINE_EXCEEDED, why)
    return None


def _condition(job: Workload, kind: str, reason: str, message: str) -> Condition:
    generation = job.metadata.generation
    return Condition(kind, ConditionStatus.TRUE, generation, reason=reason, message=message)


# The account is written at most this often, except for the end, which is written at once.
ACCOUNT_PAUSE_MS = 1_000
# The authority checks times again; where it disagrees, the request is repeated after this.
REFUSED_PAUSE_MS = 5_000
TTL, DEADLINE = "ttl", "deadline"


def replicas_of(view: Snapshot, job: Workload) -> list[Replica]:
    """The replicas of this job, and not of an earlier one with its name."""
    named: list[Replica] = view.found(BY_WORKLOAD, f"{job.namespace}/{job.name}")
    return [it for it in named if is_of(it, job)]


class JobAccounts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rests = Cooldowns()
        self._waits = MonotonicWaits(uids_of("workloads"))
        # When the last write of each job's account was requested, by its uid.
        self._written_ms: Notes[str, int] = Notes(uids_of("workloads"))
        self.remembers: tuple[Remembered, ...] = (self._rests, self._waits, self._written_ms)

    def late_in_ms(self, job: Workload, now: Instant) -> int | None:
        """The time until the deadline of a job, if it has one."""
        begun, within_s = job.metadata.creation_timestamp, job.spec.job.deadline_seconds
        if begun is None or within_s is None:
            return None
        uid, within_ms = job.metadata.uid, within_s * 1_000
        return self._waits.left_ms(uid, DEADLINE, begun, within_ms, now, credit=True)

    def reconcile(self, view: Snapshot, job: Workload, now: Instant) -> ReconcilePlan:
        """Write the account when it has changed, and remove a job that ended long enough ago."""
        over = finished_condition(job)
        ttl_s = job.spec.job.ttl_seconds_after_finished
        left_ms: int | None = None
        if over is not None and over.last_transition_time is not None and ttl_s is not None:
            since, uid = over.last_transition_time, job.metadata.uid
            left_ms = self._waits.left_ms(uid, TTL, since, ttl_s * 1_000, now, credit=True)
            if not left_ms:
                return ReconcilePlan((_removal(job),), wake_after_ms=REFUSED_PAUSE_MS)
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
            conditions = with_condition(job.status.conditions, ends, timestamp(now.wall_ms))
            status = msgspec.structs.replace(status, conditions=conditions)
        if over is None and late_in_ms is not None:
            # The authority's clock may be behind: then the end is written again later.
            left_ms = late_in_ms or REFUSED_PAUSE_MS
        if status == job.status:
            return ReconcilePlan(wake_after_ms=left_ms)
        return self._write(job, status, left_ms, now, at_once=ends is not None)

    def _write(
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


def _removal(job: Workload) -> Remove:
    uid = job.metadata.uid
    intent = operation(IDENTITY, uid, "finished", "remove")
    return Remove("workloads", job.namespace, job.name, uid, operation=intent)
