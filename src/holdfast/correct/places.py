"""Which places of each workload have to be looked at: those that news came of, or all of them.

A look at all ten thousand places for each of their news would cost a core for nothing. So
controller:workload looks at all places of a workload once, and from then on at those that it has
left open: where it asked for something, where somebody waits for a moment, and where something has
changed since. After a change of the workload itself, in a new term and at every resync it looks at
all of them again, so that nothing rests on having been told of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.observe.cache import Key


class Places:
    """The open places of each workload that was looked at as a whole, by its key."""

    def __init__(self) -> None:
        self._open: dict[Key, dict[int, None]] = {}

    def touch(self, key: Key, ordinal: int) -> None:
        """Something has changed at a place. A workload that was never looked at has all open."""
        places = self._open.get(key)
        if places is not None:
            places[ordinal] = None

    def open_all(self, key: Key) -> None:
        """Look at all places of a workload next time."""
        self._open.pop(key, None)

    def open_everything(self) -> None:
        """Look at all places of all workloads next time."""
        self._open.clear()

    def opened(self, key: Key, every: Callable[[], Iterable[int]]) -> dict[int, None]:
        """The open places, for the caller to take out what it needs not look at again.

        `every` says all of them, in the order in which they are looked at.
        """
        places = self._open.get(key)
        if places is None:
            places = self._open[key] = dict.fromkeys(every())
        return places
