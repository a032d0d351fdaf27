"""Cron jobs: a run, which is a job of its own, for each moment of the schedule.

Part of controller:workload. The commit lets one run at most be born for each moment, and writes
that moment to the cron job in the same transaction (`commit/objects/job_times.py`); so nothing here
has to be remembered, and a second controller that is late, or a clock that is set back, starts
nothing twice.

    a moment has come                                    a run, unless it is to be skipped
    later than startingDeadlineSeconds                   skipped: TooLate
    missed: Skip, and later than a minute                skipped: Missed
    concurrency: Forbid, and a run still goes on         skipped: StillRunning
    concurrency: Replace, and the next run is there      the others that go on are removed
    more moments than one since the last look            the last one counts, the others are missed
    finished runs beyond `history`                       removed, the oldest first
    spec changed, or resumed                             the schedule counts from that minute on

Where clocks jump, `model/cron.py` says what fires. What is known of time zones is handed in,
since it comes from files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.correct.controller import Index, ReconcilePlan, View, operation
from holdfast.correct.workload.replica_creation import IDENTITY
from holdfast.model.cron import Zone, last_fire, next_fire, parse
from holdfast.model.errors import unreachable
from holdfast.model.jobs import cron_of, finished_condition, last_run, run_of, scheduled_at
from holdfast.model.kinds.workload import Concurrency, Cron, CronStatus, MissedRuns, Workload
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Remove, Update
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.observe.cache import Key

# How far local clocks are ahead of UTC in a zone of this name; None where it is not known.
Zones = Callable[[str], Zone | None]

# With `missed: Skip`, a run that starts within this time is on time.
ON_TIME = timedelta(minutes=1)
# More runs than this never go on at once, also where all are allowed.
RUNS_AT_ONCE_MAX = 100
# So many of them are named in the status.
RUNS_SHOWN_MAX = 20
SENTENCE_MAX = 240
# How soon to look again for a time zone that is not known.
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
    """What is known of time zones where nothing is."""
    return (lambda moment: timedelta(0)) if name in ("UTC", "Etc/UTC") else None


class CronRuns:
    """See the module's docstring."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        # Why the last run of each cron job was not accepted.
        self._refused: dict[Key, str] = {}

    def forget_refusals(self) -> None:
        """Each is said again when it comes again."""
        self._refused.clear()

    def answered(self, run: Workload, answer: Any) -> None:
        """Take note of what became of a run. The next look says so, after its pause."""
        owner = cron_of(run)
        if owner is None:
            unreachable(f"{run.name} is a run of nobody")
        key = run.namespace, owner.name
        # Who was faster, or changed his mind, will be in the news.
        if isinstance(answer, Refusal) and answer.reason not in (
            Reason.EXISTS,
            Reason.STALE_OBJECT,
        ):
            self._refused[key] = answer.message[:SENTENCE_MAX]
        else:
            self._refused.pop(key, None)

    @staticmethod
    def emptied(view: View, cron: Workload) -> list[Remove]:
        """The removal of all runs of a cron job that goes; it stays until they are gone."""
        left = [it for it in runs_of(view, cron) if it.metadata.deletion_timestamp is None]
        return [_removal(run, "orphan") for run in left]

    def kept(self, view: View, cron: Workload, now: Instant) -> ReconcilePlan:
        """Start what is due, and clear away what is old."""
        stated = cron.spec.cron
        if stated is None:
            unreachable(f"cron job {cron.name} was admitted without a schedule")
        runs = runs_of(view, cron)
        active = [it for it in runs if _goes_on(it)]
        zone = self._zones(stated.time_zone)
        before = _begun(cron, now)
        if zone is None:
            trouble = f"time zone {stated.time_zone} is not known where controllers run"
            said = msgspec.structs.replace(before, trouble=trouble, next_schedule=None)
            return ReconcilePlan(_written(cron, said), wake_after_ms=ZONE_PAUSE_MS)
        schedule, at = parse(stated.schedule), timestamp(now.wall_ms)
        due = None if stated.suspend else last_fire(schedule, _frontier(before, at), at, zone)
        coming = None if stated.suspend else next_fire(schedule, at, zone)
        if due is not None and before == cron.status.cron:
            because = _skipped_because(stated, due, at, active)
            if because is None:
                # A birth that takes effect writes the status too, so nothing is said beside it but
                # that the last try was in vain.
                trouble = self._refused.get((cron.namespace, cron.name), before.trouble)
                said = msgspec.structs.replace(before, trouble=trouble)
                requests = (*_written(cron, said), _started(cron, due))
                return ReconcilePlan(requests, wake_after_ms=_until(coming, now))
            before = msgspec.structs.replace(before, last_skipped=due, skipped_because=because)
        said = msgspec.structs.replace(
            before,
            next_schedule=coming,
            active=tuple(it.name for it in active[:RUNS_SHOWN_MAX]),
            trouble=self._refused.get((cron.namespace, cron.name), ""),
        )
        requests = *_written(cron, said), *_outdated(stated, runs), *_replaced(stated, active)
        # What was begun anew is looked at again when the picture shows it.
        return ReconcilePlan(requests, wake_after_ms=_until(coming, now))


