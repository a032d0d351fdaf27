"""The committed state in memory: shared by the writer thread and the event loop.

The index knows where every version lies; values are cached up to a bound, the rest is read from the
file. Only the writer changes the index, after a commit; readers hold the lock only while they
collect pointers. A reader that then reads the file pins its revision meanwhile, so that sweeping
does not delete rows that it has yet to read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.model.transaction import ABSENT, Batch, Change, Record
from holdfast.store.local_watches import BATCH_CHANGES_MAX
from holdfast.store.mvcc import EntryPage, KeyStep, VersionIndex
from holdfast.store.sqlite.rows import Pointer, row_id

# Room for the values of some 150,000 objects of 1.5 KB. Beyond it, reads go to the file.
CACHE_BYTES_MAX = 256 * 1024 * 1024

# Forgetting a million revisions at once would stop every reader for a second.
_COMPACT_AT_ONCE = 5_000

Steps = Sequence[KeyStep[Pointer]]


class ValueCache:
    """The values used last, by row. An entry costs about 100 bytes beside its value."""

    def __init__(self, bytes_max: int) -> None:
        self._values: OrderedDict[int, bytes] = OrderedDict()
        self._bytes_max = bytes_max
        self._bytes = 0

    def get(self, row: int) -> bytes | None:
        value = self._values.get(row)
        if value is not None:
            self._values.move_to_end(row)
        return value

    def add(self, row: int, value: bytes) -> None:
        if row in self._values:
            return
        self._values[row] = value
        self._bytes += len(value) + 100
        while self._bytes > self._bytes_max:
            _, dropped = self._values.popitem(last=False)
            self._bytes -= len(dropped) + 100

    def drop(self, row: int) -> None:
        value = self._values.pop(row, None)
        if value is not None:
            self._bytes -= len(value) + 100


class Garbage(msgspec.Struct, frozen=True):
    """Rows that nothing needs once this revision is compacted."""

    revision: int
    rows: list[int]


class RangeSelection(msgspec.Struct, frozen=True):
    """A range; None stands for values that are not in memory."""

    found: EntryPage[Pointer]
    values: list[bytes | None]

    @property
    def pin(self) -> int:
        return self.found.revision

    def missing(self) -> list[Pointer]:
        pairs = zip(self.found.entries, self.values, strict=True)
        return [pointer for pointer, value in pairs if value is None]


class History(msgspec.Struct, frozen=True):
    """Steps under a prefix after `pin` and up to a revision; None as in `RangeSelection`."""

    pin: int
    revision: int
    steps: list[tuple[int, KeyStep[Pointer]]]
    values: dict[int, bytes]

    def missing(self) -> list[Pointer]:
        pointers = (step.after for _, step in self.steps if step.after is not None)
        return [pointer for pointer in pointers if pointer.id not in self.values]

    def batch(self) -> Batch:
        return Batch(self.revision, tuple(change(r, s, self.values) for r, s in self.steps))


def change(revision: int, step: KeyStep[Pointer], values: dict[int, bytes]) -> Change:
    after = step.after
    if after is None:
        return Change(revision, step.key, None, ABSENT)
    return Change(revision, step.key, values[after.id], after.created)


def record(pointer: Pointer, value: bytes) -> Record:
    return Record(pointer.key, value, pointer.created, pointer.modified)


class CommittedState:
    """The committed state. Every method may be called from any thread."""

    def __init__(self, index: VersionIndex[Pointer], *, cache_bytes_max: int) -> None:
        self._index = index
        self._cache = ValueCache(cache_bytes_max)
        self._lock = threading.Lock()
        # How many readers read rows of a revision at this moment.
        self._pins: dict[int, int] = {}
        self._garbage: deque[Garbage] = deque()

    @property
    def revision(self) -> int:
        return self._index.revision

    @property
    def compacted(self) -> int:
        return self._index.compacted

    def pointer(self, key: str) -> Pointer | None:
        """For the writer only: it alone changes the index and so needs no lock to read it."""
        return self._index.current.get(key)

    def publish(self, revisions: Iterable[Steps], values: dict[int, bytes]) -> None:
        """Publish what was committed. For the writer only."""
        with self._lock:
            for steps in revisions:
                self._index.apply(steps)
            for row, value in values.items():
                self._cache.add(row, value)

    def select(self, start: str, end: str, *, limit: int, at: int | None) -> RangeSelection:
        """A range. When values are missing it is pinned, and the caller must unpin it."""
        with self._lock:
            found = self._index.range(start, end, limit=limit, at=at)
            values = [self._cache.get(pointer.id) for pointer in found.entries]
            if None in values:
                self._pin(found.revision)
            return RangeSelection(found, values)

    def history(
        self, prefix: str, after: int, upto: int, *, limit: int = BATCH_CHANGES_MAX
    ) -> History:
        """The steps that a watch delivers next; ends early with the revision that fills it.

        When values are missing it is pinned, and the caller must unpin it.
        """
        steps: list[tuple[int, KeyStep[Pointer]]] = []
        with self._lock:
            revision = upto
            for number, made in self._index.steps_after(after, upto=upto):
                steps += [(number, step) for step in made if step.key.startswith(prefix)]
                if len(steps) >= limit:
                    revision = number
                    break
            values: dict[int, bytes] = {}
            for _, step in steps:
                value = None if step.after is None else self._cache.get(step.after.id)
                if step.after is not None and value is not None:
                    values[step.after.id] = value
            history = History(after, revision, steps, values)
            if history.missing():
                self._pin(after)
            return history

    def cached(self, row: int) -> bytes | None:
        with self._lock:
            return self._cache.get(row)

    def remember(self, values: dict[int, bytes]) -> None:
        """Cache what was read from the file."""
        with self._lock:
            for row, value in values.items():
                self._cache.add(row, value)

    def _sweepable(self) -> int:
        return min(self._pins, default=self._index.compacted)

    def unpin(self, revision: int) -> None:
        with self._lock:
            self._pins[revision] -= 1
            if not self._pins[revision]:
                del self._pins[revision]

    def _pin(self, revision: int) -> None:
        """Prevent sweeping the rows that are current at this revision or later."""
        self._pins[revision] = self._pins.get(revision, 0) + 1

    def check_compactable(self, revision: int) -> None:
        self._index.check_compactable(revision)

    def compact(self, revision: int) -> None:
        """Forget the history before a revision, once the file says so too. For the writer only.

        In pieces, so that no reader waits for a long history to be forgotten.
        """
        while self._index.compacted < revision:
            with self._lock:
                first = self._index.compacted + 1
                piece = min(revision, self._index.compacted + _COMPACT_AT_ONCE)
                for number, steps in enumerate(self._index.compact(piece), first):
                    rows = superseded_rows(number, steps)
                    for row in rows:
                        self._cache.drop(row)
                    self._garbage.append(Garbage(number, rows))

    def has_garbage(self) -> bool:
        """Whether `take_garbage` would return something now."""
        with self._lock:
            return bool(self._garbage) and self._garbage[0].revision <= self._sweepable()

    def take_garbage(self, rows_max: int) -> list[Garbage]:
        """What may be deleted now, oldest first, and at least one revision's if any."""
        taken: list[Garbage] = []
        count = 0
        with self._lock:
            limit = self._sweepable()
            while self._garbage and self._garbage[0].revision <= limit:
                if taken and count + len(self._garbage[0].rows) > rows_max:
                    break
                taken.append(self._garbage.popleft())
                count += len(taken[-1].rows)
        return taken


def superseded_rows(revision: int, steps: Steps) -> list[int]:
    """The rows that only revisions before this one need: replaced ones, and its deletions."""
    rows = [step.before.id for step in steps if step.before is not None]
    # A revision's rows are in the order of its steps.
    rows += [row_id(revision, place) for place, step in enumerate(steps) if step.after is None]
    return rows
