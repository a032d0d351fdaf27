"""controller:events: records what happens as events that kubectl shows.

It owns the events with its name as component. It derives them from the status of objects
(`event_sources.py`), so that it records them also after it was down for a while. Repeated
occurrences are one event with a count, and the event itself stores how far it has counted, so that
nothing is counted twice and nothing depends on the controller's memory. Once a minute it also scans
for what is overdue (`overdue.py`).

Events have low priority: at most a few per second, most of them warnings. What is older than ten
minutes is not recorded, and a tenant with a thousand events gets no new one. controller:garbage
removes events after an hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    Controller,
    ReconcilePlan,
)
from holdfast.correct.events.event_recorder import (
    TOLD_ANNOTATION,
    event_name,
    event_of,
    namespace_of,
    sentence,
)
from holdfast.correct.events.event_sources import (
    PHASES,
    Occurrence,
    of_node,
    of_replica,
    of_workload,
    step_reason,
)
from holdfast.correct.events.overdue import Scans, is_overdue_soon
from holdfast.correct.garbage.event_retention import EVENTS_PER_TENANT_MAX, TELL_WITHIN_MS, last_ms
from holdfast.correct.pacing import RateLimiter
from holdfast.correct.remembered import Notes, Remembered, uids_of
from holdfast.model.kinds.event import Event, EventType
from holdfast.model.kinds.node import GONE, Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of
from holdfast.model.requests import Create, Request, Term, Update
from holdfast.model.time import Instant, timestamp
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

TELLER = "controller:events"
EVENTS_PER_S, EVENTS_BURST = 10, 60
# The part of a burst that is kept for warnings.
WARNINGS_BURST = 30
PACED_PAUSE_MS = 1_000
COUNT_MAX = 1_000_000


def _uid_of(event: Event) -> Iterable[str]:
    return (event.involved_object.uid,)


BY_UID = Index("events", "uid", _uid_of)


class EventCounts(Remembered):
    """The number of events per namespace, as of the last resync and the changes since."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def begin_term(self) -> None:
        self._counts.clear()

    def resync(self, view: Snapshot) -> None:
        self._counts.clear()
        for event in view.all("events"):
            self.add(event, 1)

    def add(self, event: Event, more: int) -> None:
        """Count an event that came, or went."""
        self._counts[event.namespace] = self.of(event.namespace) + more

    def of(self, namespace: str) -> int:
        """The number of events of a namespace."""
        return self._counts.get(namespace, 0)


