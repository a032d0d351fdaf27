"""How long events are kept: an hour since they last happened, and so many for a tenant.

Part of controller:garbage. What goes because there are too many is never so young that whoever
told it would tell it again; who writes events stops at the same number (`events.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.controller import Index, ReconcilePlan, View
from holdfast.correct.pacing import MonotonicWaits
from holdfast.model.kinds.event import Event
from holdfast.model.requests import Remove
from holdfast.model.time import Instant, timestamp, wall_ms

EVENTS = "events"
EVENT_KEPT_MS = 3_600_000
EVENTS_PER_TENANT_MAX = 1_000
# Something older than this is not told any more, so what is older is safe to forget.
TELL_WITHIN_MS = 600_000
REMOVALS_PER_PLAN_MAX = 64
# New events do not have all the others looked at more often than this.
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
        # Until when a namespace rests that has nothing old in it.
        self._rests_ms: dict[str, int] = {}

    def aged(self, view: View, namespace: str, now: Instant) -> ReconcilePlan:
        """Remove the events of a namespace whose time is over."""
        rest_ms = self._rests_ms.get(namespace, 0) - now.monotonic_ms
        if rest_ms > 0:
            return ReconcilePlan(wake_after_ms=rest_ms)
        events: list[Event] = sorted(view.found(BY_NAMESPACE, namespace), key=last_ms)
        if not events:
            self._rests_ms.pop(namespace, None)
            return ReconcilePlan()
        surplus = len(events) - EVENTS_PER_TENANT_MAX
        old = [
            event
            for place, event in enumerate(events)
            if self._age_ms(event, now) >= (TELL_WITHIN_MS if place < surplus else EVENT_KEPT_MS)
        ]
        if old:
            return ReconcilePlan(tuple(_removal(it) for it in old[:REMOVALS_PER_PLAN_MAX]))
        self._rests_ms[namespace] = now.monotonic_ms + REST_MS
        kept_ms = TELL_WITHIN_MS if surplus > 0 else EVENT_KEPT_MS
        oldest_ms = max(self._age_ms(event, now) for event in events)
        return ReconcilePlan(wake_after_ms=max(REST_MS, kept_ms - oldest_ms + 1))

    def _age_ms(self, event: Event, now: Instant) -> int:
        """How long ago it last happened, and no more than an event is kept for."""
        uid, since = event.metadata.uid, timestamp(last_ms(event))
        left_ms = self._waits.left_ms(uid, EVENTS, since, EVENT_KEPT_MS, now, credit=True)
        return EVENT_KEPT_MS - left_ms


def _removal(event: Event) -> Remove:
    """It goes only as it was seen: one that has happened again is young."""
    it = event.metadata
    return Remove(EVENTS, it.namespace, it.name, it.uid, it.resource_version)
