"""The evidence of an explanation: stored objects of one revision, and reports of components.

A server collects it for a request (`host/server/explaining.py`), the simulator for its scenarios.
The records to read follow from the replica and its node, so both read the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.commit.record_encoding import decode_or_none, with_version
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import last_written
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatReport, ProgressNote, ProgressNotes
from holdfast.model.pulse import Pulses
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of, kind_of_struct
from holdfast.model.transaction import Record

# A workload's status is checked by counting its replicas. With more replicas than this, the check
# is skipped.
SIBLINGS_MAX = 1_000
# The kinds of which a decision about a replica needs all objects.
_DECIDED_BY = (Node, Region, PriorityClass, SchedulerPolicy, Quota, Reservation, Replica)
# At most this many events of a replica are shown.
EVENTS_MAX = 5

Found = TypeVar("Found", bound=Object)


class StoredRecords:
    """Decoded records of one store revision, by key, each with the revision of its last write."""

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

    def by_plural(self) -> dict[str, list[Object]]:
        """All objects by the plural of their kind. Ledgers and other records are not objects."""
        found: dict[str, list[Object]] = {}
        for value, _ in self._records.values():
            if isinstance(value, Object):
                found.setdefault(kind_of(value).plural, []).append(value)
        return found


def decode_records(revision: int, records: Iterable[Record]) -> StoredRecords:
    """Decodes records that were read at a revision. Unreadable ones are left out."""
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
    """The evidence about one replica.

    siblings: all replicas of its workload, including itself; None if there are too many.
    timing: the fence timing of the plane.
    heard, pulses: the reports of the servers that were queried; empty if none was.
    decision: the last decision about this replica.
    unknown: what could not be determined, and why.
    """

    replica: Replica
    stored: StoredRecords
    timing: FenceTiming
    siblings: tuple[Replica, ...] | None = None
    heard: tuple[HeartbeatReport, ...] = ()
    pulses: tuple[Pulses, ...] = ()
    decision: Decision | None = None
    unknown: Mapping[str, str] = {}

    @property
    def workload(self) -> Workload | None:
        """The workload that it belongs to, by uid."""
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
        """The events about it, the newest first."""
        uid = self.replica.metadata.uid
        mine = [it for it in self.stored.all(Event) if it.involved_object.uid == uid]
        dated = [(it.last_timestamp, it) for it in mine if it.last_timestamp is not None]
        dated.sort(key=lambda pair: pair[0], reverse=True)
        return [it for _, it in dated[:EVENTS_MAX]]

    @property
    def since(self) -> datetime | None:
        """When it entered its present state."""
        steps = self.replica.status.transitions
        return steps[-1].at if steps else self.replica.metadata.creation_timestamp

    def heard_ago_ms(self, node: str) -> int | None:
        """How long ago any queried server received a renewal of a node."""
        ages = [one.ages_ms[node] for one in self.heard if node in one.ages_ms]
        return min(ages, default=None)

    def progress_notes(self, node: str) -> ProgressNotes | None:
        """The progress notes that the agent of a node sent with its last renewal."""
        knowing = [one for one in self.heard if node in one.ages_ms]
        if not knowing:
            return None
        return min(knowing, key=lambda one: one.ages_ms[node]).said.get(node, ProgressNotes())

    def note(self, node: str) -> ProgressNote | None:
        """The agent's progress note about this replica."""
        said, uid = self.progress_notes(node), self.replica.metadata.uid
        return next((it for it in said.notes if it.uid == uid), None) if said is not None else None


def ranges_to_read(replica: Replica, node: Node | None) -> list[tuple[str, str]]:
    """The key ranges to read for an explanation, besides the replica and its node."""
    namespace, status = replica.namespace, replica.status
    wanted = [
        _one(Workload, namespace, replica.spec.workload),
        _prefix(keys.kind_prefix(kind_of_struct(Lease))),
        # The name of an event starts with the name of its object.
        _prefix(f"{keys.kind_prefix(kind_of_struct(Event), namespace)}{replica.name}."),
    ]
    if status.reservation:
        wanted.append(_one(Reservation, namespace, status.reservation))
    if node is not None and node.status.phase is not NodePhase.READY:
        # How much of the zone is silent follows from all nodes, and a person may have given it up.
        wanted.append(_prefix(keys.kind_prefix(kind_of_struct(Node))))
        wanted.append(_prefix(keys.kind_prefix(kind_of_struct(Override), SYSTEM_NAMESPACE)))
    if status.state is State.PENDING:
        # All that a decision looks at, and the ledgers: their last writes say since when.
        wanted += [_prefix(keys.kind_prefix(kind_of_struct(it))) for it in _DECIDED_BY]
        wanted += [
            _prefix(f"{keys.LEDGERS}node/"),
            _prefix(f"{keys.LEDGERS}quota/"),
            _one(Tenant, "", namespace),
        ]
    return wanted


def siblings_range(replica: Replica) -> tuple[str, str]:
    """The key range of its workload's replicas; it may hold replicas of other workloads too."""
    prefix = keys.kind_prefix(kind_of_struct(Replica), replica.namespace)
    return _prefix(f"{prefix}{replica.spec.workload}-")


def siblings_of(found: StoredRecords, replica: Replica) -> tuple[Replica, ...]:
    """The replicas among these that belong to the same workload, by uid."""
    uid = replica.spec.workload_uid
    return tuple(it for it in found.all(Replica) if it.spec.workload_uid == uid)


def revision_of(obj: Object) -> int:
    """The revision at which an object was last written; 0 if unknown."""
    return last_written(obj.metadata.resource_version)


def _one(cls: type[Object], namespace: str, name: str) -> tuple[str, str]:
    key = keys.object_key(kind_of_struct(cls), namespace, name)
    return key, key + "\0"


def _prefix(prefix: str) -> tuple[str, str]:
    return prefix, keys.after_prefix(prefix)
