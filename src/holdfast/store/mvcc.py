"""Current entries and the steps that led to them: the multi-version index of memory and SQLite.

An entry is what a store keeps for one version of a key: the record itself in memory, a pointer into
the log on disk. The index holds the current entries and, for each revision since the last
compaction, the steps that made it, each with the entry before it, in order and for each key. A read
of a past revision looks up each key of its range as it was then. So the cost of a page depends on
the keys it examines, however much has changed since; their number is bounded, as most may be newer.

No clock, no randomness, no locks, no I/O: the simulator runs on this directly, and SQLite guards
it with a lock of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.model.errors import Expired, Invalid, invariant
from holdfast.store.contract import RANGE_LIMIT_MAX

# Keys in order, for the stores that keep their index in memory.
#
# A plain sorted list moves half of its elements at each insertion, which at 150,000 keys costs more
# than the rest of a transaction. So the keys are kept in runs of bounded length: an insertion or
# removal touches one run, and finding the run is a bisection over the runs' last keys.

# Twice as long and a run is split. Short runs make long lists of runs, long runs make insertions
# slow; between 200 and 2,000 the difference is not measurable here.
RUN_LENGTH = 512


class SortedKeys:
    """A set of strings that is read in order, from any key on."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self, keys: Iterable[str] = ()) -> None:
        ordered = sorted(keys)
        self._runs = [ordered[i : i + RUN_LENGTH] for i in range(0, len(ordered), RUN_LENGTH)]
        self._lasts = [run[-1] for run in self._runs]

    def add(self, key: str) -> None:
        """Add a key that is not in the set."""
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
        """Remove a key that is in the set."""
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


# How many keys a read of the past examines for one page, however few of them existed then.
LOOKED_AT_MAX = 4_000

_revision = itemgetter(0)


class IndexEntry(Protocol):
    """The properties of an entry that the index needs."""

    @property
    def key(self) -> str: ...

    @property
    def created(self) -> int: ...

    @property
    def modified(self) -> int: ...


E = TypeVar("E", bound=IndexEntry)


