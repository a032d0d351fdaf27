"""All current objects as entries, by kind, namespace and name: what reads are answered from.

The watch hub stores what the store's watch brings. Lists are in the order of the store's keys, so
that a first page from here and a second one from the store fit together.

Every agent lists the replicas of its node, again and again. So each field that selects few objects
has an index. It exists from the beginning: building one for many objects on the first request would
delay all others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from holdfast.model import keys
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS
from holdfast.observe.entries import ObjectEntry, kept_paths
from holdfast.observe.selection import ObjectSelection

# Entries in the order of their keys, with snapshots at any size.
#
# A list must show one moment. A request that lists many objects yields to others in between, while
# the hub applies changes. So the entries are in chunks that never change: a change replaces the one
# chunk that it concerns, and a snapshot is the current list of chunks.

# A change copies one chunk, a snapshot one reference per chunk.
CHUNK_MAX = 128

# Treated as immutable, whatever its type says: others may be reading the chunk.
Chunk = list[ObjectEntry]


class EntrySnapshot:
    """Entries of one moment, in order."""

    __slots__ = ("chunks", "count")

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.count = sum(map(len, chunks))

    def __iter__(self) -> Iterator[ObjectEntry]:
        for chunk in self.chunks:
            yield from chunk


class OrderedEntries:
    """Entries in the order of their keys. See the comment above."""

    __slots__ = ("_chunks", "_keys", "_lasts", "count")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        # The keys of each chunk, and the last key of each. No snapshot shares these lists, so they
        # may be changed in place.
        self._keys: list[list[str]] = []
        self._lasts: list[str] = []
        self.count = 0

    def put(self, key: str, entry: ObjectEntry) -> None:
        """Add an entry, or replace the one with the same key."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            # Entries that arrive in order, as in an initial list, fill their chunks.
            if not at or len(self._chunks[-1]) >= CHUNK_MAX:
                self._chunks.append([])
                self._keys.append([])
                self._lasts.append(key)
            else:
                at -= 1
        keys, chunk = self._keys[at], self._chunks[at].copy()
        place = bisect_left(keys, key)
        self._chunks[at] = chunk
        if place < len(keys) and keys[place] == key:
            chunk[place] = entry
            return
        keys.insert(place, key)
        chunk.insert(place, entry)
        self._lasts[at] = keys[-1]
        self.count += 1
        if len(chunk) > CHUNK_MAX:
            half = CHUNK_MAX // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._keys[at : at + 1] = [keys[:half], keys[half:]]
            self._lasts[at : at + 1] = [keys[half - 1], keys[-1]]

    def remove(self, key: str) -> None:
        """Remove the entry with this key, which must exist."""
        at = bisect_left(self._lasts, key)
        keys, chunk = self._keys[at], self._chunks[at].copy()
        place = bisect_left(keys, key)
        del keys[place], chunk[place]
        self.count -= 1
        if keys:
            self._chunks[at], self._lasts[at] = chunk, keys[-1]
        else:
            del self._chunks[at], self._keys[at], self._lasts[at]

    def snapshot(self, begin: str = "", end: str | None = None) -> EntrySnapshot:
        """The current entries from one key on and up to another."""
        first = bisect_left(self._lasts, begin)
        last = bisect_left(self._lasts, end) + 1 if end is not None else len(self._chunks)
        chunks, keys = self._chunks[first:last], self._keys[first:last]
        if chunks and end is not None:
            chunks[-1] = chunks[-1][: bisect_left(keys[-1], end)]
        if chunks and begin:
            chunks[0] = chunks[0][bisect_left(keys[0], begin) :]
        return EntrySnapshot(chunks)


# These fields select few objects among many. A field with few different values, such as the state,
# is not worth an index.
_INDEXED = {
    "replicas": ("status.binding.node", "spec.workload"),
    "events": ("involvedObject.name",),
}
_KIND_OF_PLURAL = {kind.plural: kind for kind in KINDS}


def parse_key(key: str) -> tuple[Kind, str, str] | None:
    """The kind, namespace and name of a store key; None if the key is not that of an object."""
    if not key.startswith(keys.OBJECTS):
        return None
    plural, _, rest = key[len(keys.OBJECTS) :].partition("/")
    kind = _KIND_OF_PLURAL.get(plural)
    if kind is None:
        return None
    if not kind.namespaced:
        return kind, "", rest
    namespace, _, name = rest.partition("/")
    return kind, namespace, name


