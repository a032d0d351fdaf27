"""Jobs: every index runs until it has succeeded once, a few at a time.

Part of controller:workload, which calls `settled` for the job as a whole and `run` for its
replicas. An index is a place as those of services are; which are complete is in the account in the
job's status (`tally.py`).

    index neither complete nor taken  -> Create, lowest first, while fewer than parallelism run
    failed by itself                  -> the next incarnation after a pause; it uses up a retry
    stopped on purpose, lost          -> the next incarnation at once, for free
    succeeded                         -> into the account; no birth of that index is accepted again
    all complete                      -> Complete
    retries used up, a rule of the failure policy, or the deadline
                                      -> Failed; what is left is stopped
    finished                          -> removed after ttlSecondsAfterFinished

The end is written first, and what is left is stopped once the picture shows it: the replica that a
decision rested on may be gone by then. Some released replicas are kept for whoever wants to look at
them, as many as do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.correct.births import (
    FURTHER,
    IDENTITY,
    Births,
    is_of,
    removal,
    stop,
    worth,
)
from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Plan,
    View,
    operation,
    sooner,
)
from holdfast.correct.endings import ENDINGS_ANNOTATION, endings, replaced_at_ms, vacates
from holdfast.correct.rests import Rests
from holdfast.correct.tally import FAILURES_ANNOTATION, Tally, tally
from holdfast.correct.verdict import DEADLINE_EXCEEDED, deadline_ms, verdict
from holdfast.model.indexes import parse
from holdfast.model.jobs import completions, finished
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import JobStatus, Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import with_condition
from holdfast.model.requests import Create, Remove, Term, Update
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.observe.cache import Key

# More than this many replicas of one job are never there at once, whatever its parallelism: each
# is a part of the text that says what is complete.
ACTIVE_MAX = 10_000
# So many released replicas of a job stay until it goes; all of them would fill the store.
RELEASED_KEPT_MAX = 64
# The account is written no more often than this, but for the end, which is written at once.
ACCOUNT_PAUSE_MS = 1_000


class Jobs:
    """See the module's docstring."""

    def __init__(self, births: Births) -> None:
        self._births = births
        self._rests = Rests()
        # When the account of each job was last asked to be written, by its uid.
        self._written_ms: dict[str, int] = {}
        # Jobs whose tenant has no room for released replicas.
        self._tight: set[str] = set()

    def forget_all_but(self, uids: set[str]) -> None:
        """Forget jobs that are gone, and look at all others at once."""
        self._rests.clear()
        self._tight &= uids
        self._written_ms = {uid: ms for uid, ms in self._written_ms.items() if uid in uids}

    def has_no_room(self, uid: str) -> None:
        """The tenant of this job has as many replicas as it may have."""
        self._tight.add(uid)

    # The job as a whole --------------------------------------------------------------------------

    def settled(self, view: View, job: Workload, now: Instant) -> Plan:
        """Write the account when it has changed, and remove what is over for long enough."""
        over = finished(job)
        ttl_s = job.spec.job.ttl_seconds_after_finished
        left_ms: int | None = None
        if over is not None and over.last_transition_time is not None and ttl_s is not None:
            left_ms = wall_ms(over.last_transition_time) + ttl_s * 1_000 - now.wall_ms
            if left_ms <= 0:
                return Plan((_removed(job),))
        counted = tally(job, _mine(view, job))
        ends = verdict(job, counted, now) if over is None else None
        account = _account(job, counted, now, has_ended=ends is not None)
        status = msgspec.structs.replace(job.status, job=account)
        if ends is not None:
            said = with_condition(job.status.conditions, ends, timestamp(now.wall_ms))
            status = msgspec.structs.replace(status, conditions=said)
        if over is None:
            due_ms = deadline_ms(job)
            left_ms = max(1, due_ms - now.wall_ms) if due_ms is not None else None
        if status == job.status:
            return Plan(wake_after_ms=left_ms)
        uid = job.metadata.uid
        rest_ms = self._written_ms.get(uid, -ACCOUNT_PAUSE_MS) + ACCOUNT_PAUSE_MS
        if ends is None and rest_ms > now.monotonic_ms:
            return Plan(wake_after_ms=sooner(left_ms, rest_ms - now.monotonic_ms))
        self._written_ms[uid] = now.monotonic_ms
        written = msgspec.structs.replace(job, status=status)
        return Plan((Update(written, "status"),), wake_after_ms=left_ms)

    # Its replicas --------------------------------------------------------------------------------

    def run(self, view: View, job: Workload, key: Key, term: Term, now: Instant) -> Plan:
        """What the replicas of a job that is wanted need."""
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return Plan(wake_after_ms=left_ms)
        mine = _mine(view, job)
        self._rests.rest(key, len(mine), now)
        for replica in mine:
            self._births.see(replica)
        over = finished(job)
        if over is not None:
            cause = Cause.DEADLINE if over.reason == DEADLINE_EXCEEDED else Cause.SCALE_DOWN
            return Plan(tuple(self._wound_up(job, mine, cause, term)))
        counted = tally(job, mine)
        if verdict(job, counted, now) is not None:
            return Plan()
        return self._go_on(job, counted, term, now)

    def _go_on(self, job: Workload, counted: Tally, term: Term, now: Instant) -> Plan:
        """Stop what is too much, clear away, and start as many as may run besides."""
        requests: list[Any] = []
        released: list[Replica] = []
        retries: list[int] = []
        wake_ms: int | None = None
        taken = 0
        known = parse(job.status.job.completed_indexes)
        for ordinal, lives in counted.lives.items():
            taken += not all(vacates(it) for it in lives)
            if ordinal in known:
                released += [it for it in lives if it.status.state is State.RELEASED]
            requests += _tidied(lives, ordinal in counted.completed, term)
            if ordinal in counted.completed or not all(vacates(it) for it in lives):
                continue
            wait_ms = replaced_at_ms(lives[-1]) - now.wall_ms
            if wait_ms > 0:
                # It keeps its turn, or a job that fails everywhere would begin all of its indexes.
                taken += 1
                wake_ms = sooner(wake_ms, wait_ms)
            else:
                retries.append(ordinal)
        stated = job.spec.job.parallelism
        most = min(completions(job.spec) if stated is None else stated, ACTIVE_MAX)
        requests += _surplus(counted, taken - most, term)
        requests += self._births_of(job, counted, retries, most - taken, term)
        requests += self._clearance(job, released)
        return Plan(tuple(requests[: REQUESTS_PER_PLAN_MAX + 1]), wake_after_ms=wake_ms)

    def _births_of(
        self, job: Workload, counted: Tally, retries: list[int], room: int, term: Term
    ) -> Iterator[Create]:
        """As many births as there is room for: what was begun before comes first."""
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
            yield self._births.birth(job, ordinal, term, notes)

    def _wound_up(
        self, job: Workload, mine: list[Replica], cause: Cause, term: Term
    ) -> Iterator[Any]:
        """Stop what is left of a job that has ended."""
        for replica in mine:
            if replica.status.state is not State.RELEASED:
                yield from stop(replica, cause, term)
        yield from self._clearance(job, [it for it in mine if it.status.state is State.RELEASED])

    def _clearance(self, job: Workload, released: list[Replica]) -> Iterator[Remove]:
        """Clear away what nobody needs any more: whose deletion was asked for, and the oldest."""
        kept = 0 if job.metadata.uid in self._tight else RELEASED_KEPT_MAX
        oldest = sorted(released, key=lambda it: (_ended_ms(it), it.name))
        spare = {it.name for it in oldest[: max(0, len(oldest) - kept)]}
        for replica in oldest:
            if replica.name in spare or replica.metadata.deletion_timestamp is not None:
                yield removal(replica)


