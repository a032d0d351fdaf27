"""Jobs: every index runs until it has succeeded once, a few at a time.

Part of controller:workload, which calls `run` for the replicas of a job; `account.py` records which
indexes are complete, and the end of the job. An index is the ordinal of its replicas.

    index neither complete nor taken  -> Create, lowest first, while fewer than parallelism run
    failed by itself                  -> the next incarnation after a pause; it uses up a retry
    stopped on purpose, lost          -> the next incarnation at once, without using a retry
    more than parallelism             -> released or evicted, those with the least progress first
    the job has ended                 -> the remaining replicas are stopped

The remaining replicas are stopped once the cache shows the end: the replica that decided it may be
gone by then. Some released replicas are kept for inspection, as many as do no harm, and all of
those whose result is not in the account yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.correct.controller import (
    REQUESTS_PER_PLAN_MAX,
    ReconcilePlan,
)
from holdfast.correct.jobs.account import FAILURES_ANNOTATION, JobTally, replicas_of, tally, verdict
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.remembered import Notes, Remembered, uids_of
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION, endings
from holdfast.correct.workload.replica_creation import (
    FURTHER,
    ReplicaCreation,
    removal,
    stop,
    worth,
)
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.vacancy import vacates
from holdfast.model.requests import Create, Remove, Request, Term
from holdfast.model.time import Instant, sooner, wall_ms
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import DEADLINE_EXCEEDED, completions, finished_condition
from holdfast.observe.cache import Key
from holdfast.observe.snapshot import Snapshot

# A job never has more replicas than this at once, whatever its parallelism: each may be a part of
# the text that lists the complete indexes.
ACTIVE_MAX = 10_000
# This many released replicas of a job stay until its deletion; all of them would fill the store.
RELEASED_KEPT_MAX = 64


class JobReplicas:
    """See the module's docstring."""

    def __init__(self, creation: ReplicaCreation) -> None:
        self._creation = creation
        self._rests = Cooldowns()
        # Jobs whose tenant has no room for released replicas.
        self._tight: Notes[str, None] = Notes(uids_of("workloads"))
        self.remembers: tuple[Remembered, ...] = (self._rests, self._tight)

    def has_no_room(self, uid: str) -> None:
        """Note that the tenant of this job is at its limit of replicas."""
        self._tight[uid] = None

    def run(
        self, view: Snapshot, job: Workload, key: Key, term: Term, now: Instant, *, is_late: bool
    ) -> ReconcilePlan:
        """The plan for the replicas of a job. `is_late`: its deadline has passed."""
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        mine = replicas_of(view, job)
        self._rests.rest(key, len(mine), now)
        for replica in mine:
            self._creation.see(replica)
        over = finished_condition(job)
        if over is not None:
            cause = Cause.DEADLINE if over.reason == DEADLINE_EXCEEDED else Cause.SCALE_DOWN
            return ReconcilePlan(tuple(self._stop_rest(job, mine, cause, term)))
        counted = tally(job, mine)
        if verdict(job, counted, is_late=is_late) is not None:
            return ReconcilePlan()
        return self._go_on(job, counted, term, now)

    def _go_on(self, job: Workload, counted: JobTally, term: Term, now: Instant) -> ReconcilePlan:
        """Stop surplus replicas, remove old ones, and create as many as may run besides."""
        requests: list[Request] = []
        released: list[Replica] = []
        retries: list[int] = []
        wake_ms: int | None = None
        taken = 0
        known = parse(job.status.job.completed_indexes)
        for ordinal, lives in counted.lives.items():
            taken += not all(vacates(it) for it in lives)
            if ordinal in known:
                released += [it for it in lives if it.status.state is State.RELEASED]
            requests += _tidy(lives, ordinal in counted.completed, term)
            if ordinal in counted.completed or not all(vacates(it) for it in lives):
                continue
            wait_ms = self._creation.pause_ms(job, lives[-1], now)
            if wait_ms > 0:
                # It keeps its slot, or a job that always fails would begin all of its indexes.
                taken += 1
                wake_ms = sooner(wake_ms, wait_ms)
            else:
                retries.append(ordinal)
        stated = job.spec.job.parallelism
        most = min(completions(job.spec) if stated is None else stated, ACTIVE_MAX)
        requests += _surplus(counted, taken - most, term)
        requests += self._creations(job, counted, retries, most - taken, term)
        requests += self._clearance(job, released)
        return ReconcilePlan(tuple(requests[: REQUESTS_PER_PLAN_MAX + 1]), wake_after_ms=wake_ms)

    def _creations(
        self, job: Workload, counted: JobTally, retries: list[int], room: int, term: Term
    ) -> Iterator[Create]:
        """As many creations as there is room for: indexes that were begun before come first."""
        if room <= 0:
            return
        fresh = (
            ordinal
            for ordinal in counted.completed.missing(completions(job.spec))
            if ordinal not in counted.lives
        )
        for made, ordinal in enumerate((*retries, *_first(fresh, room))):
            if made >= min(room, REQUESTS_PER_PLAN_MAX):
                return
            notes = {}
            lives = counted.lives.get(ordinal, [])
            soon = endings(lives[-1]) if lives else 0
            if soon:
                notes[ENDINGS_ANNOTATION] = str(soon)
            if counted.failures.get(ordinal):
                notes[FAILURES_ANNOTATION] = str(counted.failures[ordinal])
            yield self._creation.create(job, ordinal, term, notes)

    def _stop_rest(
        self, job: Workload, mine: list[Replica], cause: Cause, term: Term
    ) -> Iterator[Request]:
        """Stop the remaining replicas of a job that has ended."""
        for replica in mine:
            if replica.status.state is not State.RELEASED:
                yield from stop(replica, cause, term)
        yield from self._clearance(job, [it for it in mine if it.status.state is State.RELEASED])

    def _clearance(self, job: Workload, released: list[Replica]) -> Iterator[Remove]:
        """Remove replicas whose deletion was requested, and the oldest beyond the kept number."""
        kept = 0 if job.metadata.uid in self._tight else RELEASED_KEPT_MAX
        oldest = sorted(released, key=lambda it: (_ended_ms(it), it.name))
        spare = {it.name for it in oldest[: max(0, len(oldest) - kept)]}
        for replica in oldest:
            if replica.name in spare or replica.metadata.deletion_timestamp is not None:
                yield removal(replica)


