"""What a controller is: a function from a key and a cached view to a plan of requests.

Each controller owns some transitions and fields; `all_controllers.py` lists all controllers and
`controller_runner.py` runs them. A reconcile sees a key, never the event that queued it. It is pure
except for what the controller remembers of its own clock, and returns the same plan again when
nothing has changed. The authority decides each request, sent under the controller's own identity,
so a wrong request costs one refusal.

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

# At most this many requests of one plan are sent at once. A longer plan is computed again after
# that, so a reconcile may stop at one more than this.
REQUESTS_PER_PLAN_MAX = 512


class Index(msgspec.Struct, frozen=True):
    """Objects of a kind by the values that `of` returns; indexes of one name are the same index."""

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
    """The runner's cache of the plane, with its revision and its age. It may be old."""

    def __init__(self, cache: Cache, now: Instant) -> None:
        self._cache, self._now = cache, now

    @property
    def revision(self) -> int:
        """The cache holds everything up to this revision, of every kind."""
        return self._cache.revision

    @property
    def age_ms(self) -> int:
        """How long ago the cache last received anything from the servers."""
        return self._cache.age_ms(self._now)

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        return self._cache.get(plural, namespace, name)

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which the cache received them."""
        return self._cache.all(plural)

    def found(self, index: Index, value: str) -> list[Any]:
        """The objects under a value of an index, by namespace and name."""
        return self._cache.found(index.plural, index.name, value)

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has an object under a value for which `is_meant` holds."""
        return self._cache.has(index.plural, index.name, value, is_meant)

    def knows_all_of(self, obj: Object) -> bool:
        """Whether the cache holds everything that existed when this object was last written.

        Each kind has its own watch stream. The absence of another object proves something only if
        this holds.
        """
        return object_revision(obj.metadata.resource_version) <= self.revision


class ReconcilePlan(msgspec.Struct, frozen=True):
    """The result of a reconcile.

    `requests` go to any server and are withheld while the cache is too old; `questions` go to each
    server and write nothing. `wake_after_ms` queues the key again, also if nothing changes.
    """

    requests: tuple[Any, ...] = ()
    questions: tuple[Any, ...] = ()
    wake_after_ms: int | None = None


class Controller(Protocol):
    """One owner of some transitions and fields.

    `keys_of` must return, for every object that the controller writes, the key under which it wrote
    it: that is how the controller learns that its own writes have arrived.
    """

    name: str
    follows: tuple[str, ...]
    indexes: tuple[Index, ...] = ()

    @property
    def identity(self) -> str:
        """The identity under which it sends requests."""
        return controller(self.name).name

    def keys_of(self, change: ObjectChange, view: View) -> Iterable[Key]:
        """The keys that a change concerns."""
        ...

    def all_keys(self, view: View) -> Iterable[Key]:
        """Every key, for the start of a term and for the resync."""
        ...

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        """The plan for a key."""
        ...

    def flow_of(self, key: Key) -> tuple[str, str]:
        """The tenant and the object of a key: the queue takes keys in turns by both.

        Where one object has many keys, other objects do not wait for all of them.
        """
        return key

    def answered(
        self, request: Any, to: str, answer: Any, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Process an answer; returns the keys to reconcile because of it."""
        return ()


def key_of(obj: Object) -> Key:
    """The key of an object, for controllers with one key per object."""
    return obj.namespace, obj.name


def target(replica: Replica) -> Target:
    """The target of a request: this replica, at the transition number in the cache."""
    return Target(
        replica.namespace, replica.name, replica.metadata.uid, replica.status.transition_number
    )


def operation(identity: str, uid: str, number: int | str, intent: str) -> str:
    """The id of an operation: the same for every try, also after a restart of the controller."""
    return f"{identity}/{uid}/{number}/{intent}"


def step_id(identity: str, replica: Replica, intent: str) -> str:
    """The id of a replica's next transition."""
    return operation(identity, replica.metadata.uid, replica.status.transition_number, intent)


def sooner(a: int | None, b: int | None) -> int | None:
    """The earlier of two moments that may not be set."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
