"""Keys in order, for the stores that keep their index in memory.

A plain sorted list moves half of its elements at each insertion, which at 150,000 keys costs more
than the rest of a transaction. So the keys are kept in runs of bounded length: an insertion or
removal touches one run, and finding the run is a bisection over the runs' last keys.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

# Twice as long and a run is split. Short runs make long lists of runs, long runs make insertions
# slow; between 200 and 2,000 the difference is not measurable here.
RUN_LENGTH = 512


class SortedKeys:
    """A set of strings that is read in order, from any place."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._runs = [ordered[i : i + RUN_LENGTH] for i in range(0, len(ordered), RUN_LENGTH)]
        self._lasts = [run[-1] for run in self._runs]

    def add(self, key: str) -> None:
        """Add a key that is not there yet."""
        runs = self._runs
        if not runs:
            runs.append([key])
            self._lasts.append(key)
            return
        place = min(bisect_left(self._lasts, key), len(runs) - 1)
        run = runs[place]
        insort(run, key)
        self._lasts[place] = run[-1]
        if len(run) > 2 * RUN_LENGTH:
            runs[place : place + 1] = [run[:RUN_LENGTH], run[RUN_LENGTH:]]
            self._lasts[place : place + 1] = [run[RUN_LENGTH - 1], run[-1]]

    def remove(self, key: str) -> None:
        """Remove a key that is there."""
        place = bisect_left(self._lasts, key)
        run = self._runs[place]
        del run[bisect_left(run, key)]
        if run:
            self._lasts[place] = run[-1]
        else:
            del self._runs[place], self._lasts[place]

    def between(self, start: str, end: str) -> Iterator[str]:
        """The keys with start <= key < end, in order. The set must not change meanwhile."""
        place = bisect_left(self._lasts, start)
        offset = bisect_left(self._runs[place], start) if place < len(self._runs) else 0
        for run, last in zip(self._runs[place:], self._lasts[place:], strict=True):
            if last < end:
                yield from run[offset:] if offset else run
            else:
                yield from run[offset : bisect_left(run, end)]
                return
            offset = 0

    def copy(self) -> SortedKeys:
        twin = SortedKeys()
        twin._runs = [run.copy() for run in self._runs]
        twin._lasts = self._lasts.copy()
        return twin