class KeyStep(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """One key changed from one entry to the next; None is absent. At least one is an entry."""

    key: str
    before: E | None
    after: E | None


class EntryPage(msgspec.Struct, Generic[E], frozen=True):
    """Entries in key order as of a revision, and the key to go on from."""

    revision: int
    entries: list[E]
    more_from: str | None


class VersionIndex(Generic[E]):
    """The current entries, and the steps of every revision after `compacted`."""

    __slots__ = ("_befores", "_gone", "_keys", "_steps", "compacted", "current", "revision")

    def __init__(self, entries: Iterable[E] = (), *, revision: int = 0) -> None:
        """An index whose history begins at `revision`, with these entries."""
        self.current: dict[str, E] = {entry.key: entry for entry in entries}
        self._keys = SortedKeys(self.current)
        self._steps: list[Sequence[KeyStep[E]]] = []
        # For each key that has changed since the compaction: at which revisions, oldest first, and
        # its entry before each. Those of these keys that are deleted now are kept in order.
        self._befores: dict[str, list[tuple[int, E | None]]] = {}
        self._gone = SortedKeys()
        self.compacted = revision
        self.revision = revision

    @classmethod
    def loaded(
        cls, entries: Iterable[E], steps: list[Sequence[KeyStep[E]]], *, compacted: int
    ) -> VersionIndex[E]:
        """An index from stored data: the current entries, and the steps that led to them."""
        index = cls(entries, revision=compacted)
        index._steps = steps
        for made in steps:
            index.revision += 1
            index._note(made)
        index._gone = SortedKeys(index._befores.keys() - index.current.keys())
        return index

    def apply(self, steps: Sequence[KeyStep[E]]) -> None:
        """Add one revision made of these steps."""
        current = self.current
        for step in steps:
            key = step.key
            if step.after is None:
                del current[key]
                self._keys.remove(key)
                self._gone.add(key)
            else:
                current[key] = step.after
                if step.before is None:
                    self._keys.add(key)
                    if key in self._befores:
                        self._gone.remove(key)
        self._steps.append(steps)
        self.revision += 1
        self._note(steps)

    def _note(self, steps: Sequence[KeyStep[E]]) -> None:
        revision = self.revision
        for step in steps:
            there = self._befores.get(step.key)
            if there is None:
                self._befores[step.key] = [(revision, step.before)]
            else:
                there.append((revision, step.before))

    def steps_after(
        self, revision: int, *, upto: int | None = None
    ) -> Iterator[tuple[int, Sequence[KeyStep[E]]]]:
        """Each later revision with its steps, oldest first. Nothing may be applied meanwhile."""
        self.check_kept(revision)
        last = self.revision if upto is None else upto
        for number in range(revision - self.compacted, last - self.compacted):
            yield self.compacted + number + 1, self._steps[number]

    def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> EntryPage[E]:
        """Entries with start <= key < end as of `at`."""
        if limit < 1:
            raise Invalid(f"limit: {limit} must be at least 1")
        limit = min(limit, RANGE_LIMIT_MAX)
        if at is None or at == self.revision:
            return self._range_now(start, end, limit)
        self.check_kept(at)
        return self._range_then(start, end, limit, at)

    def compact(self, revision: int) -> list[Sequence[KeyStep[E]]]:
        """Forget the steps up to and including this revision; returns them, oldest first."""
        if revision > self.revision:
            raise Invalid(f"cannot compact to revision {revision}: the store is at {self.revision}")
        count = max(0, revision - self.compacted)
        forgotten = self._steps[:count]
        del self._steps[:count]
        self.compacted += count
        for key in {step.key for steps in forgotten for step in steps}:
            there = self._befores[key]
            del there[: bisect_right(there, self.compacted, key=_revision)]
            if not there:
                del self._befores[key]
                if key not in self.current:
                    self._gone.remove(key)
        return forgotten

    def check_compactable(self, revision: int) -> None:
        if revision > self.revision:
            raise Invalid(f"cannot compact to revision {revision}: the store is at {self.revision}")

    def check_kept(self, revision: int) -> None:
        """Raise Expired unless the history after this revision is complete."""
        if revision < self.compacted:
            raise Expired(
                f"revision {revision} is compacted: history begins at {self.compacted}; list again"
            )
        if revision > self.revision:
            raise Expired(
                f"revision {revision} was never reached here: the store is at {self.revision};"
                " list again"
            )

    def copy(self) -> VersionIndex[E]:
        """An index of its own. Entries and steps are immutable and stay shared."""
        twin: VersionIndex[E] = VersionIndex()
        twin.current = self.current.copy()
        twin._keys = self._keys.copy()
        twin._steps = self._steps.copy()
        twin._befores = {key: there.copy() for key, there in self._befores.items()}
        twin._gone = self._gone.copy()
        twin.compacted = self.compacted
        twin.revision = self.revision
        return twin

    def _range_now(self, start: str, end: str, limit: int) -> EntryPage[E]:
        if end == f"{start}\0":
            # One key, as in every read of a single object.
            entry = self.current.get(start)
            return EntryPage(self.revision, [entry] if entry is not None else [], None)
        keys = list(islice(self._keys.between(start, end), limit + 1))
        more_from = keys.pop() if len(keys) > limit else None
        current = self.current
        return EntryPage(self.revision, [current[key] for key in keys], more_from)

    def _range_then(self, start: str, end: str, limit: int, at: int) -> EntryPage[E]:
        entries: list[E] = []
        keys = merge(self._keys.between(start, end), self._gone.between(start, end))
        for looked_at, key in enumerate(keys):
            if looked_at == LOOKED_AT_MAX:
                return EntryPage(at, entries, key)
            entry = self._then(key, at)
            if entry is None:
                continue
            if len(entries) == limit:
                return EntryPage(at, entries, key)
            entries.append(entry)
        return EntryPage(at, entries, None)

    def _then(self, key: str, at: int) -> E | None:
        """The entry of a key at a revision."""
        there = self._befores.get(key)
        if there is None or there[-1][0] <= at:
            return self.current.get(key)
        entry = there[bisect_right(there, at, key=_revision)][1]
        invariant(entry is None or entry.modified <= at, "a later entry was taken for an earlier")
        return entry
