"""Events as controllers write them: one object for all that is alike, with a count.

The name of an event follows from what happened to whom, so that telling it twice tells it once.
`controller:events` tells what objects say of themselves; a controller that takes something away
tells that by itself, with `EventRecorder`, since the object cannot any more. Messages are made of what
is on the objects anyway: names, reasons and evidence, never what is in a Secret or an environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from holdfast.correct.controller import operation
from holdfast.model.kinds.event import Event, EventSource, EventType, ObjectReference
from holdfast.model.meta import API_VERSION, Object, ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of
from holdfast.model.requests import Accepted, Create
from holdfast.model.validation.records import MESSAGE_MAX

# Up to which of an object's own counts it was told: a transition's number, or a moment.
TOLD_ANNOTATION = "holdfast.dev/told"
# What is kept to be told when there is a way; the oldest is let go first.
TELLINGS_MAX = 256
TELLINGS_PER_PLAN_MAX = 32
_NAME_MAX = 200


def namespace_of(obj: Object) -> str:
    """Where its events lie: with it, or with the system's if it belongs to the whole cluster."""
    return obj.namespace or SYSTEM_NAMESPACE


def event_name(obj: Object, component: str, reason: str) -> str:
    """The one name of all that is alike."""
    told = f"{obj.metadata.uid}/{component}/{reason}"
    return f"{obj.name[:_NAME_MAX]}.{hashlib.blake2b(told.encode(), digest_size=6).hexdigest()}"


def sentence(text: str) -> str:
    """A message as an event may have it: of one line or several, and not too long."""
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
    """The event that something happened to an object."""
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


class EventRecorder:
    """What a controller has done and has yet to tell, each once."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._events: dict[str, Event] = {}

    def add(self, event: Event) -> None:
        """Have it told. If too much waits, the oldest is not told any more."""
        self._events[event.name] = event
        while len(self._events) > TELLINGS_MAX:
            del self._events[next(iter(self._events))]

    def requests(self) -> Iterable[Create]:
        """What tells them, a few at a time."""
        for event in list(self._events.values())[:TELLINGS_PER_PLAN_MAX]:
            uid = event.involved_object.uid
            yield Create(event, operation=operation(self._identity, uid, "told", event.reason))

    def answered(self, request: Any, answer: Any) -> None:
        """It was told, or may not be. Whatever else became of it, it is tried again."""
        if not isinstance(request, Create) or not isinstance(request.object, Event):
            return
        if isinstance(answer, Accepted | Refusal):
            self._events.pop(request.object.name, None)

    @property
    def is_left(self) -> bool:
        return bool(self._events)
