"""The ordinals of workloads: the ranges in which they are reconciled, and which of them are open.

To check all ten thousand ordinals for each change of one would waste a core. So controller:workload
checks all ordinals of a range once, and from then on only the open ones: those with a request in
flight, with a pause, or with a change since. After a change of the workload itself, in a new term
and at every resync it checks all of them again, so that nothing depends on having received every
change.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.correct.controller import (
    BY_WORKLOAD,
    key_of,
)
from holdfast.correct.remembered import Remembered
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.workload.rollouts import wanted_places
from holdfast.observe.cache import Key
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# The ordinals of a workload are reconciled in ranges, each a key of its own: the next range need
# not wait until all creations of the last one are in the cache.
ORDINALS_PER_RANGE = 256


def place(owner: Workload | Replica, ordinal: int) -> str:
    """The index value of one ordinal of a workload."""
    name = owner.spec.workload if isinstance(owner, Replica) else owner.name
    return f"{owner.namespace}/{name}/{ordinal}"


def range_key(namespace: str, workload: str, ordinal: int) -> Key:
    """The key of the range that contains an ordinal of a service."""
    return namespace, f"{workload}/{ordinal // ORDINALS_PER_RANGE}"


def range_key_of(replica: Replica) -> Key:
    """The key of the range that contains a replica's ordinal."""
    return range_key(replica.namespace, replica.spec.workload, replica.spec.ordinal)


def whole(namespace: str, name: str) -> Key:
    """The one key of all replicas of a workload whose ordinals depend on each other."""
    return namespace, f"{name}/0"


def range_keys(view: Snapshot, workload: Workload) -> Iterator[Key]:
    """The keys of all ordinals that a workload wants or has."""
    namespace, name = key_of(workload)
    if workload.spec.type is not WorkloadType.SERVICE:
        if workload.spec.type is not WorkloadType.CRON:
            yield whole(namespace, name)
        return
    there: list[Replica] = view.found(BY_WORKLOAD, f"{namespace}/{name}")
    wanted = range(-(-wanted_places(workload) // ORDINALS_PER_RANGE))
    taken = dict.fromkeys(it.spec.ordinal // ORDINALS_PER_RANGE for it in there)
    for number in dict.fromkeys((*wanted, *taken)):
        yield namespace, f"{name}/{number}"


BY_ORDINAL = Index("replicas", "ordinal", lambda it: (place(it, it.spec.ordinal),))
BY_RANGE = Index("replicas", "range", lambda it: ("/".join(range_key_of(it)),))


class OpenOrdinals(Remembered):
    """The open ordinals of each range that was checked as a whole, by its key."""

    def __init__(self) -> None:
        self._open: dict[Key, dict[int, None]] = {}

    def touch(self, key: Key, ordinal: int) -> None:
        """Open an ordinal that has changed. In a range that was never checked all are open."""
        places = self._open.get(key)
        if places is not None:
            places[ordinal] = None

    def open_all(self, key: Key) -> None:
        """Open all ordinals of a range."""
        self._open.pop(key, None)

    def begin_term(self) -> None:
        self._open.clear()

    def resync(self, view: Snapshot) -> None:
        """Open all ordinals of all workloads."""
        self._open.clear()

    def open_ordinals(self, view: Snapshot, key: Key, wanted: int) -> dict[int, None]:
        """The open ordinals of a range; the caller deletes those that need no further check.

        Surplus ordinals come first, from the highest down.
        """
        places = self._open.get(key)
        if places is None:
            first = int(key[1].partition("/")[2]) * ORDINALS_PER_RANGE
            end = first + ORDINALS_PER_RANGE
            # Of the surplus ordinals, only those that have replicas.
            there: list[Replica] = view.found(BY_RANGE, "/".join(key))
            taken = {it.spec.ordinal for it in there if it.spec.ordinal >= wanted}
            surplus = sorted(taken, reverse=True)
            places = dict.fromkeys((*surplus, *range(first, min(end, wanted))))
            self._open[key] = places
        return places
