"""controller:workload: creates the replicas of workloads, and removes those of deleted ones.

It owns the creation of replicas, their release while they are not bound, evictions for scaling
down, deletion and a job's deadline, the runs of cron jobs, and the parts `job` and `cron` of a
workload's status with the conditions Complete and Failed. The scheduler places the replicas, agents
run them and restart them in place; this controller replaces those that have ended.

Each type of workload has its own file: `services.py`, `jobs/index_runs.py` with `jobs/account.py`,
`jobs/cron.py`, `each_node.py`. This file has what they share: the keys, and the deletion of a
workload.

The keys are the workload, for its deletion and its account, and ranges of its ordinals, `NAME/0`
and so on, which cannot be names of objects. A service has as many ranges as it needs; where
ordinals depend on each other, as in a job by its parallelism, there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Controller,
    ReconcilePlan,
    key_of,
    operation,
)
from holdfast.correct.jobs.account import JobAccounts
from holdfast.correct.jobs.cron import BY_CRON, CronRuns, Zones, only_utc, runs_of
from holdfast.correct.jobs.index_runs import JobReplicas
from holdfast.correct.workload.each_node import BY_TYPE, PerNodeReplicas, is_same_home
from holdfast.correct.workload.ordinals import (
    BY_ORDINAL,
    BY_RANGE,
    range_key,
    range_key_of,
    range_keys,
    whole,
)
from holdfast.correct.workload.replica_creation import IDENTITY, ReplicaCreation, end, is_of
from holdfast.correct.workload.services import ServiceReplicas
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import Question, Reply
from holdfast.model.meta import REPLICAS_FINALIZER
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Request, Term, Update
from holdfast.model.time import Instant
from holdfast.model.workload.indexes import parse
from holdfast.model.workload.jobs import cron_of
from holdfast.model.workload.rollouts import REVERTED
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot


def _relevant(workload: Any) -> Any:
    """The fields that the replicas of a workload depend on. Other status changes all the time."""
    if not isinstance(workload, Workload):
        return None
    metadata = workload.metadata
    wanted = metadata.uid, metadata.generation, metadata.deletion_timestamp
    if workload.spec.type is WorkloadType.JOB:
        return *wanted, workload.status.job, workload.status.conditions
    rollout = workload.status.rollout
    is_back = rollout.phase in REVERTED
    targets = rollout.current, rollout.stable, rollout.surge, rollout.held, is_back
    if workload.spec.type is WorkloadType.SERVICE:
        return *wanted, targets
    return *wanted, targets, rollout.updated


def _moved_ordinals(change: ObjectChange) -> list[int]:
    """The ordinals of a service whose target revision this change moves."""
    before, after = change.before, change.after
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return []
    was, now = before.status.rollout.updated, after.status.rollout.updated
    return sorted({*parse(was)} ^ {*parse(now)}) if was != now else []


class WorkloadController(Controller):
    """See the module's docstring. `zones` looks up time zones, for cron jobs."""

    actor = Actor.WORKLOAD
    follows = ("workloads", "replicas", "nodes", "tenants", "regions")
    indexes = (BY_WORKLOAD, BY_ORDINAL, BY_RANGE, BY_CRON, BY_TYPE)

    def __init__(self, zones: Zones = only_utc) -> None:
        self._creation = ReplicaCreation()
        self._services = ServiceReplicas(self._creation)
        self._jobs = JobReplicas(self._creation)
        self._accounts = JobAccounts()
        self._crons = CronRuns(zones)
        self._each_node = PerNodeReplicas(self._creation)
        self.remembers = (
            self._creation,
            self._creation.waits,
            self._services.places,
            *self._jobs.remembers,
            *self._accounts.remembers,
            *self._crons.remembers,
            *self._each_node.remembers,
        )

    # Keys ----------------------------------------------------------------------------------------

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A replica concerns its range of ordinals; a change of the workload, all ranges."""
        obj: Any = change.object
        match obj:
            case Replica():
                return self._keys_of_replica(obj, view)
            case Workload():
                return self._keys_of_workload(obj, change, view)
            case Node():
                if is_same_home(change.before, change.after):
                    return ()
        # Nodes come and go, and the rules of tenants and regions change, rarely enough.
        return self._on_nodes(view)

    def _keys_of_replica(self, replica: Replica, view: Snapshot) -> list[Key]:
        self._creation.see(replica)
        named = replica.namespace, replica.spec.workload
        owner: Workload | None = view.get("workloads", *named)
        if owner is None or owner.spec.type is WorkloadType.SERVICE:
            key = range_key_of(replica)
            self._services.places.touch(key, replica.spec.ordinal)
        else:
            key = whole(*named)
        is_job = owner is not None and owner.spec.type is WorkloadType.JOB
        is_dying = owner is not None and owner.metadata.deletion_timestamp is not None
        return [key, named] if is_job or is_dying else [key]

    def _keys_of_workload(
        self, workload: Workload, change: ObjectChange, view: Snapshot
    ) -> list[Key]:
        keys, owner = [key_of(workload)], cron_of(workload)
        if owner is not None:
            keys.append((workload.namespace, owner.name))
        if _relevant(change.before) == _relevant(change.after):
            return [*keys, *self._ranges_of(workload, _moved_ordinals(change))]
        concerned = list(range_keys(view, workload))
        for key in concerned:
            self._services.places.open_all(key)
        return [*keys, *concerned]

    def _ranges_of(self, workload: Workload, places: list[int]) -> list[Key]:
        """The ranges of these ordinals; only these ordinals are checked in them."""
        if workload.spec.type is not WorkloadType.SERVICE:
            return []
        concerned: dict[Key, None] = {}
        for ordinal in places:
            key = range_key(workload.namespace, workload.name, ordinal)
            self._services.places.touch(key, ordinal)
            concerned[key] = None
        return list(concerned)

    @staticmethod
    def _on_nodes(view: Snapshot) -> list[Key]:
        found: list[Workload] = view.found(BY_TYPE, WorkloadType.PER_NODE.value)
        return [whole(*key_of(it)) for it in found]

    def flow_of(self, key: Key) -> tuple[str, str]:
        """All ranges of a workload are one flow: the creation of ten thousand replicas of one
        workload does not delay that of another.
        """
        return key[0], key[1].partition("/")[0]

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        workloads: Iterator[Workload] = view.all("workloads")
        return [key for it in workloads for key in (key_of(it), *range_keys(view, it))]

    def answered(
        self, request: Question, to: str, answer: Reply, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Note created and refused objects, where that changes the next requests."""
        match request:
            case Create(object=Workload() as run):
                self._crons.answered(run, answer)
            case Create(object=Replica() as replica):
                if isinstance(answer, Refusal):
                    return self._creation_refused(replica, answer)
        return ()

    def _creation_refused(self, replica: Replica, refusal: Refusal) -> list[Key]:
        """A creation was refused; returns the keys to reconcile, now that more is known."""
        if refusal.reason is Reason.OBJECT_CAP:
            self._jobs.has_no_room(replica.spec.workload_uid)
        if not self._creation.refused(replica, refusal):
            return []
        # Which of the two is a key depends on the type, as in `keys_of`; the other does nothing.
        return [range_key_of(replica), whole(replica.namespace, replica.spec.workload)]

    # Decisions -----------------------------------------------------------------------------------

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        name, _, range_number = key[1].partition("/")
        workload: Workload | None = view.get("workloads", key[0], name)
        if workload is None:
            self._services.places.open_all(key)
            return ReconcilePlan()
        if workload.metadata.deletion_timestamp is not None:
            if range_number:
                return ReconcilePlan(tuple(self._stop_all(view, workload, key, term)))
            return ReconcilePlan(tuple(self._finalize(view, workload)))
        match workload.spec.type:
            case WorkloadType.SERVICE if range_number:
                return self._services.reconcile(view, workload, key, term, now)
            case WorkloadType.JOB if range_number:
                is_late = self._accounts.late_in_ms(workload, now) == 0
                return self._jobs.run(view, workload, key, term, now, is_late=is_late)
            case WorkloadType.JOB:
                return self._accounts.reconcile(view, workload, now)
            case WorkloadType.CRON if not range_number:
                return self._crons.reconcile(view, workload, now)
            case WorkloadType.PER_NODE if range_number:
                return self._each_node.reconcile(view, workload, key, term, now)
        return ReconcilePlan()

    def _stop_all(
        self, view: Snapshot, workload: Workload, key: Key, term: Term
    ) -> Iterator[Request]:
        """Stop and remove all replicas of a workload in deletion."""
        if workload.spec.type is WorkloadType.SERVICE:
            yield from self._services.stop_all(view, workload, key, term)
            return
        named: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
        asked = (it for one in named if is_of(one, workload) for it in end(one, term))
        yield from islice(asked, REQUESTS_PER_PLAN_MAX + 1)

    def _finalize(self, view: Snapshot, workload: Workload) -> Iterator[Request]:
        """Remove the finalizer of a workload without replicas and runs.

        The ledger proves in that transaction that no replica is left, not this cache. No run is
        created for a cron job in deletion, and controller:garbage collects one that was missed.
        """
        if workload.spec.type is WorkloadType.CRON and runs_of(view, workload):
            yield from self._crons.removals(view, workload)
            return
        metadata = workload.metadata
        named = f"{metadata.namespace}/{metadata.name}"
        is_left = view.has(BY_WORKLOAD, named, lambda it: is_of(it, workload))
        if is_left or REPLICAS_FINALIZER not in metadata.finalizers:
            return
        rest = tuple(it for it in metadata.finalizers if it != REPLICAS_FINALIZER)
        released = msgspec.structs.replace(metadata, finalizers=rest)
        yield Update(
            msgspec.structs.replace(workload, metadata=released),
            operation=operation(IDENTITY, metadata.uid, metadata.resource_version, "let-go"),
        )
