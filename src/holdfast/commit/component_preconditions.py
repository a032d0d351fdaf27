"""The precondition that every write of a component must state.

A person may ask for something whatever the state of the plane is. A component acts on a view that
may be stale, and its request may arrive much later than it was sent, or twice: a server was paused,
or an answer was lost. So every write of a component names something that its own success, or that
of its successor, changes: the epoch of its lease, the version or the uid of the object that it saw,
or an operation that is remembered for longer than a request is in flight. Handlers check this after
authorization; requests with a target or a term are held to that by their own rules.
"""

from __future__ import annotations

from typing import Any, assert_never

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.leases import term_refusal
from holdfast.commit.objects.preconditions import states_a_version
from holdfast.model import requests as ask
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal

# These need no term: people have no lease, an agent acts for its own node, and a server decides
# under the compares of its own requests.
_TERMLESS = frozenset({Actor.USER, Actor.OPERATOR, Actor.AGENT, Actor.AUTHORITY})
_PEOPLE = frozenset({Actor.USER, Actor.OPERATOR})
# The requests that both people and components make, and those that change nothing that they name:
# a stage, a reason for waiting, capacity that is held. Only their handlers ask here.
GroundedRequest = (
    ask.Create
    | ask.Update
    | ask.Patch
    | ask.Remove
    | ask.ReportStage
    | ask.ReportPending
    | ask.HoldCapacity
)
# A JSON patch that tests or replaces this path has it compared.
_OPERATION = "operation"
_VERSION = "resourceVersion"
_UID = "uid"
# The field of each precondition, and how a component gets its value.
_PRECONDITIONS = {
    _OPERATION: ("operation", "state a unique id for this operation, the same for each retry"),
    _VERSION: ("metadata.resourceVersion", "read the object and state the version that was read"),
    _UID: ("preconditions.uid", "read the object and state its uid"),
}
_VERSION_PATH = "/metadata/resourceVersion"


def grounds_refusal(draft: Draft, context: Context, request: GroundedRequest) -> Refusal | None:
    """Refuse a component's request without a precondition, or with one that no longer holds."""
    if not _PEOPLE.isdisjoint(context.actors()):
        return None
    missing = _missing(request)
    if missing == _OPERATION and context.is_actor(Actor.AUTHORITY):
        # Servers create only built-in objects, which no other client deletes.
        missing = ""
    if missing:
        return _missing_refusal(context, missing)
    if not _TERMLESS.isdisjoint(context.actors()):
        return None
    if _is_status(request) and request.term is None:
        # A third-party operator holds no lease of ours. It states the version that it saw, which
        # its own success changes, and so does that of any other writer.
        return None
    return term_refusal(draft, context, request.term)


def unversioned_refusal(context: Context, given: ObjectMeta) -> Refusal | None:
    """Refuse a component's patch whose result states no version after all.

    A JSON patch may name the version in order to remove it, or replace all of the metadata.
    """
    if not _PEOPLE.isdisjoint(context.actors()) or states_a_version(given):
        return None
    return _missing_refusal(context, _VERSION)


def _missing_refusal(context: Context, missing: str) -> Refusal:
    field, what_to_do = _PRECONDITIONS[missing]
    return Refusal(
        Reason.INVALID,
        f"{field}: required in requests of components such as {context.identity.name}: "
        f"{what_to_do}",
        {"field": field},
    )


def _is_status(request: GroundedRequest) -> bool:
    return isinstance(request, ask.Update | ask.Patch) and request.subresource == "status"


def _missing(request: GroundedRequest) -> str:
    """The precondition that a component's request lacks."""
    match request:
        case ask.Update(object=obj):
            needed, is_stated = _VERSION, states_a_version(obj.metadata)
        case ask.Patch(body=body):
            needed, is_stated = _VERSION, states_version(body)
        case ask.Remove(uid=uid):
            needed, is_stated = _UID, bool(uid)
        case ask.HoldCapacity(operation=operation):
            needed, is_stated = _OPERATION, bool(operation)
        case ask.Create(object=obj, operation=operation):
            needed, is_stated = _OPERATION, bool(operation) or isinstance(obj, Replica)
        case ask.ReportStage(version=version) | ask.ReportPending(version=version):
            needed, is_stated = _VERSION, bool(version)
        case _:
            assert_never(request)
    return "" if is_stated else needed


def states_version(body: Any) -> bool:
    """Whether a patch names the version of its object. "0" means any, as in Kubernetes."""
    if isinstance(body, list):
        return any(
            isinstance(it, dict)
            and it.get("path") == _VERSION_PATH
            and _is_version(it.get("value"))
            for it in body
        )
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return isinstance(metadata, dict) and _is_version(metadata.get("resourceVersion"))


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and states_a_version(ObjectMeta(resource_version=value))
