"""Current entries and the steps that led to them: the multi-version heart of memory and SQLite.

An entry is whatever a store keeps for one version of a key: the record itself in memory, a pointer
into the log on disk. The index holds the current entries and, for each revision since the last
compaction, the steps that made it, each with the entry before it. A read of a past revision starts
from the current entries and undoes the steps since; recent revisions, which are the ones that
lists page over, cost next to nothing, and keys that did not change cost nothing at all.

No clock, no randomness, no locks, no I/O: the simulator runs on this directly, and SQLite guards
it with a lock of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.model.errors import Expired, Invalid, invariant
from holdfast.store.contract import RANGE_LIMIT_MAX
from holdfast.store.ordered import SortedKeys


class Entry(Protocol):
    """What the index must know of an entry."""

    @property
    def key(self) -> str: ...

    @property
    def created(self) -> int: ...

    @property
    def modified(self) -> int: ...


E = TypeVar("E", bound=Entry)


class Step(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """One key went from one entry to the next; None is absent. At least one of the two is there."""

    key: str
    before: E | None
    after: E | None


class Found(msgspec.Struct, Generic[E], frozen=True):
    """Entries in key order as of a revision, and the key to go on from."""

    revision: int
    entries: list[E]
    more_from: str | None


class VersionIndex(Generic[E]):
    """The current entries, and the steps of every revision after `compacted`."""

    __slots__ = ("_keys", "_steps", "compacted", "current", "revision")

    def __init__(self, entries: Iterable[E] = (), *, revision: int = 0) -> None:
        """An index whose history begins at `revision`, with these entries."""
        self.current: dict[str, E] = {entry.key: entry for entry in entries}
        self._keys = SortedKeys(self.current)
        self._steps: list[Sequence[Step[E]]] = []
        self.compacted = revision
        self.revision = revision

    @classmethod
    def loaded(
        cls, entries: Iterable[E], steps: list[Sequence[Step[E]]], *, compacted: int
    ) -> VersionIndex[E]:
        """An index as it was: the current entries, and the steps that led to them."""
        index = cls(entries, revision=compacted)
        index._steps = steps
        index.revision += len(steps)
        return index

    def apply(self, steps: Sequence[Step[E]]) -> None:
        """Add one revision made of these steps."""
        current = self.current
        for step in steps:
            if step.after is None:
                del current[step.key]
                self._keys.remove(step.key)
            else:
                current[step.key] = step.after
                if step.before is None:
                    self._keys.add(step.key)
        self._steps.append(steps)
        self.revision += 1

    def steps_after(
        self, revision: int, *, upto: int | None = None
    ) -> Iterator[tuple[int, Sequence[Step[E]]]]:
        """Each later revision with its steps, oldest first. Nothing may be applied meanwhile."""
        self.check_kept(revision)
        last = self.revision if upto is None else upto
        for number in range(revision - self.compacted, last - self.compacted):
            yield self.compacted + number + 1, self._steps[number]

    def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Found[E]:
        """Entries with start <= key < end as of `at`."""
        if limit < 1:
            raise Invalid(f"a range needs a limit of at least 1, not {limit}")
        limit = min(limit, RANGE_LIMIT_MAX)
        if at is None or at == self.revision:
            return self._range_now(start, end, limit)
        self.check_kept(at)
        return self._range_then(start, end, limit, at)

    def compact(self, revision: int) -> list[Sequence[Step[E]]]:
        """Forget the steps up to and including this revision; returns them, oldest first."""
        if revision > self.revision:
            raise Invalid(f"cannot compact to revision {revision}: the store is at {self.revision}")
        count = max(0, revision - self.compacted)
        forgotten = self._steps[:count]
        del self._steps[:count]
        self.compacted += count
        return forgotten

    def check_compactable(self, revision: int) -> None:
        if revision > self.revision:
            raise Invalid(f"cannot compact to revision {revision}: the store is at {self.revision}")

    def check_kept(self, revision: int) -> None:
        """Raise Expired unless the history after this revision is whole."""
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
        twin.compacted = self.compacted
        twin.revision = self.revision
        return twin

    def _range_now(self, start: str, end: str, limit: int) -> Found[E]:
        if end == f"{start}\0":
            # One key, as in every look at a single object.
            entry = self.current.get(start)
            return Found(self.revision, [entry] if entry is not None else [], None)
        keys = list(islice(self._keys.between(start, end), limit + 1))
        more_from = keys.pop() if len(keys) > limit else None
        current = self.current
        return Found(self.revision, [current[key] for key in keys], more_from)

    def _range_then(self, start: str, end: str, limit: int, at: int) -> Found[E]:
        undone = self._undone(start, end, at)
        # Undoing removes at most len(undone) of the current keys, so with so many more the page is
        # full whatever is removed, and no key that belongs on it lies beyond those taken.
        taken = set(islice(self._keys.between(start, end), limit + 1 + len(undone)))
        current = self.current
        entries: list[E] = []
        for key in sorted(taken | undone.keys()):
            entry = undone[key] if key in undone else current[key]
            if entry is None:
                continue
            if len(entries) == limit:
                return Found(at, entries, key)
            entries.append(entry)
        return Found(at, entries, None)

    def _undone(self, start: str, end: str, at: int) -> dict[str, E | None]:
        """For each key of the range that changed after `at`, its entry at that time."""
        undone: dict[str, E | None] = {}
        for number in range(at - self.compacted, len(self._steps)):
            for step in self._steps[number]:
                if start <= step.key < end and step.key not in undone:
                    undone[step.key] = step.before
        for entry in undone.values():
            invariant(
                entry is None or entry.modified <= at, "an undone step left a later entry behind"
            )
        return undone
