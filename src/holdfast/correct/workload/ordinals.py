"""The places of workloads: in which stretches they are looked at, and which of them have to be.

A look at all ten thousand places for each of their news would cost a core for nothing. So
controller:workload looks at all places of a stretch once, and from then on at those that it has
left open: where it asked for something, where somebody waits for a moment, and where something has
changed since. After a change of the workload itself, in a new term and at every resync it looks at
all of them again, so that nothing rests on having been told of everything.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.correct.controller import BY_WORKLOAD, Index, View, key_of
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.rollouts import wanted_places
from holdfast.observe.cache import Key

# The places of a workload are looked at in stretches, each a key of its own: the next stretch need
# not wait until all births of the last one are seen.
PLACES_PER_STRETCH = 256


def place(owner: Workload | Replica, ordinal: int) -> str:
    """One place of a workload, among all places."""
    name = owner.spec.workload if isinstance(owner, Replica) else owner.name
    return f"{owner.namespace}/{name}/{ordinal}"


def stretch(namespace: str, workload: str, ordinal: int) -> Key:
    """The key that a place of a service belongs to."""
    return namespace, f"{workload}/{ordinal // PLACES_PER_STRETCH}"


def stretch_of(replica: Replica) -> Key:
    """The key that a replica's place belongs to."""
    return stretch(replica.namespace, replica.spec.workload, replica.spec.ordinal)


def whole(namespace: str, name: str) -> Key:
    """The one key of all replicas of a workload whose places depend on each other."""
    return namespace, f"{name}/0"


def stretches(view: View, workload: Workload) -> Iterator[Key]:
    """The keys of all places that a workload wants or has."""
    namespace, name = key_of(workload)
    if workload.spec.type is not WorkloadType.SERVICE:
        if workload.spec.type is not WorkloadType.CRON:
            yield whole(namespace, name)
        return
    there: list[Replica] = view.found(BY_WORKLOAD, f"{namespace}/{name}")
    wanted = range(-(-wanted_places(workload) // PLACES_PER_STRETCH))
    taken = dict.fromkeys(it.spec.ordinal // PLACES_PER_STRETCH for it in there)
    for number in dict.fromkeys((*wanted, *taken)):
        yield namespace, f"{name}/{number}"


BY_PLACE = Index("replicas", "place", lambda it: (place(it, it.spec.ordinal),))
BY_STRETCH = Index("replicas", "stretch", lambda it: ("/".join(stretch_of(it)),))


class OpenOrdinals:
    """The open places of each stretch that was looked at as a whole, by its key."""

    def __init__(self) -> None:
        self._open: dict[Key, dict[int, None]] = {}

    def touch(self, key: Key, ordinal: int) -> None:
        """Something has changed at a place. A stretch that was never looked at has all open."""
        places = self._open.get(key)
        if places is not None:
            places[ordinal] = None

    def open_all(self, key: Key) -> None:
        """Look at all places of a stretch next time."""
        self._open.pop(key, None)

    def open_everything(self) -> None:
        """Look at all places of all workloads next time."""
        self._open.clear()

    def opened(self, view: View, key: Key, wanted: int) -> dict[int, None]:
        """The open places of a stretch, for the caller to take out what needs no further look.

        First come those that are too many, from the highest on.
        """
        places = self._open.get(key)
        if places is None:
            first = int(key[1].partition("/")[2]) * PLACES_PER_STRETCH
            end = first + PLACES_PER_STRETCH
            # Of the places that nobody wants only those that are taken; there may be no others.
            there: list[Replica] = view.found(BY_STRETCH, "/".join(key))
            taken = {it.spec.ordinal for it in there if it.spec.ordinal >= wanted}
            surplus = sorted(taken, reverse=True)
            places = dict.fromkeys((*surplus, *range(first, min(end, wanted))))
            self._open[key] = places
        return places
