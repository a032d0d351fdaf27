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

import msgspec

from holdfast.correct.births import FURTHER, IDENTITY, is_of
from holdfast.correct.controller import BY_WORKLOAD, Plan, View, operation, sooner
from holdfast.correct.rests import Rests
from holdfast.correct.tally import Tally, tally
from holdfast.correct.verdict import verdict
from holdfast.correct.waits import Waits
from holdfast.model.jobs import finished
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import JobStatus, Workload, WorkloadStatus
from holdfast.model.lifecycle import State
from holdfast.model.meta import with_condition
from holdfast.model.requests import Remove, Update
from holdfast.model.time import Instant, timestamp

# The account is written no more often than this, but for the end, which is written at once.
ACCOUNT_PAUSE_MS = 1_000
# Time is judged again by the authority; where it disagrees, it is asked again after this.
REFUSED_PAUSE_MS = 5_000
TTL, DEADLINE = "ttl", "deadline"


def replicas_of(view: View, job: Workload) -> list[Replica]:
    """The replicas of this very job."""
    named: list[Replica] = view.found(BY_WORKLOAD, f"{job.namespace}/{job.name}")
    return [it for it in named if is_of(it, job)]


class Accounts:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rests = Rests()
        self._waits = Waits()
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

    def settled(self, view: View, job: Workload, now: Instant) -> Plan:
        """Write the account when it has changed, and remove what is over for long enough."""
        over = finished(job)
        ttl_s = job.spec.job.ttl_seconds_after_finished
        left_ms: int | None = None
        if over is not None and over.last_transition_time is not None and ttl_s is not None:
            since, uid = over.last_transition_time, job.metadata.uid
            left_ms = self._waits.left_ms(uid, TTL, since, ttl_s * 1_000, now, credit=True)
            if not left_ms:
                return Plan((_removed(job),), wake_after_ms=REFUSED_PAUSE_MS)
        key = job.namespace, job.name
        rest_ms = self._rests.left_ms(key, now)
        if rest_ms:
            return Plan(wake_after_ms=rest_ms)
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
            return Plan(wake_after_ms=left_ms)
        return self._written(job, status, left_ms, now, at_once=ends is not None)

    def _written(
        self,
        job: Workload,
        status: WorkloadStatus,
        left_ms: int | None,
        now: Instant,
        *,
        at_once: bool,
    ) -> Plan:
        uid = job.metadata.uid
        rest_ms = self._written_ms.get(uid, -ACCOUNT_PAUSE_MS) + ACCOUNT_PAUSE_MS
        if not at_once and rest_ms > now.monotonic_ms:
            return Plan(wake_after_ms=sooner(left_ms, rest_ms - now.monotonic_ms))
        self._written_ms[uid] = now.monotonic_ms
        written = msgspec.structs.replace(job, status=status)
        return Plan((Update(written, "status"),), wake_after_ms=left_ms)


def _account(job: Workload, counted: Tally, now: Instant, *, has_ended: bool) -> JobStatus:
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