def runs_of(view: View, cron: Workload) -> list[Workload]:
    """All runs of this very cron job, the oldest first."""
    named: list[Workload] = view.found(BY_CRON, f"{cron.namespace}/{cron.name}")
    owners = [(cron_of(it), it) for it in named]
    mine = [it for of, it in owners if of is not None and of.uid == cron.metadata.uid]
    return sorted(mine, key=lambda it: (_when(cron, it), it.name))


def _when(cron: Workload, run: Workload) -> datetime:
    """For when a run is; one that a person made by hand has no moment of the schedule."""
    return scheduled_at(cron.name, run.name) or run.metadata.creation_timestamp or _EPOCH


def _goes_on(run: Workload) -> bool:
    return finished_condition(run) is None and run.metadata.deletion_timestamp is None


def _begun(cron: Workload, now: Instant) -> CronStatus:
    """The status, with the schedule begun anew where the spec has changed."""
    before, generation = cron.status.cron, cron.metadata.generation
    if before.observed_generation == generation:
        return before
    since = cron.metadata.creation_timestamp
    if before.observed_generation or since is None:
        # What is due in this very minute still is: nobody means to cancel it by a new image.
        since = _minute_of(timestamp(now.wall_ms))
    return msgspec.structs.replace(before, observed_generation=generation, counts_from=since)


def _frontier(status: CronStatus, at: datetime) -> datetime:
    """After which moment the schedule has not been followed yet.

    What is still to come was written when a calendar was ahead, and keeps nothing from being
    started. If that is all there is, the schedule counts from this minute on.
    """
    known = (last_run(status, at), status.last_skipped, status.counts_from)
    return max((it for it in known if it is not None and it <= at), default=_minute_of(at))


def _minute_of(at: datetime) -> datetime:
    """The last moment before the minute of this one."""
    return timestamp(wall_ms(at) // _MINUTE_MS * _MINUTE_MS - 1)


def _skipped_because(
    stated: Cron, due: datetime, at: datetime, active: list[Workload]
) -> str | None:
    """Why no run is to be started for a moment, if so."""
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


def _started(cron: Workload, due: datetime) -> Create:
    """The run for a moment."""
    run = run_of(cron, due)
    return Create(run, operation=operation(IDENTITY, cron.metadata.uid, run.name, "run"))


def _replaced(stated: Cron, active: list[Workload]) -> Iterator[Remove]:
    """The end of all but the last run. It was accepted, or nothing would be stopped for it."""
    if stated.concurrency is Concurrency.REPLACE:
        for run in active[:-1]:
            yield _removal(run, "replaced")


def _written(cron: Workload, said: CronStatus) -> tuple[Update, ...]:
    """The status, if it has changed. Like all status it has no operation id."""
    if said == cron.status.cron:
        return ()
    status = msgspec.structs.replace(cron.status, cron=said)
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
    """How long until the next moment. A calendar may be set meanwhile, so it is looked at again
    every minute.
    """
    return max(1, min(wall_ms(coming) - now.wall_ms, _MINUTE_MS)) if coming is not None else None
