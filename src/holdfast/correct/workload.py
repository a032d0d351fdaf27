"""controller:workload: as many replicas as a service wants, and none for one that goes.

It owns the birth of replicas, their release while they have no place, and evictions for
scaling down and deletion. The scheduler places what is born here, agents run it and restart it in
place; what ends for good is replaced here, and only after it was released.

    place empty             -> Create the next incarnation, after a pause if the last ones crashed
    Pending, Reserved       -> Released, when it is not wanted
    Bound, Running          -> Evict, when it is not wanted
    Stopping, Unknown,
    Failed, Succeeded       -> nothing: whoever proves that it has stopped releases it
    Released                -> removed, once its successor is there or none is wanted

`keep` work that is out of contact for longer than its owner wants to wait leaves its place though
it was not released. A released replica stays until its successor is seen: it alone knows which
incarnation is next and how often the place has crashed. A person's deletion takes that away with
the object, so what was seen is remembered here as well, for as long as the term lasts; the id of a
birth names the term, and no two births have the same.

Its keys are the workload, for its end, and stretches of its places, `NAME/0` and so on, which no
name of an object can look like. Deleting works for every type of workload; to run jobs, cron and
one per node is not for this controller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Controller,
    Plan,
    View,
    key_of,
    operation,
    sooner,
    step_id,
    target,
)
from holdfast.correct.endings import ENDINGS_ANNOTATION, endings, replaced_at_ms, vacates
from holdfast.correct.places import BY_PLACE, Places, place, stretch_of, stretches
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Create, Evict, Move, Remove, Term, Update
from holdfast.model.time import Instant
from holdfast.model.validation.replica import replica_name
from holdfast.observe.cache import Change, Key

# What keeps a workload until its last replica is gone; the server puts it there.
REPLICAS_FINALIZER = "holdfast.dev/replicas"

_encode = msgspec.json.Encoder(order="deterministic").encode

# Of two that hold one place, the one that has come further stays.
_FURTHER = (
    State.PENDING,
    State.RESERVED,
    State.BOUND,
    State.UNKNOWN,
    State.RUNNING,
)


def revision_of(template: Template) -> str:
    """The name of a template's revision. It follows from the template alone."""
    return hashlib.blake2b(_encode(template), digest_size=5).hexdigest()


def _is_of(replica: Replica, workload: Workload) -> bool:
    """Whether it belongs to this very workload, and not to an earlier one of its name."""
    return replica.spec.workload_uid == workload.metadata.uid


def _wish(workload: Any) -> Any:
    """What the places of a workload follow from. Its status changes all the time."""
    if not isinstance(workload, Workload):
        return None
    metadata = workload.metadata
    return metadata.uid, metadata.generation, metadata.deletion_timestamp


