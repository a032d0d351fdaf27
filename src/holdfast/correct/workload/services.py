"""Services: the stated number of replicas, each at its own ordinal.

Part of controller:workload, which calls `reconcile` for one range of ordinals at a time.

    ordinal without replica -> Create the next incarnation, after a pause if the last ones crashed,
                               of the target revision of controller:rollout
    Pending, Reserved       -> Released, when surplus, or not of that revision
    Bound, Running          -> Evict, when surplus
    Stopping, Unknown,
    Failed, Succeeded       -> nothing: the component that proves its stop releases it
    Released                -> removed, once its successor exists or none is wanted

`keep` work that is out of contact for longer than its owner wants to wait frees its ordinal though
it was not released. A released replica also stores how often its ordinal has crashed.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.correct.controller import (
    REQUESTS_PER_PLAN_MAX,
    ReconcilePlan,
)
from holdfast.correct.workload.ordinals import BY_ORDINAL, OpenOrdinals, place
from holdfast.correct.workload.replica_creation import (
    FURTHER,
    ReplicaCreation,
    end,
    endings_notes,
    is_of,
    is_to_be_released,
    removal,
    stated_for,
    stop,
    worth,
)
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.placement.vacancy import vacates
from holdfast.model.requests import Create, Request, Term
from holdfast.model.time import Instant, sooner
from holdfast.model.workload.rollouts import wanted_places
from holdfast.observe.cache import Key
from holdfast.observe.snapshot import Snapshot

# How soon to reconcile again when the cache lacks a revision.
UNTOLD_PAUSE_MS = 1_000

_WELL = (State.PENDING, State.RESERVED, State.BOUND, State.RUNNING)


class ServiceReplicas:
    """See the module's docstring."""

    def __init__(self, creation: ReplicaCreation) -> None:
        self._creation = creation
        self.places = OpenOrdinals()

    def reconcile(
        self, view: Snapshot, workload: Workload, key: Key, term: Term, now: Instant
    ) -> ReconcilePlan:
        """The plan for a range of ordinals."""
        wanted = wanted_places(workload)
        opened = self.places.open_ordinals(view, key, wanted)
        requests: list[Request] = []
        wake_ms: int | None = None
        for ordinal in list(opened):
            if len(requests) > REQUESTS_PER_PLAN_MAX:
                break
            lives = self._lives(view, workload, ordinal)
            if len(lives) == 1 and ordinal < wanted and _is_at_home(workload, lives[0]):
                del opened[ordinal]
                continue
            asked = list(_stops(workload, lives, ordinal < wanted, term)) if lives else []
            wait_ms = 0
            # While a rollout holds creations back, its end opens all ordinals again.
            is_free = ordinal < wanted and all(vacates(it) for it in lives)
            if is_free and not workload.status.rollout.held:
                wait_ms = self._creation.pause_ms(workload, lives[-1], now) if lives else 0
                stated = stated_for(self._creation, view, workload, ordinal)
                if not wait_ms and stated is not None:
                    asked.append(self._create(workload, ordinal, lives, term, stated))
                else:
                    wait_ms = wait_ms or UNTOLD_PAUSE_MS
                    wake_ms = sooner(wake_ms, wait_ms)
            requests += asked
            if not asked and not wait_ms:
                del opened[ordinal]
        return ReconcilePlan(tuple(requests), wake_after_ms=wake_ms)

    def stop_all(
        self, view: Snapshot, workload: Workload, key: Key, term: Term
    ) -> Iterator[Request]:
        """Stop and remove all replicas of a range."""
        opened = self.places.open_ordinals(view, key, 0)
        count = 0
        for ordinal in list(opened):
            if count > REQUESTS_PER_PLAN_MAX:
                return
            lives = self._lives(view, workload, ordinal)
            asked = [request for replica in lives for request in end(replica, term)]
            yield from asked
            count += len(asked)
            if not asked:
                del opened[ordinal]

    def _lives(self, view: Snapshot, workload: Workload, ordinal: int) -> list[Replica]:
        """The replicas of one ordinal, the newest last."""
        named: list[Replica] = view.found(BY_ORDINAL, place(workload, ordinal))
        lives = [it for it in named if is_of(it, workload)]
        for replica in lives:
            self._creation.see(replica)
        if len(lives) > 1:
            lives.sort(key=lambda it: it.spec.incarnation)
        return lives

    def _create(
        self,
        workload: Workload,
        ordinal: int,
        lives: list[Replica],
        term: Term,
        stated: Template,
    ) -> Create:
        notes = endings_notes(workload, lives[-1] if lives else None)
        return self._creation.create(workload, ordinal, term, notes, stated=stated)


def _is_at_home(workload: Workload, replica: Replica) -> bool:
    """Whether the only replica of an ordinal needs nothing. That is the most common case."""
    is_well = replica.status.state in _WELL and replica.metadata.deletion_timestamp is None
    return is_well and not is_to_be_released(workload, replica)


def _stops(
    workload: Workload, lives: list[Replica], is_wanted: bool, term: Term
) -> Iterator[Request]:
    """Stop surplus replicas of one ordinal, and remove the released ones."""
    alive = [it for it in lives if it.status.state in FURTHER]
    keep = max(alive, key=worth, default=None) if is_wanted else None
    newest = lives[-1].spec.incarnation
    for replica in lives:
        if replica.status.state is State.RELEASED:
            if not is_wanted or replica.spec.incarnation < newest:
                yield removal(replica)
        elif replica is not keep or replica.metadata.deletion_timestamp is not None:
            yield from stop(replica, Cause.SCALE_DOWN, term)
        elif is_to_be_released(workload, replica):
            yield from stop(replica, Cause.ROLLOUT, term)