class _Index:
    """The objects of one kind by the value of one kept field."""

    __slots__ = ("_by_value", "at")

    def __init__(self, at: int) -> None:
        self.at = at
        self._by_value: dict[str, OrderedEntries] = {}

    def change(self, key: str, before: ObjectEntry | None, after: ObjectEntry | None) -> None:
        """Apply the change of one object: it was replaced, added or removed."""
        at = self.at
        if before is not None and (after is None or after.fields[at] != before.fields[at]):
            value = before.fields[at]
            there = self._by_value[value]
            there.remove(key)
            if not there.count:
                del self._by_value[value]
        if after is not None:
            value = after.fields[at]
            found = self._by_value.get(value)
            if found is None:
                found = self._by_value[value] = OrderedEntries()
            found.put(key, after)

    def of(self, value: str) -> OrderedEntries:
        """The objects with this value."""
        return self._by_value.get(value) or OrderedEntries()


class _KindTable:
    """The objects of one kind."""

    __slots__ = ("by_name", "indexes", "ordered")

    def __init__(self, kind: Kind) -> None:
        # By namespace and name.
        self.by_name: dict[str, dict[str, ObjectEntry]] = {}
        self.ordered = OrderedEntries()
        paths = kept_paths(kind)
        self.indexes = tuple(_Index(paths.index(it)) for it in _INDEXED.get(kind.plural, ()))

    def put(self, namespace: str, name: str, entry: ObjectEntry | None) -> ObjectEntry | None:
        # The store sorts objects by this key.
        key = f"{namespace}/{name}"
        there = self.by_name.get(namespace)
        before = there.get(name) if there is not None else None
        if entry is not None:
            if there is None:
                there = self.by_name[namespace] = {}
            there[name] = entry
            self.ordered.put(key, entry)
        elif before is not None and there is not None:
            del there[name]
            if not there:
                del self.by_name[namespace]
            self.ordered.remove(key)
        for index in self.indexes:
            index.change(key, before, entry)
        return before


class EntryTable:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._tables = {kind.plural: _KindTable(kind) for kind in KINDS}

    def get(self, kind: Kind, namespace: str, name: str) -> ObjectEntry | None:
        """One object, or None."""
        there = self._tables[kind.plural].by_name.get(namespace)
        return there.get(name) if there is not None else None

    def put(
        self, kind: Kind, namespace: str, name: str, entry: ObjectEntry | None
    ) -> ObjectEntry | None:
        """Replace an object, or remove it with None. Returns the previous entry."""
        return self._tables[kind.plural].put(namespace, name, entry)

    def count(self, kind: Kind, namespace: str = "") -> int:
        """The number of objects of a kind, in one namespace or in all."""
        table = self._tables[kind.plural]
        return len(table.by_name.get(namespace, ())) if namespace else table.ordered.count

    def namespaces(self, kind: Kind) -> set[str]:
        """The namespaces that contain objects of a kind."""
        return set(self._tables[kind.plural].by_name)

    def candidates(self, selection: ObjectSelection) -> EntrySnapshot:
        """A snapshot that contains every selected object, in the order of the keys.

        It is small where an index applies, and takes no time to make at any size. The caller tests
        each entry, unless the selection is everything.
        """
        kind, namespace = selection.kind, selection.namespace
        if selection.name is not None and (namespace or not kind.namespaced):
            entry = self.get(kind, namespace, selection.name)
            return EntrySnapshot([[entry]] if entry is not None else [])
        table = self._tables[kind.plural]
        found = table.ordered
        for index in table.indexes:
            value = selection.value_at(index.at)
            if value is not None:
                found = min(found, index.of(value), key=lambda it: it.count)
        # A slash ends a namespace, and 0 is the character after the slash.
        return found.snapshot(f"{namespace}/", f"{namespace}0") if namespace else found.snapshot()

    def select(self, selection: ObjectSelection) -> list[ObjectEntry]:
        """All selected objects in the order of their keys, for selections of few objects."""
        return list(selected_entries(self.candidates(selection), selection))


def selected_entries(snapshot: EntrySnapshot, selection: ObjectSelection) -> Iterator[ObjectEntry]:
    """The entries of a snapshot that are selected."""
    if selection.is_everything:
        return iter(snapshot)
    return (entry for entry in snapshot if selection.matches(entry))
