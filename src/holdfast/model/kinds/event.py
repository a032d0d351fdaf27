"""Event: something that happened to an object, in the form that kubectl reads."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import SYSTEM, Kind, KindRules, Retention, Writers, count, text
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Count, Object, Part, Timestamp


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectReference(Part, frozen=True):
    """The object that it happened to.

    api_version: its API version.
    kind: its kind.
    namespace: its namespace.
    name: its name.
    uid: its uid.
    resource_version: its version at that moment.
    field_path: the part of it that is concerned.
    """

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Part, frozen=True):
    """The source of an event.

    component: the component.
    host: the node it runs on.
    """

    component: str = ""
    host: str = ""


class Event(Object, frozen=True, kw_only=True, tag="Event"):
    """Something that happened to an object. Repetitions increase the count.

    involved_object: the object that it happened to.
    type: Normal or Warning.
    reason: a stable CamelCase identifier.
    message: a sentence for users.
    source: the component that reports it.
    first_timestamp: when it was first seen.
    last_timestamp: when it was last seen.
    count: how often it happened.
    reporting_component: the component that reports it, in the newer field.
    action: what was done about it.
    """

    involved_object: ObjectReference
    type: EventType = EventType.NORMAL
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: Timestamp | None = None
    last_timestamp: Timestamp | None = None
    count: Count = 1
    reporting_component: str = ""
    action: str = ""


EVENT_RETENTION = Retention(3_600_000, "it last happened", per_tenant_max=1_000)


def _event_rules() -> KindRules:
    from holdfast.model.validation import records

    return KindRules(records.event, update=records.event_update)


EVENT_KIND = Kind(
    Event,
    "events",
    rules=_event_rules,
    retention=EVENT_RETENTION,
    writers=Writers(spec=(*SYSTEM, Actor.OPERATOR)),
    columns=(
        text("Type", lambda o: o.type.value, "Normal or Warning"),
        text("Reason", lambda o: o.reason, "one stable word"),
        text(
            "Object",
            lambda o: f"{o.involved_object.kind.lower()}/{o.involved_object.name}",
            "what it happened to",
        ),
        text("Message", lambda o: o.message, "a sentence"),
        count("Count", lambda o: o.count, "how often"),
    ),
    short_names=("ev",),
    dotted=True,
    status=False,
    removal_order=10,
)