def _ended_ms(replica: Replica) -> int:
    steps = replica.status.transitions
    return wall_ms(steps[-1].at) if steps else 0


def _mine(view: View, job: Workload) -> list[Replica]:
    named: list[Replica] = view.found(BY_WORKLOAD, f"{job.namespace}/{job.name}")
    return [it for it in named if is_of(it, job)]


def _first(ordinals: Iterator[int], count: int) -> Iterator[int]:
    for _, ordinal in zip(range(count), ordinals, strict=False):
        yield ordinal


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


def _tidied(lives: list[Replica], is_complete: bool, term: Term) -> Iterator[Any]:
    """Stop what is too much at one index, and clear away but the last two that failed there."""
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


def _surplus(counted: Tally, count: int, term: Term) -> Iterator[Any]:
    """Stop so many, first those that have come least far, of the highest indexes."""
    if count <= 0:
        return
    all_lives = [it for lives in counted.lives.values() for it in lives]
    leaving = sum(it.status.state is State.STOPPING for it in all_lives)
    alive = [it for it in all_lives if it.status.state in FURTHER]
    alive.sort(key=lambda it: (FURTHER.index(it.status.state), -it.spec.ordinal))
    for replica in alive[: max(0, count - leaving)]:
        yield from stop(replica, Cause.SCALE_DOWN, term)