def _ended_ms(replica: Replica) -> int:
    steps = replica.status.transitions
    return wall_ms(steps[-1].at) if steps else 0


def _first(ordinals: Iterator[int], count: int) -> Iterator[int]:
    for _, ordinal in zip(range(count), ordinals, strict=False):
        yield ordinal


def _tidy(lives: list[Replica], is_complete: bool, term: Term) -> Iterator[Request]:
    """Stop surplus replicas of one index, and remove all but the last two that failed."""
    alive = [it for it in lives if it.status.state in FURTHER]
    keep = max(alive, key=worth, default=None) if not is_complete else None
    newest = lives[-1].spec.incarnation
    for replica in lives:
        doomed = replica.metadata.deletion_timestamp is not None
        if replica.status.state is not State.RELEASED:
            if replica is not keep or doomed:
                yield from stop(replica, Cause.SCALE_DOWN, term)
        elif not is_complete and replica.spec.incarnation < newest - 1:
            yield removal(replica)


def _surplus(counted: JobTally, count: int, term: Term) -> Iterator[Request]:
    """Stop `count` replicas: those with the least progress first, the highest indexes first."""
    if count <= 0:
        return
    all_lives = [it for lives in counted.lives.values() for it in lives]
    leaving = sum(it.status.state is State.STOPPING for it in all_lives)
    alive = [it for it in all_lives if it.status.state in FURTHER]
    alive.sort(key=lambda it: (FURTHER.index(it.status.state), -it.spec.ordinal))
    for replica in alive[: max(0, count - leaving)]:
        yield from stop(replica, Cause.SCALE_DOWN, term)
