"""controller:workload: the replicas that a workload wants, and none for one that goes.

It owns the birth of replicas, their release while they have no place, evictions for scaling down,
deletion and a job's deadline, the runs of cron jobs, and the parts `job` and `cron` of a workload's
status with the conditions Complete and Failed. The scheduler places what is born here, agents run
it and restart it in place; what ends for good is followed up here.

Each type of workload has a file of its own: `services.py`, `jobs.py` with `accounts.py`,
`crons.py`, `each_node.py`.
Here is what they share: their keys, and the end of a workload.

The keys are the workload, for its end and its account, and stretches of its places, `NAME/0` and so
on, which no name of an object can look like. A service has as many stretches as it needs; where
places depend on each other, as those of a job do by its parallelism, there is one.
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
    View,
    key_of,
    operation,
)
from holdfast.correct.jobs.account import JobAccounts
from holdfast.correct.jobs.cron import BY_CRON, CronRuns, Zones, only_utc, runs_of
from holdfast.correct.jobs.index_runs import JobReplicas
from holdfast.correct.workload.each_node import BY_TYPE, PerNodeReplicas, is_same_home
from holdfast.correct.workload.ordinals import (
    BY_PLACE,
    BY_STRETCH,
    stretch,
    stretch_of,
    stretches,
    whole,
)
from holdfast.correct.workload.replica_creation import IDENTITY, ReplicaCreation, ended, is_of
from holdfast.correct.workload.services import ServiceReplicas
from holdfast.model.indexes import parse
from holdfast.model.jobs import cron_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Create, Term, Update
from holdfast.model.rollouts import REVERTED
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange

# What keeps a workload until its last replica is gone; the server puts it there.
REPLICAS_FINALIZER = "holdfast.dev/replicas"


def _wish(workload: Any) -> Any:
    """What the places of a workload follow from. The rest of its status changes all the time."""
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


def _moved_places(change: ObjectChange) -> list[int]:
    """The places of a service that a rollout has begun, or given up, with this change."""
    before, after = change.before, change.after
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return []
    was, now = before.status.rollout.updated, after.status.rollout.updated
    return sorted({*parse(was)} ^ {*parse(now)}) if was != now else []


class WorkloadController(Controller):
    """See the module's docstring. `zones` is what is known of time zones, for cron jobs."""

    name = "workload"
    follows = ("workloads", "replicas", "nodes", "tenants", "regions")
    indexes = (BY_WORKLOAD, BY_PLACE, BY_STRETCH, BY_CRON, BY_TYPE)

    def __init__(self, zones: Zones = only_utc) -> None:
        self._births = ReplicaCreation()
        self._services = ServiceReplicas(self._births)
        self._jobs = JobReplicas(self._births)
        self._accounts = JobAccounts()
        self._crons = CronRuns(zones)
        self._each_node = PerNodeReplicas(self._births)

    # Keys ----------------------------------------------------------------------------------------

    def keys_of(self, change: ObjectChange, view: View) -> Iterable[Key]:
        """A replica concerns its stretch of places; a workload's wish, all of them."""
        obj: Any = change.object
        match obj:
            case Replica():
                return self._keys_of_replica(obj, view)
            case Workload():
                return self._keys_of_workload(obj, change, view)
            case Node():
                if is_same_home(change.before, change.after):
                    return ()
        # Nodes come and go, and the rules of tenants and regions change, seldom enough.
        return self._on_nodes(view)

    def _keys_of_replica(self, replica: Replica, view: View) -> list[Key]:
        self._births.see(replica)
        named = replica.namespace, replica.spec.workload
        owner: Workload | None = view.get("workloads", *named)
        if owner is None or owner.spec.type is WorkloadType.SERVICE:
            key = stretch_of(replica)
            self._services.places.touch(key, replica.spec.ordinal)
        else:
            key = whole(*named)
        is_job = owner is not None and owner.spec.type is WorkloadType.JOB
        is_dying = owner is not None and owner.metadata.deletion_timestamp is not None
        return [key, named] if is_job or is_dying else [key]

    def _keys_of_workload(self, workload: Workload, change: ObjectChange, view: View) -> list[Key]:
        keys, owner = [key_of(workload)], cron_of(workload)
        if owner is not None:
            keys.append((workload.namespace, owner.name))
        if _wish(change.before) == _wish(change.after):
            return [*keys, *self._begun(workload, _moved_places(change))]
        concerned = list(stretches(view, workload))
        for key in concerned:
            self._services.places.open_all(key)
        return [*keys, *concerned]

    def _begun(self, workload: Workload, places: list[int]) -> list[Key]:
        """The stretches of these places, which are to be looked at alone."""
        if workload.spec.type is not WorkloadType.SERVICE:
            return []
        concerned: dict[Key, None] = {}
        for ordinal in places:
            key = stretch(workload.namespace, workload.name, ordinal)
            self._services.places.touch(key, ordinal)
            concerned[key] = None
        return list(concerned)

    @staticmethod
    def _on_nodes(view: View) -> list[Key]:
        found: list[Workload] = view.found(BY_TYPE, WorkloadType.PER_NODE.value)
        return [whole(*key_of(it)) for it in found]

    def flow_of(self, key: Key) -> tuple[str, str]:
        """All stretches of a workload are one flow: the births of ten thousand replicas of one do
        not delay those of another.
        """
        return key[0], key[1].partition("/")[0]

    def all_keys(self, view: View) -> Iterable[Key]:
        workloads: list[Workload] = list(view.all("workloads"))
        uids = {it.metadata.uid for it in workloads}
        self._births.forget_all_but(uids, {it.metadata.uid for it in view.all("replicas")})
        self._services.places.open_everything()
        self._jobs.forget_all_but(uids)
        self._accounts.forget_all_but(uids)
        self._crons.forget_refusals()
        self._each_node.look_at_all()
        return [key for it in workloads for key in (key_of(it), *stretches(view, it))]

    def answered(
        self, request: Any, to: str, answer: Any, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Take note of what was made or refused, where that changes what is asked for next."""
        match request:
            case Create(object=Workload() as run):
                self._crons.answered(run, answer)
            case Create(object=Replica() as replica):
                if isinstance(answer, Refusal):
                    return self._unborn(replica, answer)
        return ()

    def _unborn(self, replica: Replica, refusal: Refusal) -> list[Key]:
        """A birth was refused: which keys to look at again, now that more is known."""
        if refusal.reason is Reason.OBJECT_CAP:
            self._jobs.has_no_room(replica.spec.workload_uid)
        if not self._births.refused(replica, refusal):
            return []
        # By type as in `keys_of`; of the two the one that is not a key leads to nothing.
        return [stretch_of(replica), whole(replica.namespace, replica.spec.workload)]

    # Decisions -----------------------------------------------------------------------------------

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        name, _, stretch = key[1].partition("/")
        workload: Workload | None = view.get("workloads", key[0], name)
        if workload is None:
            self._services.places.open_all(key)
            return ReconcilePlan()
        if workload.metadata.deletion_timestamp is not None:
            if stretch:
                return ReconcilePlan(tuple(self._emptied(view, workload, key, term)))
            return ReconcilePlan(tuple(self._let_go(view, workload)))
        match workload.spec.type:
            case WorkloadType.SERVICE if stretch:
                return self._services.served(view, workload, key, term, now)
            case WorkloadType.JOB if stretch:
                is_late = self._accounts.late_in_ms(workload, now) == 0
                return self._jobs.run(view, workload, key, term, now, is_late=is_late)
            case WorkloadType.JOB:
                return self._accounts.settled(view, workload, now)
            case WorkloadType.CRON if not stretch:
                return self._crons.kept(view, workload, now)
            case WorkloadType.PER_NODE if stretch:
                return self._each_node.spread(view, workload, key, term, now)
        return ReconcilePlan()

    def _emptied(self, view: View, workload: Workload, key: Key, term: Term) -> Iterator[Any]:
        """Stop and clear away all replicas of a workload that goes."""
        if workload.spec.type is WorkloadType.SERVICE:
            yield from self._services.emptied(view, workload, key, term)
            return
        named: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
        asked = (it for one in named if is_of(one, workload) for it in ended(one, term))
        yield from islice(asked, REQUESTS_PER_PLAN_MAX + 1)

    def _let_go(self, view: View, workload: Workload) -> Iterator[Any]:
        """Let go of a workload that has no replica and no run any more.

        That no replica is left is proven by the ledger in that transaction, not by this picture;
        no run is born for a cron job that goes, and one that was overlooked is collected as one
        whose owner is gone.
        """
        if workload.spec.type is WorkloadType.CRON and runs_of(view, workload):
            yield from self._crons.emptied(view, workload)
            return
        metadata = workload.metadata
        named = f"{metadata.namespace}/{metadata.name}"
        is_left = view.has(BY_WORKLOAD, named, lambda it: is_of(it, workload))
        if is_left or REPLICAS_FINALIZER not in metadata.finalizers:
            return
        rest = tuple(it for it in metadata.finalizers if it != REPLICAS_FINALIZER)
        emptied = msgspec.structs.replace(metadata, finalizers=rest)
        yield Update(
            msgspec.structs.replace(workload, metadata=emptied),
            operation=operation(IDENTITY, metadata.uid, metadata.resource_version, "let-go"),
        )
