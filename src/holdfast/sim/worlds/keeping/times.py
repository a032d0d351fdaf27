"""The times of jobs, by true time: no deadline passes and no time to live ends too early.

Stamps are made by servers, whose calendars are set. Where the calendar of the server that decided
was wrong at either end, the job has its times by that calendar, and nothing is judged here.
"""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.model import keys
from holdfast.model.identity import controller
from holdfast.model.jobs import DEADLINE_EXCEEDED, finished
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.runs import cron_of
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.books import Books, accepted_in

# A request may be so long on its way to the store after it was decided and stamped.
ON_ITS_WAY_S = 10.0
_OWN = f"{controller('workload').name}/"


class Timely(Checker):
    """JOB: a job fails for its deadline, and is removed for its age, when that time is over."""

    invariants = ("JOB",)

    def __init__(self, books: Books) -> None:
        self._books = books
        # When each job was made and when it ended, by true time, if its stamp says the same.
        self._made: dict[str, datetime] = {}
        self._ended: dict[str, datetime] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now = datetime.fromtimestamp((world.origin_us + world.now_us) / 1_000_000, UTC)
        for key, old, new in self._books.changed("objects/workloads/"):
            if old is not None and old.metadata.deletion_timestamp is None:
                self._removed(key, old, new, now)
            if new is None or new.spec.type is not WorkloadType.JOB:
                continue
            uid, made = new.metadata.uid, new.metadata.creation_timestamp
            if old is None and _is_true(made, now):
                self._made[uid] = now
            over = finished(new)
            if over is None or (old is not None and finished(old) is not None):
                continue
            if _is_true(over.last_transition_time, now):
                self._ended[uid] = now
                if over.reason == DEADLINE_EXCEEDED and uid in self._made:
                    within_s = new.spec.job.deadline_seconds or 0
                    self._judge(f"{new.name} has failed", self._made[uid], within_s, now)

    def _removed(self, key: str, job: Workload, new: Workload | None, now: datetime) -> None:
        """controller:workload removes what has outlived its time; people remove what they like."""
        ttl_s, uid = job.spec.job.ttl_seconds_after_finished, job.metadata.uid
        if ttl_s is None or cron_of(job) is not None or uid not in self._ended:
            return
        if new is not None and new.metadata.deletion_timestamp is None:
            return
        apart = [past for _, _, past in self._books.changed(keys.OPERATIONS)]
        found = [it.operation for it in apart if it is not None and it.key == key]
        for operation in (*found, *accepted_in(job, new)):
            if operation.id.startswith(_OWN) and _is_true(operation.at, now):
                self._judge(f"{job.name} was removed", self._ended[uid], ttl_s, now)

    def _judge(self, what: str, since: datetime, within_s: int, now: datetime) -> None:
        after_s = (now - since).total_seconds()
        if after_s < within_s - ON_ITS_WAY_S:
            self.violated("JOB", f"{what} after {after_s:.0f} s, it has {within_s} s")


def _is_true(stamp: datetime | None, now: datetime) -> bool:
    return stamp is not None and abs((now - stamp).total_seconds()) <= ON_ITS_WAY_S
