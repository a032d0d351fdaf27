"""What must hold of jobs, cron jobs, per-node work and published endpoints, after every commit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.model import keys
from holdfast.model.access.identity import controller
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.kinds.workload import Concurrency, RolloutStrategy, Workload, WorkloadType
from holdfast.model.lifecycle import STAGES, Cause, Stage, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.placement.vacancy import home_of
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import (
    COMPLETE,
    DEADLINE_EXCEEDED,
    completions,
    cron_of,
    finished_condition,
    scheduled_at,
)
from holdfast.model.workload.rollouts import limits
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy, accepted_in
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.process_table import FinishingProcesses, PlaceEnds

# How old a cache may be when a controller decides from it, plus how long the request may take.
STALE_MS = 60_000
# The reason of work whose agent ended between the decision to start it and the start.
NEVER_STARTED = "NeverStarted"
_READY = STAGES[STAGES.index(Stage.READY) :]


def owner_key(replica: Replica) -> str:
    """The key of a replica's workload."""
    return f"objects/workloads/{replica.namespace}/{replica.spec.workload}"


def completed_indexes(job: Workload) -> set[int]:
    """The indexes that a job's status counts as completed."""
    spans = parse(job.status.job.completed_indexes).spans
    return {index for first, last in spans for index in range(first, last + 1)}


