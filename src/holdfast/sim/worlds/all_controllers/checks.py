"""What must hold at rest: V1 to V4 for every type of work, and true status and endpoint lists."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Cron, Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.placement_rules import NODE_LABEL
from holdfast.model.placement.vacancy import home_of
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.workload.cron import last_fire, parse
from holdfast.model.workload.jobs import cron_of, finished_condition
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.checkers.liveness import PlaceableReplicas
from holdfast.sim.planes.checkers.process_checks import DesiredWork, occupies_ordinal
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.invariants import is_ready

# Once nothing goes wrong any more, a run of a schedule may be this late.
PUNCTUAL = timedelta(seconds=20)
# All schedules here fire once a minute.
A_MOMENT = timedelta(minutes=1)
# Work that was restarted this often becomes available too late for a rollout to end in time.
SHAKY_RESTARTS = 2


def true_time(world: World) -> datetime:
    """The true wall-clock time, which no machine knows."""
    return datetime.fromtimestamp((world.origin_us + world.now_us) / 1_000_000, UTC)


class DesiredWorkOfAllTypes(DesiredWork):
    """V1 and V3 for every type of work: the desired work exists, and nothing else."""

    _at = datetime.fromtimestamp(0, UTC)

    def missing(self, world: World) -> str | None:
        self._at = true_time(world)
        return super().missing(world)

    def _judge(self) -> str | None:
        replicas = self._store_copy.all("objects/replicas/")
        mine: dict[str, list[Replica]] = {}
        for replica in replicas:
            mine.setdefault(replica.spec.workload_uid, []).append(replica)
        for workload in self._store_copy.all("objects/workloads/"):
            there = mine.get(workload.metadata.uid, [])
            for wrong in self._wrongs(workload, there):
                return f"{workload.name} {wrong}"
        workloads = self._store_copy.all("objects/workloads/")
        jobs = {it.metadata.uid for it in workloads if it.spec.type is WorkloadType.JOB}
        for replica in replicas:
            # Ended replicas of a job are kept so that users can inspect them.
            ended = replica.spec.workload_uid in jobs and replica.status.state is State.RELEASED
            found = None if ended else self._wrong(replica)
            if found is not None:
                return found
        return self._surplus(replicas)

    def _wrongs(self, workload: Workload, mine: list[Replica]) -> Iterator[str]:
        if workload.metadata.deletion_timestamp is not None:
            yield "is still being deleted"
        held = [it for it in mine if occupies_ordinal(it)]
        if workload.spec.type in (WorkloadType.SERVICE, WorkloadType.PER_NODE):
            wanted = revision_of(workload.spec.template)
            old = [it.name for it in held if it.spec.revision != wanted]
            # A rollout waits longer for work that has restarted repeatedly.
            is_shaky = any(it.status.process.restarts >= SHAKY_RESTARTS for it in mine)
            if old and not is_shaky:
                yield f"has {old} of a revision other than {wanted}"
        match workload.spec.type:
            case WorkloadType.SERVICE if len(held) != workload.spec.replicas:
                yield f"has {len(held)} of {workload.spec.replicas}"
            case WorkloadType.PER_NODE:
                yield from self._wrong_nodes(held)
            case WorkloadType.JOB:
                yield from self._wrong_end(workload, held)

    def _wrong_nodes(self, held: list[Replica]) -> Iterator[str]:
        homes = sorted(home_of(it) for it in held)
        nodes = sorted(it.name for it in self._store_copy.all("objects/nodes/"))
        if homes != nodes:
            yield f"is on {homes} of {nodes}"

    def _wrong_end(self, job: Workload, held: list[Replica]) -> Iterator[str]:
        """A job has finished unless it is paused, or is pending without capacity and says so."""
        over = finished_condition(job)
        if over is not None:
            ttl_s = job.spec.job.ttl_seconds_after_finished
            if ttl_s is not None and over.last_transition_time is not None:
                yield from self._overdue_removal(over.last_transition_time, ttl_s)
            if held:
                yield f"has finished, and {[it.name for it in held]} still exist"
        elif job.spec.job.parallelism != 0:
            if not any(it.status.state is State.PENDING for it in held):
                yield f"has not finished, with {[it.name for it in held]}"
        elif held:
            yield f"is paused, and {[it.name for it in held]} still exist"

    def _overdue_removal(self, since: datetime, ttl_s: int) -> Iterator[str]:
        """A job that ended while a calendar was ahead is due later, by that calendar."""
        late_s = (self._at - since).total_seconds() - ttl_s
        if late_s > PUNCTUAL.total_seconds():
            yield f"should have been removed {late_s:g} s ago"


class PlaceableOnItsNode(PlaceableReplicas):
    """V2, including work that asks for one particular node."""

    def _fits(self, replica: Replica, ledgers: list[NodeLedger]) -> bool:
        home = replica.spec.template.placement.node_selector.get(NODE_LABEL)
        if home is not None:
            mine = self._store_copy.now.get(f"ledgers/node/{home}")
            ledgers = [it for it in ledgers if it is mine]
        return super()._fits(replica, ledgers)


class TruthfulStatus:
    """The status of workloads is true: counts, endpoint lists, cron jobs."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self._as_of = -1
        self._verdict: str | None = None

    def missing(self, world: World) -> str | None:
        """A false statement in status, as a sentence."""
        if self._as_of != self._store_copy.version:
            self._as_of, self._verdict = self._store_copy.version, self._judge()
        return self._verdict

    def _judge(self) -> str | None:
        mine: dict[str, list[Replica]] = {}
        for replica in self._store_copy.all("objects/replicas/"):
            mine.setdefault(replica.spec.workload_uid, []).append(replica)
        workloads = {it.metadata.uid: it for it in self._store_copy.all("objects/workloads/")}
        for uid, workload in workloads.items():
            there = mine.get(uid, [])
            for wrong in (*self._counts(workload, there), *self._lists(workload, there)):
                return f"{workload.name} {wrong}"
        for listed in self._store_copy.all("objects/endpoints/"):
            owners = [it.uid for it in listed.metadata.owner_references]
            if not any(uid in workloads for uid in owners):
                return f"the endpoints of {listed.name} exist without their workload"
        return None

    @staticmethod
    def _counts(workload: Workload, mine: list[Replica]) -> Iterator[str]:
        if workload.spec.type is WorkloadType.CRON:
            return
        status, ready = workload.status, sum(is_ready(it) for it in mine)
        if status.observed_generation != workload.metadata.generation:
            yield f"has not observed generation {workload.metadata.generation}"
        if status.progress.ready != ready:
            yield f"reports {status.progress.ready} ready of {ready}"
        waiting = sum(it.status.state is State.PENDING for it in mine)
        if status.progress.queued != waiting:
            yield f"reports {status.progress.queued} queued of {waiting}"

    def _lists(self, workload: Workload, mine: list[Replica]) -> Iterator[str]:
        if workload.spec.type not in (WorkloadType.SERVICE, WorkloadType.PER_NODE):
            return
        uid = workload.metadata.uid
        lists = self._store_copy.all("objects/endpoints/")
        known = [it for it in lists if any(of.uid == uid for of in it.metadata.owner_references)]
        listed = sorted(it.replica for one in known for it in one.endpoints)
        ready = sorted(it.name for it in mine if is_ready(it))
        if listed != ready:
            yield f"lists {listed}, and {ready} are ready"

    def unpunctual(self, world: World) -> str | None:
        """A cron job that missed a past time of its schedule, or keeps too many runs."""
        at = true_time(world) - PUNCTUAL
        for cron in self._store_copy.all("objects/workloads/"):
            stated: Cron | None = cron.spec.cron
            if stated is None or stated.suspend or cron.spec.type is not WorkloadType.CRON:
                continue
            status = cron.status.cron
            known = (status.last_schedule, status.last_skipped, status.counts_from)
            # A time in the future was written while a calendar was ahead, and excuses nothing.
            past = [it for it in known if it is not None and it <= true_time(world)]
            since = max(past, default=at - A_MOMENT)
            due = last_fire(parse(stated.schedule), since, at, lambda _: timedelta(0))
            if due is not None:
                return f"{cron.name} has not handled {due}, after {since}"
            over = [it for it in self._runs(cron) if finished_condition(it) is not None]
            if len(over) > stated.history + 1:
                return f"{cron.name} keeps {len(over)} runs"
        return None

    def _runs(self, cron: Workload) -> Iterator[Workload]:
        for run in self._store_copy.all("objects/workloads/"):
            owner = cron_of(run)
            if owner is not None and owner.uid == cron.metadata.uid:
                yield run