class WorkloadController(Controller):
    """See the module's docstring."""

    name = "workload"
    follows = ("workloads", "replicas")
    indexes = (BY_WORKLOAD, BY_PLACE)

    def __init__(self) -> None:
        self._places = Places()
        # The last incarnation that was seen at each place, by the workload's uid.
        self._reached: dict[str, dict[int, int]] = {}

    def keys_of(self, change: Change, view: View) -> Iterable[Key]:
        """A replica concerns the stretch of places that its own is in; a workload's wish, all."""
        obj: Any = change.object
        if isinstance(obj, Replica):
            key = stretch_of(obj)
            self._see(obj)
            self._places.touch(key, obj.spec.ordinal)
            owner: Workload | None = view.get("workloads", obj.namespace, obj.spec.workload)
            is_dying = owner is not None and owner.metadata.deletion_timestamp is not None
            return (key, (obj.namespace, obj.spec.workload)) if is_dying else (key,)
        if _wish(change.before) == _wish(change.after):
            return (key_of(obj),)
        concerned = list(stretches(view, obj))
        for key in concerned:
            self._places.open_all(key)
        return (key_of(obj), *concerned)

    def _see(self, replica: Replica) -> None:
        places = self._reached.setdefault(replica.spec.workload_uid, {})
        before = places.get(replica.spec.ordinal, -1)
        places[replica.spec.ordinal] = max(before, replica.spec.incarnation)

    def all_keys(self, view: View) -> Iterable[Key]:
        workloads: list[Workload] = list(view.all("workloads"))
        # The last news of a replica may come after those of its workload's end.
        there = {it.metadata.uid for it in workloads}
        self._reached = {uid: seen for uid, seen in self._reached.items() if uid in there}
        self._places.open_everything()
        return [key for it in workloads for key in (key_of(it), *stretches(view, it))]

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> Plan:
        name, _, stretch = key[1].partition("/")
        workload: Workload | None = view.get("workloads", key[0], name)
        if workload is None:
            self._places.open_all(key)
            return Plan()
        is_dying = workload.metadata.deletion_timestamp is not None
        if not stretch:
            return Plan(tuple(self._let_go(view, workload))) if is_dying else Plan()
        if is_dying:
            return Plan(tuple(self._emptied(view, workload, key, term)))
        if workload.spec.type is not WorkloadType.SERVICE:
            return Plan()
        return self._served(view, workload, key, term, now)

    # Places --------------------------------------------------------------------------------------

    def _lives(self, view: View, workload: Workload, ordinal: int) -> list[Replica]:
        """The replicas at one place, the newest last."""
        named: list[Replica] = view.found(BY_PLACE, place(workload, ordinal))
        lives = [it for it in named if _is_of(it, workload)]
        for replica in lives:
            self._see(replica)
        return sorted(lives, key=lambda it: it.spec.incarnation)

    # A service that is wanted --------------------------------------------------------------------

    def _served(self, view: View, workload: Workload, key: Key, term: Term, now: Instant) -> Plan:
        wanted = workload.spec.replicas
        opened = self._places.opened(key, wanted)
        requests: list[Any] = []
        wake_ms: int | None = None
        for ordinal in list(opened):
            if len(requests) > REQUESTS_PER_PLAN_MAX:
                break
            lives = self._lives(view, workload, ordinal)
            asked = list(self._stops(lives, ordinal < wanted, term)) if lives else []
            wait_ms = 0
            if ordinal < wanted and all(vacates(it) for it in lives):
                wait_ms = max(0, replaced_at_ms(lives[-1]) - now.wall_ms) if lives else 0
                if wait_ms:
                    wake_ms = sooner(wake_ms, wait_ms)
                else:
                    asked.append(self._birth(workload, ordinal, lives, term))
            requests += asked
            if not asked and not wait_ms:
                del opened[ordinal]
        return Plan(tuple(requests), wake_after_ms=wake_ms)

    def _stops(self, lives: list[Replica], is_wanted: bool, term: Term) -> Iterator[Any]:
        """Stop what is too much at one place, and clear away what was released there."""
        alive = [it for it in lives if it.status.state in _FURTHER]
        keep = max(alive, key=_worth, default=None) if is_wanted else None
        newest = lives[-1].spec.incarnation
        for replica in lives:
            if replica.status.state is State.RELEASED:
                if not is_wanted or replica.spec.incarnation < newest:
                    yield self._removal(replica)
            elif replica is not keep or replica.metadata.deletion_timestamp is not None:
                yield from self._stop(replica, Cause.SCALE_DOWN, term)

    def _birth(self, workload: Workload, ordinal: int, lives: list[Replica], term: Term) -> Create:
        incarnation = self._reached.get(workload.metadata.uid, {}).get(ordinal, -1) + 1
        template = workload.spec.template
        spec = ReplicaSpec(
            workload=workload.name,
            workload_uid=workload.metadata.uid,
            ordinal=ordinal,
            incarnation=incarnation,
            revision=revision_of(template),
            gang=workload.name if workload.spec.gang is not None else "",
            template=template,
        )
        annotations = dict(template.metadata.annotations)
        count = endings(lives[-1]) if lives else 0
        if count:
            annotations[ENDINGS_ANNOTATION] = str(count)
        name = replica_name(workload.name, ordinal, incarnation)
        metadata = ObjectMeta(name=name, namespace=workload.namespace, annotations=annotations)
        intent = f"create-{ordinal}-{incarnation}-in-{term.epoch}"
        return Create(
            Replica(metadata, spec=spec),
            operation=operation(
                self.identity, workload.metadata.uid, workload.metadata.generation, intent
            ),
        )

    # What is not wanted --------------------------------------------------------------------------

    def _emptied(self, view: View, workload: Workload, key: Key, term: Term) -> Iterator[Any]:
        """Stop and clear away all replicas of a stretch."""
        opened = self._places.opened(key, 0)
        count = 0
        for ordinal in list(opened):
            if count > REQUESTS_PER_PLAN_MAX:
                return
            asked = [
                request
                for replica in self._lives(view, workload, ordinal)
                for request in self._ended(replica, term)
            ]
            yield from asked
            count += len(asked)
            if not asked:
                del opened[ordinal]

    def _let_go(self, view: View, workload: Workload) -> Iterator[Update]:
        """Let go of a workload that has no replica any more.

        That none is left is proven by the ledger in that transaction, not by this picture.
        """
        metadata = workload.metadata
        named = f"{metadata.namespace}/{metadata.name}"
        is_left = view.has(BY_WORKLOAD, named, lambda it: _is_of(it, workload))
        if is_left or REPLICAS_FINALIZER not in metadata.finalizers:
            return
        rest = tuple(it for it in metadata.finalizers if it != REPLICAS_FINALIZER)
        emptied = msgspec.structs.replace(metadata, finalizers=rest)
        yield Update(
            msgspec.structs.replace(workload, metadata=emptied),
            operation=operation(self.identity, metadata.uid, metadata.resource_version, "let-go"),
        )

    def _ended(self, replica: Replica, term: Term) -> Iterator[Any]:
        if replica.status.state is State.RELEASED:
            yield self._removal(replica)
        else:
            yield from self._stop(replica, Cause.DELETED, term)

    def _stop(self, replica: Replica, cause: Cause, term: Term) -> Iterator[Any]:
        """Move it towards its release, if that is ours to do in its state."""
        match replica.status.state:
            case State.PENDING | State.RESERVED:
                yield Move(
                    target(replica),
                    State.RELEASED,
                    cause.value,
                    f"workload {replica.spec.workload}",
                    term=term,
                    operation=step_id(self.identity, replica, f"release-{cause.value}"),
                )
            case State.BOUND | State.RUNNING:
                yield Evict(
                    target(replica),
                    cause,
                    f"workload {replica.spec.workload}",
                    term,
                    step_id(self.identity, replica, f"stop-{cause.value}"),
                )

    def _removal(self, replica: Replica) -> Remove:
        return Remove(
            "replicas",
            replica.namespace,
            replica.name,
            replica.metadata.uid,
            operation=step_id(self.identity, replica, "remove"),
        )


def _worth(replica: Replica) -> tuple[bool, int, int]:
    """Which of several at one place to keep: one that is not leaving, then the furthest."""
    doomed = replica.metadata.deletion_timestamp is not None
    return not doomed, _FURTHER.index(replica.status.state), replica.spec.incarnation
