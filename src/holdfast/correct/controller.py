"""What a controller is: a function from a key and a cached view to a plan of requests.

Each controller owns some transitions and fields; `all_controllers.py` lists all controllers and
`controller_runner.py` runs them. A reconcile sees a key, never the event that queued it. It is pure
except for the memories that the controller declares (`remembered.py`), and returns the same plan
again when nothing has changed. The authority decides each request, sent under the controller's own
identity, so a wrong request costs one refusal.

The requests of one plan are sent together: each must make sense whichever others take effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from holdfast.correct.remembered import Remembered
from holdfast.model.access.identity import controller
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import CONTROLLER_SCOPE, Actor
from holdfast.model.machine import Question, Reply
from holdfast.model.meta import Object
from holdfast.model.nodes.heartbeat import HeartbeatQuery
from holdfast.model.requests import Request, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# At most this many requests of one plan are sent at once. A longer plan is computed again after
# that, so a reconcile may stop at one more than this.
REQUESTS_PER_PLAN_MAX = 512


def _workload_of(replica: Replica) -> Iterable[str]:
    return (f"{replica.namespace}/{replica.spec.workload}",)


def _node_of(replica: Replica) -> Iterable[str]:
    binding = replica.status.binding
    return (binding.node,) if binding is not None else ()


BY_WORKLOAD = Index("replicas", "workload", _workload_of)
BY_NODE = Index("replicas", "node", _node_of)


class RequestAbroad(msgspec.Struct, frozen=True):
    """A request to the servers of another plane, which the controller follows."""

    plane: str
    request: Request


class ReconcilePlan(msgspec.Struct, frozen=True):
    """The result of a reconcile.

    `requests` go to any server and are withheld while the cache is too old; `questions` go to each
    server and write nothing. `abroad` go to other planes, each withheld while the cache of its
    plane is too old; they name no term, since the lease is one of this plane. `wake_after_ms`
    queues the key again, also if nothing changes.
    """

    requests: tuple[Request, ...] = ()
    questions: tuple[HeartbeatQuery, ...] = ()
    wake_after_ms: int | None = None
    abroad: tuple[RequestAbroad, ...] = ()


class Controller(Protocol):
    """One owner of some transitions and fields.

    It declares its `actor`, by which the kinds and the lifecycle table name what it owns and the
    requests who sends them; its role follows from these. It reads the kinds that it `follows`, and
    those of other planes in `abroad`, each with the plane before it. Its lease is one of its own
    plane only.

    `keys_of` must return, for every object that the controller writes, the key under which it wrote
    it: that is how the controller learns that its own writes have arrived.
    """

    actor: Actor
    follows: tuple[str, ...]
    abroad: tuple[tuple[str, str], ...] = ()
    indexes: tuple[Index, ...] = ()
    # All that it remembers besides the cache.
    remembers: tuple[Remembered, ...] = ()

    @property
    def name(self) -> str:
        """Its own name, which its lease and its identity contain."""
        return self.actor.value.removeprefix(CONTROLLER_SCOPE)

    @property
    def identity(self) -> str:
        """The identity under which it sends requests."""
        return controller(self.name).name

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """The keys that a change concerns."""
        ...

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        """Every key, for the start of a term and for the resync, after its memories followed."""
        ...

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        """The plan for a key."""
        ...

    def flow_of(self, key: Key) -> tuple[str, str]:
        """The tenant and the object of a key: the queue takes keys in turns by both.

        Where one object has many keys, other objects do not wait for all of them.
        """
        return key

    def answered(
        self, request: Question, to: str, answer: Reply, sent_ms: int, now: Instant
    ) -> Iterable[Key]:
        """Process an answer; returns the keys to reconcile because of it."""
        return ()


def key_of(obj: Object) -> Key:
    """The key of an object, for controllers with one key per object."""
    return obj.namespace, obj.name


def operation(identity: str, uid: str, number: int | str, intent: str) -> str:
    """The id of an operation: the same for every try, also after a restart of the controller."""
    return f"{identity}/{uid}/{number}/{intent}"


def step_id(identity: str, replica: Replica, intent: str) -> str:
    """The id of a replica's next transition."""
    return operation(identity, replica.metadata.uid, replica.status.transition_number, intent)