class EventsController(Controller):
    """See the module's docstring."""

    actor = Actor.EVENTS
    follows = ("replicas", "workloads", "nodes", "events")
    indexes = (BY_UID, BY_NODE)

    def __init__(self) -> None:
        self._pace = RateLimiter(EVENTS_PER_S, EVENTS_BURST)
        self._counts = EventCounts()
        # The last recorded phase of each node, by uid: its event may be removed by now.
        self._phases: Notes[str, str] = Notes(uids_of("nodes"))
        self._scans = Scans()
        self.remembers = (self._pace, self._counts, self._phases, self._scans.behind_ms)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """Only changes that lead to an event: most changes of an object do not."""
        obj: Any = change.object
        if isinstance(obj, Event):
            return self._count(obj, change)
        before: Any = change.before
        if change.after is None:
            self._phases.pop(obj.metadata.uid, None)
            return ()
        if not _is_relevant(before, obj):
            return ()
        # On a node that is given up, some work waits for an operator's confirmation.
        is_given_up = isinstance(obj, Node) and obj.status.phase in GONE
        work = view.found(BY_NODE, obj.name) if is_given_up else ()
        return [_key(it) for it in (obj, *work)]

    def _count(self, event: Event, change: ObjectChange) -> Iterable[Key]:
        self._counts.add(event, int(change.before is None) - int(change.after is None))
        if event.source.component != TELLER or change.after is None:
            return ()
        about = event.involved_object
        return ((about.namespace, f"{about.kind.lower()}s/{about.name}"),)

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        """All objects with a warning, or that may be overdue. The rest is recorded on change."""
        replicas = (it for it in view.all("replicas") if _warns(it) or is_overdue_soon(it))
        nodes = (it for it in view.all("nodes") if it.status.phase is not NodePhase.READY)
        return [_key(it) for them in (replicas, view.all("workloads"), nodes) for it in them]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        plural, _, name = key[1].partition("/")
        obj: Any = view.get(plural, key[0], name)
        if obj is None:
            return ReconcilePlan()
        if self._is_not_worth_it(obj, now):
            return ReconcilePlan()
        since = timestamp(now.wall_ms - TELL_WITHIN_MS)
        match obj:
            case Replica():
                happened = of_replica(obj, since)
            case Workload():
                happened = of_workload(obj, since)
            case Node():
                happened = self._phase(view, obj)
        requests: list[Request] = []
        for it in (*happened, *self._scans.of(view, obj, now)):
            event: Event | None = view.get(
                "events", namespace_of(obj), event_name(obj, TELLER, it.reason)
            )
            fresh = it.since(event.metadata.annotations.get(TOLD_ANNOTATION, "") if event else "")
            if not fresh or not self._has_room(obj, event):
                continue
            if not self._pace.takes(now, 0 if it.warns else WARNINGS_BURST):
                # A warning is worth a later try; a normal event is not.
                return ReconcilePlan(
                    tuple(requests), wake_after_ms=PACED_PAUSE_MS if it.warns else None
                )
            requests.append(_record(obj, event, it, fresh, now))
        return ReconcilePlan(tuple(requests))

    def _is_not_worth_it(self, obj: Object, now: Instant) -> bool:
        """Whether the object has no warnings, and the rate limit has no room for normal events.

        Thousands of replicas may start within a second.
        """
        if not isinstance(obj, Replica) or _warns(obj) or is_overdue_soon(obj):
            return False
        return not self._pace.has(now, WARNINGS_BURST)

    def _has_room(self, obj: Object, event: Event | None) -> bool:
        """Whether its tenant may have one more event, if a new one is needed."""
        return event is not None or self._counts.of(namespace_of(obj)) < EVENTS_PER_TENANT_MAX

    def _phase(self, view: Snapshot, node: Node) -> Iterable[Occurrence]:
        """The phase of a node, if it differs from the last recorded one. A first Ready is none."""
        uid, reasons = node.metadata.uid, tuple(PHASES.values())
        recorded = [it for it in view.found(BY_UID, uid) if it.reason in reasons]
        at_ms = 0
        if recorded:
            newest = max(recorded, key=last_ms)
            self._phases[uid], at_ms = newest.reason, last_ms(newest)
        occurrence = of_node(node)
        if occurrence.reason == self._phases.get(uid, PHASES[NodePhase.READY]):
            return ()
        # A phase is recorded again each time that another phase was recorded before it.
        return (msgspec.structs.replace(occurrence, stamp=f"{occurrence.stamp}-after-{at_ms}"),)


def _key(obj: Object) -> Key:
    return obj.namespace, f"{kind_of(obj).plural}/{obj.name}"


def _is_relevant(before: Any, after: Any) -> bool:
    if isinstance(after, Replica):
        if before is None:
            return after.status.transition_number > 0 or after.status.pending is not None
        was, now = before.status, after.status
        same = (was.transition_number, was.pending) == (now.transition_number, now.pending)
        return not same
    if isinstance(after, Node):
        return before is None or before.status.phase is not after.status.phase
    return before is None or bool(before.status.conditions != after.status.conditions)


def _warns(replica: Replica) -> bool:
    status = replica.status
    return status.pending is not None or (
        bool(status.transitions) and step_reason(status.transitions[-1])[1]
    )


def _record(
    obj: Object, event: Event | None, it: Occurrence, fresh: int, now: Instant
) -> Create | Update:
    """Create the event, or increase its count. Its name or its version makes that happen once."""
    at = it.at if it.at is not None else timestamp(now.wall_ms)
    if event is None:
        return Create(
            event_of(
                obj,
                TELLER,
                it.reason,
                it.message,
                at,
                warns=it.warns,
                count=fresh,
                told=it.stored_text,
            )
        )
    annotations = {**event.metadata.annotations, TOLD_ANNOTATION: it.stored_text}
    return Update(
        msgspec.structs.replace(
            event,
            metadata=msgspec.structs.replace(event.metadata, annotations=annotations),
            type=EventType.WARNING if it.warns else EventType.NORMAL,
            message=sentence(it.message),
            last_timestamp=max(at, event.first_timestamp or at),
            count=min(event.count + fresh, COUNT_MAX),
        )
    )
