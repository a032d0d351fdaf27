"""Events as controllers write them: one object with a count for repeated occurrences.

The name of an event follows from its object, component and reason, so that recording it twice
records it once. controller:events records what the status of objects shows; a controller that
removes an object records that itself, with `EventRecorder`. Messages contain only what is on the
objects anyway: names, reasons and evidence, never the contents of a Secret or an environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

from holdfast.correct.controller import operation
from holdfast.correct.remembered import Remembered
from holdfast.model.kinds.event import Event, EventSource, EventType, ObjectReference
from holdfast.model.machine import Question, Reply
from holdfast.model.meta import API_VERSION, Object, ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of
from holdfast.model.requests import Accepted, Create
from holdfast.model.validation.records import MESSAGE_MAX
from holdfast.observe.snapshot import Snapshot

# How far an event has counted: the number of a transition of the object, or a timestamp.
TOLD_ANNOTATION = "holdfast.dev/told"
# Events that wait to be written; beyond this the oldest are dropped.
PENDING_EVENTS_MAX = 256
EVENTS_PER_PLAN_MAX = 32
_NAME_MAX = 200


def namespace_of(obj: Object) -> str:
    """The namespace of its events: its own, or the system's for cluster-wide objects."""
    return obj.namespace or SYSTEM_NAMESPACE


def event_name(obj: Object, component: str, reason: str) -> str:
    """The name of the event: the same for all repetitions."""
    what = f"{obj.metadata.uid}/{component}/{reason}"
    return f"{obj.name[:_NAME_MAX]}.{hashlib.blake2b(what.encode(), digest_size=6).hexdigest()}"


def sentence(text: str) -> str:
    """A message for an event: printable, and not too long."""
    clean = "".join(it if it.isprintable() or it == "\n" else "?" for it in text)
    return clean if len(clean) <= MESSAGE_MAX else f"{clean[: MESSAGE_MAX - 3]}..."


def event_of(
    obj: Object,
    component: str,
    reason: str,
    message: str,
    at: datetime,
    *,
    warns: bool,
    count: int = 1,
    told: str = "",
) -> Event:
    """The event for an occurrence at an object."""
    about = ObjectReference(
        api_version=API_VERSION,
        kind=kind_of(obj).name,
        namespace=obj.namespace,
        name=obj.name,
        uid=obj.metadata.uid,
    )
    metadata = ObjectMeta(
        name=event_name(obj, component, reason),
        namespace=namespace_of(obj),
        annotations={TOLD_ANNOTATION: told} if told else {},
    )
    return Event(
        metadata=metadata,
        involved_object=about,
        type=EventType.WARNING if warns else EventType.NORMAL,
        reason=reason,
        message=sentence(message),
        source=EventSource(component=component),
        first_timestamp=at,
        last_timestamp=at,
        count=count,
        reporting_component=component,
    )


class EventRecorder(Remembered):
    """The events that a controller has yet to write, each once. They happened, so they outlast its
    term: the operation id lets only one of two copies take effect.
    """

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._events: dict[str, Event] = {}

    def begin_term(self) -> None:
        """What happened in the last term is still to be written."""

    def resync(self, view: Snapshot) -> None:
        """It does not depend on the view."""

    def add(self, event: Event) -> None:
        """Queue an event. If too many wait, the oldest is dropped."""
        self._events[event.name] = event
        while len(self._events) > PENDING_EVENTS_MAX:
            del self._events[next(iter(self._events))]

    def requests(self) -> Iterable[Create]:
        """The requests that write the events, a few at a time."""
        for event in list(self._events.values())[:EVENTS_PER_PLAN_MAX]:
            uid = event.involved_object.uid
            yield Create(event, operation=operation(self._identity, uid, "told", event.reason))

    def answered(self, request: Question, answer: Reply) -> None:
        """Drop an event that was accepted or refused. After any other answer it is tried again."""
        if not isinstance(request, Create) or not isinstance(request.object, Event):
            return
        if isinstance(answer, Accepted | Refusal):
            self._events.pop(request.object.name, None)

    @property
    def is_left(self) -> bool:
        return bool(self._events)
