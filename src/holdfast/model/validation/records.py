"""Validates events, decisions and endpoints, which components write for users and programs."""

from __future__ import annotations

from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import in_order

# The limit of an event's message in Kubernetes.
MESSAGE_MAX = 1024
CANDIDATES_MAX = 64
# Per object: about 150 bytes each, and every change rewrites the whole object.
ENDPOINTS_MAX = 1_000


def event(obj: Event, at: FieldPath) -> None:
    about, place = obj.involved_object, at["involvedObject"]
    text.word(place["kind"], about.kind)
    names.dotted_name(place["name"], about.name)
    # Cluster-scoped objects have no namespace, but their events must be in one.
    if about.namespace and about.namespace != obj.namespace:
        place["namespace"].wrong(about.namespace, "must be the event's own namespace, or empty")
    text.word(at["reason"], obj.reason)
    text.sentence(at["message"], obj.message, lines=True, limit=MESSAGE_MAX)
    text.sentence(at["action"], obj.action, limit=128)
    for field, component in (
        ("reportingComponent", obj.reporting_component),
        ("source.component", obj.source.component),
        ("source.host", obj.source.host),
    ):
        if component:
            text.token(at[field], component)
    if obj.count == 0:
        at["count"].wrong(0, "must be at least 1")
    in_order(at["lastTimestamp"], obj.first_timestamp, obj.last_timestamp, "firstTimestamp")


def event_update(old: Event, new: Event, at: FieldPath) -> None:
    """An event's count only grows, and its object never changes."""
    if new.involved_object.uid != old.involved_object.uid:
        at["involvedObject"]["uid"].wrong(new.involved_object.uid, "cannot be changed")
    if new.count < old.count:
        at["count"].wrong(new.count, f"must not fall below {old.count}")


def decision(obj: Decision, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    names.name(at["replica"], spec.replica)
    for reason, nodes in spec.filtered.items():
        if not 0 <= nodes <= spec.nodes:
            at["filtered"].entry(reason).wrong(nodes, f"must be from 0 to nodes, here {spec.nodes}")
    if names.at_most(at["best"], spec.best, CANDIDATES_MAX):
        for index, candidate in enumerate(spec.best):
            names.dotted_name(at["best"][index]["node"], candidate.node)
        names.unique(at["best"], [candidate.node for candidate in spec.best], "node")
    if spec.chosen:
        names.dotted_name(at["chosen"], spec.chosen)
    elif spec.result == "Accepted":
        at["chosen"].wrong(None, "must be given where the result is Accepted")
    text.sentence(at["message"], spec.message, lines=True, limit=MESSAGE_MAX)
    in_order(at["decidedAt"], spec.queued_at, spec.decided_at, "queuedAt")


def endpoints(obj: Endpoints, at: FieldPath) -> None:
    at = at["endpoints"]
    if not names.at_most(at, obj.endpoints, ENDPOINTS_MAX):
        return
    for index, entry in enumerate(obj.endpoints):
        names.name(at[index]["replica"], entry.replica)
        if entry.node:
            names.dotted_name(at[index]["node"], entry.node)
        names.optional_name(at[index]["zone"], entry.zone)
        for port, address in entry.ports.items():
            text.host_port(at[index]["ports"].entry(port), address)
    names.unique(at, [entry.replica for entry in obj.endpoints], "replica")
