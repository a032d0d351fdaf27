"""What an explanation rests on: the objects of one moment, and what components say of themselves.

A server gathers them for a request (`host/server/explaining.py`), the simulator for its examples.
Which records of the store are needed follows from the replica and its node, so that both read the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.commit.records import decode_or_none, with_version
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import HeartbeatReport, ProgressNote, ProgressNotes
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.pulse import Pulses
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import Record

# Replicas of one workload that are counted to see whether its status is right. Of more than these
# nobody can tell by looking at one.
SIBLINGS_MAX = 1_000
# Of what was told about a replica so much is shown.
EVENTS_MAX = 5

Found = TypeVar("Found", bound=Object)


class StoredRecords:
    """Records of the store as of one revision, by key, each decoded with its own revision."""

    def __init__(self, revision: int, records: Iterable[tuple[str, Any, int]]) -> None:
        self.revision = revision
        self._records = {key: (value, modified) for key, value, modified in records}

    def get(self, key: str) -> Any:
        return self._records.get(key, (None, 0))[0]

    def modified(self, key: str) -> int:
        return self._records.get(key, (None, 0))[1]

    def object(self, cls: type[Found], namespace: str, name: str) -> Found | None:
        found: Found | None = self.get(keys.object_key(kind_of_struct(cls), namespace, name))
        return found

    def all(self, cls: type[Found]) -> list[Found]:
        return [value for value, _ in self._records.values() if isinstance(value, cls)]


def decode_records(revision: int, records: Iterable[Record]) -> StoredRecords:
    """What records of the store say as of a revision."""
    found = []
    for record in records:
        value = decode_or_none(record)
        if value is None:
            continue
        if isinstance(value, Object):
            value = with_version(value, record.modified)
        found.append((record.key, value, record.modified))
    return StoredRecords(revision, found)


class ReplicaFacts(msgspec.Struct, frozen=True):
    """See the module's docstring.

    siblings: all replicas of its workload, itself among them; None where there are too many.
    timing: of the plane.
    heard, pulses: what servers said, each of what it hears itself; none where nobody was asked.
    decision: the last one about this replica.
    unknown: what could not be found out, and why.
    """

    replica: Replica
    decode_records: StoredRecords
    timing: FenceTiming
    siblings: tuple[Replica, ...] | None = None
    heard: tuple[HeartbeatReport, ...] = ()
    pulses: tuple[Pulses, ...] = ()
    decision: Decision | None = None
    unknown: Mapping[str, str] = {}

    @property
    def workload(self) -> Workload | None:
        """The very workload that it belongs to."""
        spec = self.replica.spec
        found = self.stored.object(Workload, self.replica.namespace, spec.workload)
        is_it = found is not None and found.metadata.uid == spec.workload_uid
        return found if is_it else None

    @property
    def node(self) -> Node | None:
        """The node that it is bound to."""
        binding = self.replica.status.binding
        return self.stored.object(Node, "", binding.node) if binding is not None else None

    @property
    def events(self) -> list[Event]:
        """What was told of it, the newest first."""
        uid = self.replica.metadata.uid
        mine = [it for it in self.stored.all(Event) if it.involved_object.uid == uid]
        dated = [(it.last_timestamp, it) for it in mine if it.last_timestamp is not None]
        dated.sort(key=lambda pair: pair[0], reverse=True)
        return [it for _, it in dated[:EVENTS_MAX]]

    @property
    def since(self) -> datetime | None:
        """When it came into its present state."""
        steps = self.replica.status.transitions
        return steps[-1].at if steps else self.replica.metadata.creation_timestamp

    def heard_ago_ms(self, node: str) -> int | None:
        """How long ago anybody who was asked heard a node."""
        ages = [one.ages_ms[node] for one in self.heard if node in one.ages_ms]
        return min(ages, default=None)

    def said(self, node: str) -> ProgressNotes | None:
        """What the agent of a node said with its last renewal."""
        knowing = [one for one in self.heard if node in one.ages_ms]
        if not knowing:
            return None
        return min(knowing, key=lambda one: one.ages_ms[node]).said.get(node, ProgressNotes())

    def note(self, node: str) -> ProgressNote | None:
        """What it said of this very replica."""
        said, uid = self.said(node), self.replica.metadata.uid
        return next((it for it in said.notes if it.uid == uid), None) if said is not None else None


def ranges_to_read(replica: Replica, node: Node | None) -> list[tuple[str, str]]:
    """What to read of the store for an explanation: the replica and its node were read before."""
    namespace, status = replica.namespace, replica.status
    wanted = [
        _one(Workload, namespace, replica.spec.workload),
        _prefix(keys.kind_prefix(kind_of_struct(Lease))),
        # An event bears the name of what it is about, and more.
        _prefix(f"{keys.kind_prefix(kind_of_struct(Event), namespace)}{replica.name}."),
    ]
    if status.reservation:
        wanted.append(_one(Reservation, namespace, status.reservation))
    if node is not None and node.status.phase is not NodePhase.READY:
        # How silent its zone is, all nodes together say.
        wanted.append(_prefix(keys.kind_prefix(kind_of_struct(Node))))
    if status.state is State.PENDING:
        wanted += [
            _prefix(keys.kind_prefix(kind_of_struct(Node))),
            _prefix(keys.kind_prefix(kind_of_struct(Region))),
            _prefix(keys.kind_prefix(kind_of_struct(PriorityClass))),
            _prefix(f"{keys.LEDGERS}node/"),
            _prefix(f"{keys.LEDGERS}quota/"),
            _one(Tenant, "", namespace),
            _prefix(keys.kind_prefix(kind_of_struct(Quota), namespace)),
        ]
    return wanted


def siblings_range(replica: Replica) -> tuple[str, str]:
    """Where the replicas of its workload lie, and perhaps some others'."""
    prefix = keys.kind_prefix(kind_of_struct(Replica), replica.namespace)
    return _prefix(f"{prefix}{replica.spec.workload}-")


def siblings_of(found: StoredRecords, replica: Replica) -> tuple[Replica, ...]:
    """The replicas of its very workload among these."""
    uid = replica.spec.workload_uid
    return tuple(it for it in found.all(Replica) if it.spec.workload_uid == uid)


def revision_of(obj: Object) -> int:
    """The revision at which an object was last written; 0 if that is not known."""
    version = obj.metadata.resource_version
    return object_revision(version) if version else 0


def _one(cls: type[Object], namespace: str, name: str) -> tuple[str, str]:
    key = keys.object_key(kind_of_struct(cls), namespace, name)
    return key, key + "\0"


def _prefix(prefix: str) -> tuple[str, str]:
    return prefix, keys.after_prefix(prefix)
