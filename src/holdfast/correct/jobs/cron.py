"""Cron jobs: a run, which is a job of its own, for each scheduled time.

Part of controller:workload. The commit creates at most one run for each scheduled time, and writes
that time to the cron job in the same transaction (`commit/objects/job_times.py`); so this module
needs no memory, and a second controller that is late, or a clock that is set back, starts nothing
twice.

    a scheduled time has come                            a run, unless it is to be skipped
    later than startingDeadlineSeconds                   skipped: TooLate
    missed: Skip, and later than a minute                skipped: Missed
    concurrency: Forbid, and a run is active             skipped: StillRunning
    concurrency: Replace, and the next run exists        the other active runs are removed
    several scheduled times since the last reconcile     the last one counts, the others are missed
    finished runs beyond `history`                       removed, the oldest first
    spec changed, or resumed                             the schedule counts from that minute on

`model/workload/cron.py` defines what fires when clocks jump. The caller passes the time zones in,
since they come from files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.correct.controller import (
    ReconcilePlan,
    operation,
)
from holdfast.correct.remembered import Notes, Remembered
from holdfast.correct.workload.replica_creation import IDENTITY
from holdfast.model.errors import unreachable
from holdfast.model.kinds.workload import Concurrency, Cron, CronStatus, MissedRuns, Workload
from holdfast.model.machine import Reply
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Remove, Request, Update
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.model.workload.cron import Zone, last_fire, next_fire, parse
from holdfast.model.workload.jobs import (
    cron_of,
    finished_condition,
    is_open,
    last_run,
    run_of,
    scheduled_at,
)
from holdfast.observe.cache import Key
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# The offset of local time from UTC in a zone; None for an unknown zone.
Zones = Callable[[str], Zone | None]

# With `missed: Skip`, a run that starts within this time is on time.
ON_TIME = timedelta(minutes=1)
# More runs than this are never active at once, also with concurrency Allow.
RUNS_AT_ONCE_MAX = 100
# The status names this many of them.
RUNS_SHOWN_MAX = 20
SENTENCE_MAX = 240
# How soon to look up an unknown time zone again.
ZONE_PAUSE_MS = 60_000

TOO_LATE = "TooLate"
MISSED = "Missed"
STILL_RUNNING = "StillRunning"
TOO_MANY = "TooManyRuns"

_MINUTE_MS = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _owner_of(workload: Workload) -> Iterable[str]:
    owner = cron_of(workload)
    return (f"{workload.namespace}/{owner.name}",) if owner is not None else ()


BY_CRON = Index("workloads", "cron", _owner_of)


def only_utc(name: str) -> Zone | None:
    """The time zones of a system without zone files."""
    return (lambda moment: timedelta(0)) if name in ("UTC", "Etc/UTC") else None


class CronRuns:
    """See the module's docstring."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        # Why the last run of each cron job was not accepted. After a resync, each comes back with
        # the next refused run.
        self._refused: Notes[Key, str] = Notes()
        self.remembers: tuple[Remembered, ...] = (self._refused,)

    def answered(self, run: Workload, answer: Reply) -> None:
        """Note the outcome of a run's creation. The next reconcile writes it to the status."""
        owner = cron_of(run)
        if owner is None:
            unreachable(f"{run.name} is a run without a cron job")
        key = run.namespace, owner.name
        # A run that exists, or a changed cron job, arrives as a change of the cache.
        if isinstance(answer, Refusal) and answer.reason not in (
            Reason.EXISTS,
            Reason.STALE_OBJECT,
        ):
            self._refused[key] = answer.message[:SENTENCE_MAX]
        else:
            self._refused.pop(key, None)

    @staticmethod
    def removals(view: Snapshot, cron: Workload) -> list[Remove]:
        """The removal of all runs of a cron job in deletion; it stays until they are gone."""
        left = [it for it in runs_of(view, cron) if it.metadata.deletion_timestamp is None]
        return [_removal(run, "orphan") for run in left]

    def reconcile(self, view: Snapshot, cron: Workload, now: Instant) -> ReconcilePlan:
        """Start the run that is due, and remove old runs."""
        stated = cron.spec.cron
        if stated is None:
            unreachable(f"cron job {cron.name} was admitted without a schedule")
        runs = runs_of(view, cron)
        active = [it for it in runs if is_open(it)]
        zone = self._zones(stated.time_zone)
        before = _begun(cron, now)
        if zone is None:
            trouble = f"time zone {stated.time_zone} is not installed where the controllers run"
            status = msgspec.structs.replace(before, trouble=trouble, next_schedule=None)
            return ReconcilePlan(_updates(cron, status), wake_after_ms=ZONE_PAUSE_MS)
        schedule, at = parse(stated.schedule), timestamp(now.wall_ms)
        due = None if stated.suspend else last_fire(schedule, _frontier(before, at), at, zone)
        coming = None if stated.suspend else next_fire(schedule, at, zone)
        if due is not None and before == cron.status.cron:
            because = _skipped_because(stated, due, at, active)
            if because is None:
                # The creation of a run writes the status too, so only the trouble of the last try
                # is written beside it.
                trouble = self._refused.get((cron.namespace, cron.name), before.trouble)
                status = msgspec.structs.replace(before, trouble=trouble)
                started: list[Request] = [*_updates(cron, status), _creation(cron, due)]
                return ReconcilePlan(tuple(started), wake_after_ms=_until(coming, now))
            before = msgspec.structs.replace(before, last_skipped=due, skipped_because=because)
        status = msgspec.structs.replace(
            before,
            next_schedule=coming,
            active=tuple(it.name for it in active[:RUNS_SHOWN_MAX]),
            trouble=self._refused.get((cron.namespace, cron.name), ""),
        )
        requests: list[Request] = [
            *_updates(cron, status),
            *_outdated(stated, runs),
            *_replaced(stated, active),
        ]
        # After a restart of the schedule, the change in the cache queues the next reconcile.
        return ReconcilePlan(tuple(requests), wake_after_ms=_until(coming, now))