class JobAccountTrue(Checker):
    """Jobs: an index succeeds once, and really did; the account never shrinks; an end is final."""

    invariants = ("JOB",)

    def __init__(self, store_copy: StoreCopy, pieces: FinishingProcesses) -> None:
        self._store_copy, self._pieces = store_copy, pieces
        # Indexes with a recorded success, and the highest parallelism that was ever requested.
        self._done: dict[str, set[int]] = {}
        self._most: dict[str, int] = {}
        # How often an ordinal was reported as failed although its work never started.
        self._never_started: dict[tuple[str, int], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/workloads/"):
            if new is not None and new.spec.type is WorkloadType.JOB:
                self._check_job(old if _is_same(old, new) else None, new)
        succeeded: list[Replica] = []
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            if not same(old, new):
                self._check_creation(new)
            moves = steps_of(old if same(old, new) else None, new)
            if any(step.to is State.SUCCEEDED for step in moves):
                succeeded.append(new)
            if any(step.to is State.FAILED and step.reason == NEVER_STARTED for step in moves):
                place = new.spec.workload_uid, new.spec.ordinal
                self._never_started[place] = self._never_started.get(place, 0) + 1
        for replica in succeeded:
            self._done.setdefault(replica.spec.workload_uid, set()).add(replica.spec.ordinal)

    def _check_job(self, old: Workload | None, new: Workload) -> None:
        stated = new.spec.job.parallelism
        most = completions(new.spec) if stated is None else stated
        self._most[new.metadata.uid] = max(self._most.get(new.metadata.uid, 0), most)
        known = completed_indexes(new)
        if old is not None:
            lost = sorted(completed_indexes(old) - known)
            if lost:
                self.violated("JOB", f"{new.name} has lost its indexes {lost}")
            if finished_condition(old) is not None and finished_condition(
                new
            ) != finished_condition(old):
                self.violated("JOB", f"{new.name} had finished, and its condition changed")
        over = finished_condition(new)
        if over is not None and over.type == COMPLETE and len(known) < completions(new.spec):
            self.violated("JOB", f"{new.name} is complete with {sorted(known)}")
        for index in sorted(known):
            if not self._ends(new, index).done:
                self.violated("JOB", f"{new.name}: index {index} is counted and never succeeded")
        # Restarts in place count as failures whatever the cause of the end was.
        is_strict = new.spec.template.restart is RestartPolicy.NEVER
        for text, count in new.status.job.failures.items() if is_strict else ():
            failed = self._ends(new, int(text)).failed
            failed += self._never_started.get((new.metadata.uid, int(text)), 0)
            if count > failed:
                what = f"index {text} counts {count} failures of {failed}"
                self.violated("JOB", f"{new.name}: {what}")

    def _ends(self, job: Workload, index: int) -> PlaceEnds:
        return self._pieces.ends.get((job.namespace, f"{job.name}-{index}"), PlaceEnds())

    def _check_creation(self, replica: Replica) -> None:
        spec, name = replica.spec, replica.name
        owners = [it for it in self._store_copy.versions(owner_key(replica)) if _owns(it, replica)]
        jobs = [it for it in owners if it.spec.type is WorkloadType.JOB]
        if not jobs:
            return
        if spec.ordinal in self._done.get(spec.workload_uid, set()):
            self.violated("JOB", f"{name} was created though its index has succeeded")
        if all(finished_condition(it) is not None for it in jobs):
            self.violated("JOB", f"{name} was created for a job that has finished")
        if all(spec.ordinal >= completions(it.spec) for it in jobs):
            self.violated("JOB", f"{name} is beyond the requested completions")
        there = [
            it
            for it in self._store_copy.all("objects/replicas/")
            if it.spec.workload_uid == spec.workload_uid and it.status.state is not State.RELEASED
        ]
        if len(there) > self._most[spec.workload_uid]:
            most = self._most[spec.workload_uid]
            self.violated("JOB", f"{len(there)} of {spec.workload} exist, {most} are allowed")


class OneRunPerMoment(Checker):
    """Cron jobs: at most one run for each time of the schedule, and none beside another."""

    invariants = ("CRON",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self._runs: dict[tuple[str, datetime], str] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/workloads/"):
            owner = cron_of(new) if new is not None else None
            if owner is not None and not _is_same(old, new):
                self._check_creation(new, owner)

    def _check_creation(self, run: Workload, owner: Any) -> None:
        moment = scheduled_at(owner.name, run.name)
        if moment is None:
            self.violated("CRON", f"{run.name} is for no time of the schedule")
        uid = run.metadata.uid
        if self._runs.setdefault((owner.uid, moment), uid) != uid:
            self.violated("CRON", f"a second run for {moment}: {run.name}")
        crons = self._store_copy.versions(f"objects/workloads/{run.namespace}/{owner.name}")
        mine = [it for it in crons if it.metadata.uid == owner.uid and it.spec.cron is not None]
        if not mine or all(it.spec.cron.suspend for it in mine):
            self.violated("CRON", f"{run.name} was created, its cron job is suspended or gone")
        if any(it.spec.cron.concurrency is not Concurrency.FORBID for it in mine):
            return
        for other in self._store_copy.all("objects/workloads/"):
            of = cron_of(other)
            if of is None or of.uid != owner.uid or other.metadata.uid == uid:
                continue
            key = f"objects/workloads/{other.namespace}/{other.name}"
            if all(_is_active(it) for it in self._store_copy.versions(key)):
                self.violated("CRON", f"{run.name} was created while {other.name} runs")


class OnePerNode(Checker):
    """Per-node work: never two at a time for one node, and none anywhere else."""

    invariants = ("PERNODE",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            owners = self._store_copy.versions(owner_key(new))
            if not any(it.spec.type is WorkloadType.PER_NODE for it in owners):
                continue
            home, binding = home_of(new), new.status.binding
            if binding is not None and binding.node != home:
                self.violated("PERNODE", f"{new.name} is for {home} and on {binding.node}")
            if not same(old, new):
                self._check_creation(new, home)

    def _check_creation(self, replica: Replica, home: str) -> None:
        uid = replica.spec.workload_uid
        there = [
            it.name
            for it in self._store_copy.all("objects/replicas/")
            if it.spec.workload_uid == uid
            and home_of(it) == home
            and it.status.state is not State.RELEASED
        ]
        if len(there) > 1:
            self.violated("PERNODE", f"{there} are for {home}")


class PublishedEndpoints(Checker):
    """Endpoints: only what is or was just ready is listed, and nothing serves unlisted."""

    invariants = ("SERVE",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # Until when each replica was ready, and until when it was in a list.
        self._until_ms: dict[tuple[str, str], int] = {}
        self._unlisted_ms: dict[tuple[str, str], int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        for _, old, new in self._store_copy.changed("objects/endpoints/"):
            known = {it.replica for it in old.endpoints} if old is not None else set()
            listed = {it.replica for it in new.endpoints} if new is not None else set()
            namespace = (new or old).namespace
            for name in sorted(known - listed):
                self._unlisted_ms[namespace, name] = now_ms
            for name in sorted(listed):
                self._check_listed(namespace, name, now_ms)
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if old is not None and is_ready(old):
                self._until_ms[old.namespace, old.name] = now_ms
            if new is None or not same(old, new) or new.status.stage is not Stage.SERVING:
                continue
            if old.status.stage is not Stage.SERVING:
                self._check_serving(new, now_ms)

    def _check_serving(self, replica: Replica, now_ms: int) -> None:
        """It is in a list, or was recently: a list may change while the report is in flight."""
        lists = self._store_copy.all("objects/endpoints/")
        mine = [it for it in lists if it.namespace == replica.namespace]
        if any(it.replica == replica.name for one in mine for it in one.endpoints):
            return
        until_ms = self._unlisted_ms.get((replica.namespace, replica.name))
        if until_ms is None or now_ms - until_ms > STALE_MS:
            self.violated("SERVE", f"{replica.name} serves, and no endpoint list has it")

    def _check_listed(self, namespace: str, name: str, now_ms: int) -> None:
        found = self._store_copy.versions(f"objects/replicas/{namespace}/{name}")
        if any(is_ready(it) for it in found):
            return
        until_ms = self._until_ms.get((namespace, name))
        if until_ms is None:
            self.violated("SERVE", f"{name} is listed and has never been ready")
        if now_ms - until_ms > STALE_MS:
            self.violated(
                "SERVE", f"{name} is listed again {now_ms - until_ms} ms after it was ready"
            )


def is_ready(replica: Replica) -> bool:
    """Whether it is ready according to status."""
    return replica.status.state is State.RUNNING and replica.status.stage in _READY


def _is_same(old: Workload | None, new: Workload | None) -> bool:
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid


def _owns(workload: Workload, replica: Replica) -> bool:
    return workload.metadata.uid == replica.spec.workload_uid


def _is_active(run: Workload) -> bool:
    return finished_condition(run) is None and run.metadata.deletion_timestamp is None


class RolloutLimits(Checker):
    """At any commit, a rollout disrupts no more places than it may, counted from its own acts.

    A place is disrupted from the moment a rollout stopped an available replica there until a
    replica is available there again. Losses for other reasons do not count.
    """

    invariants = ("ROLLOUT",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self._begun: dict[str, set[int]] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        stopped: dict[str, Replica] = {}
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            begun = self._begun.setdefault(new.spec.workload_uid, set())
            if is_available(new):
                begun.discard(new.spec.ordinal)
            elif same(old, new) and is_available(old) and _was_rolled(old, new):
                begun.add(new.spec.ordinal)
                stopped[new.spec.workload_uid] = new
        for replica in stopped.values():
            self._judge(replica)

    def _judge(self, replica: Replica) -> None:
        uid = replica.spec.workload_uid
        owners = [
            it for it in self._store_copy.versions(owner_key(replica)) if it.metadata.uid == uid
        ]
        rolled = [it for it in owners if it.spec.rollout.strategy is not RolloutStrategy.RECREATE]
        if not rolled:
            return
        allowed = [limits(it.spec.rollout, self._stated(it)) for it in rolled]
        most = max(map(sum, allowed))
        surge = max(too_many for _, too_many in allowed)
        # Places beyond these were given up and get no replica any more.
        places = max(map(self._stated, rolled)) + surge
        is_service = rolled[-1].spec.type is WorkloadType.SERVICE
        begun = sorted(it for it in self._begun[uid] if it < places or not is_service)
        if len(begun) > most:
            name = replica.spec.workload
            self.violated("ROLLOUT", f"{name} has places {begun} disrupted, {most} are allowed")

    def _stated(self, workload: Workload) -> int:
        if workload.spec.type is WorkloadType.SERVICE:
            return workload.spec.replicas
        return len(self._store_copy.all("objects/nodes/"))


def _was_rolled(old: Replica, new: Replica) -> bool:
    cause = Cause.ROLLOUT.value
    return any(it.to is State.STOPPING and it.reason == cause for it in steps_of(old, new))


# How long a request may take to reach the store after a server decided and stamped it.
IN_FLIGHT_S = 10.0
_OWN = f"{controller('workload').name}/"


class JobTimes(Checker):
    """JOB: a job fails for its deadline, and is removed for its age, not before that time is over.

    The check uses true time. Servers make the stamps, and faults set the calendars of servers.
    Where the calendar of the deciding server was wrong at either end, the job has its times by that
    calendar, and this checker does not judge it.
    """

    invariants = ("JOB",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # When each job was created and when it ended, by true time, if its stamp agrees.
        self._made: dict[str, datetime] = {}
        self._ended: dict[str, datetime] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        now = datetime.fromtimestamp((world.origin_us + world.now_us) / 1_000_000, UTC)
        for key, old, new in self._store_copy.changed("objects/workloads/"):
            if old is not None and old.metadata.deletion_timestamp is None:
                self._check_removal(key, old, new, now)
            if new is None or new.spec.type is not WorkloadType.JOB:
                continue
            uid, made = new.metadata.uid, new.metadata.creation_timestamp
            if old is None and _is_true(made, now):
                self._made[uid] = now
            over = finished_condition(new)
            if over is None or (old is not None and finished_condition(old) is not None):
                continue
            if _is_true(over.last_transition_time, now):
                self._ended[uid] = now
                if over.reason == DEADLINE_EXCEEDED and uid in self._made:
                    within_s = new.spec.job.deadline_seconds or 0
                    self._judge(f"{new.name} has failed", self._made[uid], within_s, now)

    def _check_removal(self, key: str, job: Workload, new: Workload | None, now: datetime) -> None:
        """controller:workload removes expired jobs only; users may remove any."""
        ttl_s, uid = job.spec.job.ttl_seconds_after_finished, job.metadata.uid
        if ttl_s is None or cron_of(job) is not None or uid not in self._ended:
            return
        if new is not None and new.metadata.deletion_timestamp is None:
            return
        apart = [past for _, _, past in self._store_copy.changed(keys.OPERATIONS)]
        found = [it.operation for it in apart if it is not None and it.key == key]
        for operation in (*found, *accepted_in(job, new)):
            if operation.id.startswith(_OWN) and _is_true(operation.at, now):
                self._judge(f"{job.name} was removed", self._ended[uid], ttl_s, now)

    def _judge(self, what: str, since: datetime, within_s: int, now: datetime) -> None:
        after_s = (now - since).total_seconds()
        if after_s < within_s - IN_FLIGHT_S:
            self.violated("JOB", f"{what} after {after_s:.0f} s, allowed are {within_s} s")


def _is_true(stamp: datetime | None, now: datetime) -> bool:
    return stamp is not None and abs((now - stamp).total_seconds()) <= IN_FLIGHT_S
