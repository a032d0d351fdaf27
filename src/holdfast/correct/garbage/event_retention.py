"""How long events are kept: an hour since they last happened, and a maximum per tenant.

Part of controller:garbage. An event that is removed because there are too many is always too old to
be recorded again; controller:events stops at the same number.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.controller import (
    ReconcilePlan,
)
from holdfast.correct.pacing import MonotonicWaits
from holdfast.correct.remembered import Notes
from holdfast.model.kinds.event import EVENT_RETENTION, Event
from holdfast.model.requests import Remove
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

EVENTS = "events"
EVENT_KEPT_MS = EVENT_RETENTION.kept_ms
EVENTS_PER_TENANT_MAX = EVENT_RETENTION.per_tenant_max
# What is older than this is not recorded, so older events are safe to remove.
TELL_WITHIN_MS = 600_000
REMOVALS_PER_PLAN_MAX = 64
# New events do not cause a scan of all the others more often than this.
REST_MS = 30_000


def _namespace(event: Event) -> Iterable[str]:
    return (event.namespace,)


BY_NAMESPACE = Index(EVENTS, "namespace", _namespace)


def last_ms(event: Event) -> int:
    """When it last happened, by the authority's clock."""
    at = event.last_timestamp or event.metadata.creation_timestamp
    return wall_ms(at) if at is not None else 0


class EventsByAge:
    """See the module's docstring."""

    indexes = (BY_NAMESPACE,)

    def __init__(self, waits: MonotonicWaits) -> None:
        self._waits = waits
        # Until when a namespace without old events is not scanned, or until the next resync.
        self.rests_ms: Notes[str, int] = Notes()

    def reconcile(self, view: Snapshot, namespace: str, now: Instant) -> ReconcilePlan:
        """Remove the expired events of a namespace."""
        rest_ms = self.rests_ms.get(namespace, 0) - now.monotonic_ms
        if rest_ms > 0:
            return ReconcilePlan(wake_after_ms=rest_ms)
        events: list[Event] = sorted(view.found(BY_NAMESPACE, namespace), key=last_ms)
        if not events:
            self.rests_ms.pop(namespace, None)
            return ReconcilePlan()
        surplus = len(events) - EVENTS_PER_TENANT_MAX
        old = [
            event
            for place, event in enumerate(events)
            if self._age_ms(event, now) >= (TELL_WITHIN_MS if place < surplus else EVENT_KEPT_MS)
        ]
        if old:
            return ReconcilePlan(tuple(_removal(it) for it in old[:REMOVALS_PER_PLAN_MAX]))
        self.rests_ms[namespace] = now.monotonic_ms + REST_MS
        kept_ms = TELL_WITHIN_MS if surplus > 0 else EVENT_KEPT_MS
        oldest_ms = max(self._age_ms(event, now) for event in events)
        return ReconcilePlan(wake_after_ms=max(REST_MS, kept_ms - oldest_ms + 1))

    def _age_ms(self, event: Event, now: Instant) -> int:
        """How long ago it last happened, at most the time for which an event is kept."""
        uid, since = event.metadata.uid, timestamp(last_ms(event))
        left_ms = self._waits.left_ms(uid, EVENTS, since, EVENT_KEPT_MS, now, credit=True)
        return EVENT_KEPT_MS - left_ms


def _removal(event: Event) -> Remove:
    """Remove this version only: an event that has happened again is young."""
    it = event.metadata
    return Remove(EVENTS, it.namespace, it.name, it.uid, it.resource_version)
