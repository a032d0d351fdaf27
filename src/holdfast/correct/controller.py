"""What a controller is: a key and a picture come in, a plan comes out.

Each controller owns some transitions and fields and is one file; `registry.py` lists them all and
`team.py` runs them. A reconcile sees a key, never the event that woke it. It is pure but for what
the controller remembers of its own clock, and says the same thing again when nothing has changed.
What it asks for is sent under its own identity and decided by the authority, so being wrong costs
one refusal.

The requests of one plan are sent together: each must make sense whichever others take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from holdfast.model.access.identity import controller
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import Object
from holdfast.model.requests import Target, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache, IndexFunction, Key, ObjectChange

# So many requests of one plan are sent at once. A plan that has more is made anew after that, so
# whoever makes plans may stop at one more than this.
REQUESTS_PER_PLAN_MAX = 512


class Index(msgspec.Struct, frozen=True):
    """Objects of a kind by what `of` says of each; indexes of one name are the same index."""

    plural: str
    name: str
    of: IndexFunction


def _workload_of(replica: Replica) -> Iterable[str]:
    return (f"{replica.namespace}/{replica.spec.workload}",)


def _node_of(replica: Replica) -> Iterable[str]:
    binding = replica.status.binding
    return (binding.node,) if binding is not None else ()


BY_WORKLOAD = Index("replicas", "workload", _workload_of)
BY_NODE = Index("replicas", "node", _node_of)


class View:
    """The team's picture of the plane, with its revision and its age. It may be old."""

    def __init__(self, cache: Cache, now: Instant) -> None:
        self._cache, self._now = cache, now

    @property
    def revision(self) -> int:
        """Everything up to this revision has been told, of every kind."""
        return self._cache.revision

    @property
    def age_ms(self) -> int:
        """How long ago the servers last gave a sign of life."""
        return self._cache.age_ms(self._now)

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        return self._cache.get(plural, namespace, name)

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which they became known."""
        return self._cache.all(plural)

    def found(self, index: Index, value: str) -> list[Any]:
        """The objects that an index has under a value, by namespace and name."""
        return self._cache.found(index.plural, index.name, value)

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has an object under a value that is meant."""
        return self._cache.has(index.plural, index.name, value, is_meant)

    def knows_all_of(self, obj: Object) -> bool:
        """Whether all that was there when this object was last written has been told.

        Kinds arrive on streams of their own. That something else is not there may be believed only
        if this holds.
        """
        return object_revision(obj.metadata.resource_version) <= self.revision


class ReconcilePlan(msgspec.Struct, frozen=True):
    """What a reconcile wants.

    `requests` go to any server and are withheld while the picture is too old; `questions` go to
    each server and write nothing. `wake_after_ms` has the key looked at again without any news.
    """

    requests: tuple[Any, ...] = ()
    questions: tuple[Any, ...] = ()
    wake_after_ms: int | None = None


class Controller(Protocol):
    """One owner of some transitions and fields.

    `keys_of` must lead from every object that the controller writes back to the key under which it
    wrote it: that is how it learns that its own writes have arrived.
    """

    name: str
    follows: tuple[str, ...]
    indexes: tuple[Index, ...] = ()

    @property
    def identity(self) -> str:
        """As whom it asks."""
        return controller(self.name).name

    def keys_of(self, change: ObjectChange, view: View) -> Iterable[Key]:
        """Which keys a change concerns."""
        ...

    def all_keys(self, view: View) -> Iterable[Key]:
        """Every key there is, for the first look of a term and for the resync."""
        ...

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        """What has to be done about a key."""
        ...

    def flow_of(self, key: Key) -> tuple[str, str]:
        """Which tenant and which of its objects a key belongs to: keys are taken in turns by both.

        Where an object has many keys, the others do not wait for all of them.
        """
        return key

    def answered(
        self, request: Any, to: str, answer: Any, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Take note of an answer; which keys to look at because of it."""
        return ()


def key_of(obj: Object) -> Key:
    """The key of a controller that looks at objects one by one."""
    return obj.namespace, obj.name


def target(replica: Replica) -> Target:
    """The very replica, as it was seen."""
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


def operation(identity: str, uid: str, number: int | str, intent: str) -> str:
    """The id of an operation: the same for every try, in this life of a controller or the next."""
    return f"{identity}/{uid}/{number}/{intent}"


def step_id(identity: str, replica: Replica, intent: str) -> str:
    """The id of a replica's next transition."""
    return operation(identity, replica.metadata.uid, replica.status.transition_number, intent)


def sooner(a: int | None, b: int | None) -> int | None:
    """The earlier of two moments that may not be set."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
