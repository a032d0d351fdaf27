"""All current objects as entries, by kind, namespace and name: what reads are answered from.

The hub puts in what the store's watch brings. Lists come out in the order of the store's keys, so
that a first page from here and a second one from the store fit together.

Every agent lists the replicas of its node, again and again. So the fields by which few objects are
selected have an index each. It is there from the beginning: making one for many objects when it is
first asked for would hold up everybody else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from holdfast.model import keys
from holdfast.model.registry import KINDS, Kind
from holdfast.observe.entries import ObjectEntry, kept_paths
from holdfast.observe.selection import ObjectSelection

# Entries in the order of their keys, of which a picture can be taken at any size.
#
# A list must be of one moment, and whoever makes one of many objects lets others have their turn in
# between, while the hub takes in changes. So the entries are in chunks that never change: a change
# replaces the one chunk that it is about, and a picture is the list of chunks as they are.

# A change copies one chunk, a picture one reference for each.
CHUNK_MAX = 128

# Immutable, whatever its type says: nobody changes a chunk that others may be reading.
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
    """See the module's docstring."""

    __slots__ = ("_chunks", "_keys", "_lasts", "count")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        # The keys of each chunk, which no picture has and which may change therefore, and the last
        # one of each.
        self._keys: list[list[str]] = []
        self._lasts: list[str] = []
        self.count = 0

    def put(self, key: str, entry: ObjectEntry) -> None:
        """Take in an entry, or replace the one with the same key."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            # What arrives in order, as in a first list, fills its chunks.
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
        """Take out the entry with this key, which is there."""
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
        """The entries as they are now, from one key on and up to another."""
        first = bisect_left(self._lasts, begin)
        last = bisect_left(self._lasts, end) + 1 if end is not None else len(self._chunks)
        chunks, keys = self._chunks[first:last], self._keys[first:last]
        if chunks and end is not None:
            chunks[-1] = chunks[-1][: bisect_left(keys[-1], end)]
        if chunks and begin:
            chunks[0] = chunks[0][bisect_left(keys[0], begin) :]
        return EntrySnapshot(chunks)


# By these a selection of few is found among many. What most objects have in common, such as their
# state, is not worth an index.
_INDEXED = {
    "replicas": ("status.binding.node", "spec.workload"),
    "events": ("involvedObject.name",),
}
_KIND_OF_PLURAL = {kind.plural: kind for kind in KINDS}


def parsed_key(key: str) -> tuple[Kind, str, str] | None:
    """Kind, namespace and name that a key of the store stands for; None if it is no object's."""
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
        """One object was replaced, came or went."""
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
        """Those with this value."""
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
        # In the order of these the store has them.
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
        """Replace an object, or take it out with None. Returns what was there before."""
        return self._tables[kind.plural].put(namespace, name, entry)

    def count(self, kind: Kind, namespace: str = "") -> int:
        """How many there are of a kind, in one namespace or in all."""
        table = self._tables[kind.plural]
        return len(table.by_name.get(namespace, ())) if namespace else table.ordered.count

    def namespaces(self, kind: Kind) -> set[str]:
        """Where there is something of a kind."""
        return set(self._tables[kind.plural].by_name)

    def candidates(self, selection: ObjectSelection) -> EntrySnapshot:
        """Objects of this moment among which all of a selection are, in the order of their keys.

        They are few where an index knows them, and take no time to be found however many they are.
        Whether one is selected is to be asked of each, unless the selection is everything.
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
        # A slash ends a namespace, and 0 is the character after it.
        return found.snapshot(f"{namespace}/", f"{namespace}0") if namespace else found.snapshot()

    def select(self, selection: ObjectSelection) -> list[ObjectEntry]:
        """All objects of a selection in the order of their keys, where there are few."""
        return list(selected(self.candidates(selection), selection))


def selected(snapshot: EntrySnapshot, selection: ObjectSelection) -> Iterator[ObjectEntry]:
    """The entries of a picture that are selected."""
    if selection.is_everything:
        return iter(snapshot)
    return (entry for entry in snapshot if selection.matches(entry))
