"""One controller in its team: its lease, its queue, and what of its plans is on its way.

A key whose plan is on its way is not looked at again before all answers are there, nor before the
picture shows what they brought about: a controller that decided on a picture without its own last
step would take that step again, or another one.
"""

from __future__ import annotations

import msgspec

from holdfast.correct.controller import Controller, View
from holdfast.model.errors import unreachable
from holdfast.model.machine import Rng
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of
from holdfast.model.requests import (
    Create,
    Evict,
    JudgeNode,
    Move,
    Patch,
    Remove,
    Term,
    Unreserve,
    Update,
)
from holdfast.model.time import Instant
from holdfast.model.versions import object_revision
from holdfast.observe.cache import Key
from holdfast.observe.news import Get
from holdfast.observe.queue import Queue
from holdfast.observe.tenure import Tenure

# After taking office a controller looks on for so long, unless it knows that its picture holds all
# that its predecessor did.
LOOK_ON_MS = 2_000


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

    __slots__ = ("expected", "is_failed", "left", "look_again_ms")

    def __init__(self, left: int, look_again_ms: int | None) -> None:
        self.left, self.look_again_ms = left, look_again_ms
        self.is_failed = False
        self.expected: list[Expected] = []


class Member:
    """See the module's docstring."""

    def __init__(self, controller: Controller, rng: Rng, instance: str = "") -> None:
        self.controller = controller
        self.identity = controller.identity
        scope = f"controller:{controller.name}"
        self.tenure = Tenure(scope, self.identity, instance=instance)
        self.queue: Queue[Key] = Queue(rng)
        self.flights: dict[Key, Flight] = {}
        self.asked = 0
        # Whether the tenure waits for an answer, and which servers have yet to answer a question.
        self.is_leasing = False
        self.questioned: set[str] = set()
        self.listed_epoch = 0
        self.resync_at_ms = 0
        self._expected: dict[Key, list[Expected]] = {}
        self._office_ms = self._office_revision = 0

    def took_office(self, revision: int, now: Instant) -> None:
        """The lease was acquired at this revision."""
        self._office_ms, self._office_revision = now.monotonic_ms, revision

    def term(self, view: View, now: Instant) -> Term | None:
        """The term to act under, if it may act now."""
        if not self.tenure.is_acknowledged(now):
            return None
        if now.monotonic_ms < self.acts_at_ms and view.revision < self._office_revision:
            return None
        return self.tenure.term

    @property
    def acts_at_ms(self) -> int:
        """From when it acts in its present office at the latest."""
        return self._office_ms + LOOK_ON_MS

    def is_behind(self, key: Key, view: View) -> bool:
        """Whether the picture lacks what this key's last plan brought about."""
        left = [it for it in self._expected.pop(key, ()) if not it.is_met(view)]
        if left:
            self._expected[key] = left
        return bool(left)

    def landed(self, key: Key, now: Instant) -> None:
        """One answer for this key's plan has come; give the key back after the last one."""
        flight = self.flights[key]
        flight.left -= 1
        if flight.left:
            return
        del self.flights[key]
        if flight.expected:
            self._expected[key] = flight.expected
        if flight.is_failed:
            self.queue.failed(key, now.monotonic_ms)
            return
        self.queue.done(key)
        if flight.look_again_ms is not None:
            self.queue.add(key, flight.look_again_ms)


def subject(request: object) -> Get:
    """The question for the one object that a request changes."""
    match request:
        case Move(target=target) | Evict(target=target) | Unreserve(target=target):
            return Get("replicas", target.name, target.namespace)
        case JudgeNode(node=node):
            return Get("nodes", node)
        case Create(object=obj) | Update(object=obj):
            return Get(kind_of(obj).plural, obj.name, obj.namespace)
    if not isinstance(request, Remove | Patch):
        unreachable(f"no controller sends {type(request).__name__}")
    return Get(request.plural, request.name, request.namespace)