def runs_of(view: Snapshot, cron: Workload) -> list[Workload]:
    """All runs of this cron job, and not of an earlier one with its name; the oldest first."""
    named: list[Workload] = view.found(BY_CRON, f"{cron.namespace}/{cron.name}")
    owners = [(cron_of(it), it) for it in named]
    mine = [it for of, it in owners if of is not None and of.uid == cron.metadata.uid]
    return sorted(mine, key=lambda it: (_when(cron, it), it.name))


def _when(cron: Workload, run: Workload) -> datetime:
    """The scheduled time of a run; one that a user created by hand has only its creation time."""
    return scheduled_at(cron.name, run.name) or run.metadata.creation_timestamp or _EPOCH


def _begun(cron: Workload, now: Instant) -> CronStatus:
    """The status, with the schedule restarted where the spec has changed."""
    before, generation = cron.status.cron, cron.metadata.generation
    if before.observed_generation == generation:
        return before
    since = cron.metadata.creation_timestamp
    if before.observed_generation or since is None:
        # A run that is due in this minute still is: a new image is not meant to cancel it.
        since = _minute_of(timestamp(now.wall_ms))
    return msgspec.structs.replace(before, observed_generation=generation, counts_from=since)


def _frontier(status: CronStatus, at: datetime) -> datetime:
    """The time up to which the schedule has been followed.

    A time in the future was written when a wall clock was ahead, and must not prevent a run. If
    there is no other time, the schedule counts from this minute on.
    """
    known = (last_run(status, at), status.last_skipped, status.counts_from)
    return max((it for it in known if it is not None and it <= at), default=_minute_of(at))


def _minute_of(at: datetime) -> datetime:
    """The last millisecond before the minute of this time."""
    return timestamp(wall_ms(at) // _MINUTE_MS * _MINUTE_MS - 1)


def _skipped_because(
    stated: Cron, due: datetime, at: datetime, active: list[Workload]
) -> str | None:
    """Why no run is started for a scheduled time, if so."""
    late, limit_s = at - due, stated.starting_deadline_seconds
    if limit_s is not None and late > timedelta(seconds=limit_s):
        return TOO_LATE
    if stated.missed is MissedRuns.SKIP and late > ON_TIME:
        return MISSED
    if stated.concurrency is Concurrency.FORBID and active:
        return STILL_RUNNING
    if stated.concurrency is Concurrency.ALLOW and len(active) >= RUNS_AT_ONCE_MAX:
        return TOO_MANY
    return None


def _creation(cron: Workload, due: datetime) -> Create:
    """The creation of the run for a scheduled time."""
    run = run_of(cron, due)
    return Create(run, operation=operation(IDENTITY, cron.metadata.uid, run.name, "run"))


def _replaced(stated: Cron, active: list[Workload]) -> Iterator[Remove]:
    """The removal of all active runs but the last, which exists by now."""
    if stated.concurrency is Concurrency.REPLACE:
        for run in active[:-1]:
            yield _removal(run, "replaced")


def _updates(cron: Workload, wanted: CronStatus) -> tuple[Update, ...]:
    """The update of the status, if it has changed. Like all status it has no operation id."""
    if wanted == cron.status.cron:
        return ()
    status = msgspec.structs.replace(cron.status, cron=wanted)
    return (Update(msgspec.structs.replace(cron, status=status), "status"),)


def _outdated(stated: Cron, runs: list[Workload]) -> Iterator[Remove]:
    over = [
        it
        for it in runs
        if finished_condition(it) is not None and it.metadata.deletion_timestamp is None
    ]
    for run in over[: max(0, len(over) - stated.history)]:
        yield _removal(run, "outdated")


def _removal(run: Workload, intent: str) -> Remove:
    uid = run.metadata.uid
    named = operation(IDENTITY, uid, "run", intent)
    return Remove("workloads", run.namespace, run.name, uid, operation=named)


def _until(coming: datetime | None, now: Instant) -> int | None:
    """The time until the next scheduled time. A wall clock may be set meanwhile, so it is checked
    again every minute.
    """
    return max(1, min(wall_ms(coming) - now.wall_ms, _MINUTE_MS)) if coming is not None else None
