"""A plan on its way, and when the picture has caught up with what came of it.

A request names one object. What became of it is known from its answer or, when that is lost, from
a read of that object; and the picture has caught up once it shows the object so, or its end.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.correct.controller import View
from holdfast.model.errors import unreachable
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of
from holdfast.model.requests import (
    Accepted,
    Create,
    DropReservation,
    Evict,
    HoldCapacity,
    JudgeNode,
    Move,
    Patch,
    Remove,
    ReportStage,
    Unreserve,
    Update,
)
from holdfast.model.versions import object_revision
from holdfast.observe.news import Found, Get


class Expected(msgspec.Struct, frozen=True, gc=False):
    """The picture has to show this object as of this revision before its key is looked at.

    `may_be_gone` says that the object was known, or known not to be there: a picture without it has
    then caught up. One without an object that was just made has not.
    """

    plural: str
    namespace: str
    name: str
    revision: int
    may_be_gone: bool

    def is_met(self, view: View) -> bool:
        """Whether it shows it, or has been told whole past that revision."""
        if view.revision >= self.revision:
            return True
        found: Object | None = view.get(self.plural, self.namespace, self.name)
        if found is None:
            return self.may_be_gone
        return object_revision(found.metadata.resource_version) >= self.revision


class Flight:
    """A plan on its way: how many answers are missing, and what came of the others."""

    __slots__ = ("expected", "is_failed", "left", "look_again_ms", "since_ms")

    def __init__(self, left: int, look_again_ms: int | None, since_ms: int = 0) -> None:
        self.left, self.look_again_ms, self.since_ms = left, look_again_ms, since_ms
        self.is_failed = False
        self.expected: list[Expected] = []


def subject(request: Any) -> Get:
    """The question for the one object that a request changes."""
    match request:
        case (
            Move(target=target)
            | Evict(target=target)
            | ReportStage(target=target)
            | Unreserve(target=target)
        ):
            return Get("replicas", target.name, target.namespace)
        case JudgeNode(node=node):
            return Get("nodes", node)
        case HoldCapacity(namespace=namespace, owner=owner, intent=intent):
            return Get("reservations", f"{owner.name}-{intent.value}", namespace)
        case DropReservation(namespace=namespace, reservation=reservation):
            return Get("reservations", reservation, namespace)
        case Create(object=obj) | Update(object=obj):
            return Get(kind_of(obj).plural, obj.name, obj.namespace)
    if not isinstance(request, Remove | Patch):
        unreachable(f"no controller sends {type(request).__name__}")
    return Get(request.plural, request.name, request.namespace)


def after_writing(request: Any, answer: Accepted) -> list[Expected]:
    """What an accepted request lets us expect to see."""
    it = subject(request)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    if not may_be_gone and not answer.objects:
        # A server need not repeat an object that is new: it is as it was asked for, since then.
        return [Expected(it.plural, it.namespace, it.name, answer.revision, may_be_gone)]
    return [
        Expected(it.plural, it.namespace, it.name, object_revision(version), may_be_gone)
        for obj in answer.objects
        if (obj.namespace, obj.name) == (it.namespace, it.name)
        and (version := obj.metadata.resource_version)
    ]


def after_reading(request: Any, found: Found) -> Expected:
    """What a read after a request without an answer lets us expect to see."""
    it, obj = subject(request), found.object
    if obj is None:
        return Expected(it.plural, it.namespace, it.name, found.revision, may_be_gone=True)
    since = object_revision(obj.metadata.resource_version)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    return Expected(it.plural, it.namespace, it.name, since, may_be_gone)
