"""All current objects as entries, by kind, namespace and name: what reads are answered from.

The hub puts in what the store's watch brings. Lists come out in the order of the store's keys, so
that a first page from here and a second one from the store fit together.

Every agent lists the replicas of its node, again and again. So what is selected by a kept field is
found by an index, which is made when the field is first asked for and costs nothing before.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import keys
from holdfast.model.registry import KINDS, Kind
from holdfast.observe.entries import Entry
from holdfast.observe.selection import NAMESPACE_AT, Selection

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


class _Shelf:
    """The objects of one kind in one namespace. The order is made when somebody asks for it."""

    __slots__ = ("entries", "order")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.order: list[str] | None = None

    def ordered(self) -> list[Entry]:
        entries = self.entries
        if self.order is None:
            self.order = sorted(entries)
        return [entries[name] for name in self.order]


class _Index:
    """The objects of one kind by the value of one kept field."""

    __slots__ = ("_at", "_by_value")

    def __init__(self, at: int, entries: Iterable[Entry]) -> None:
        self._at = at
        self._by_value: dict[str, dict[tuple[str, str], Entry]] = {}
        for entry in entries:
            self.change(None, entry)

    def change(self, before: Entry | None, after: Entry | None) -> None:
        """One object was replaced, came or went."""
        if before is not None and (
            after is None or after.fields[self._at] != before.fields[self._at]
        ):
            value = before.fields[self._at]
            there = self._by_value[value]
            del there[before.namespace, before.name]
            if not there:
                del self._by_value[value]
        if after is not None:
            there = self._by_value.setdefault(after.fields[self._at], {})
            there[after.namespace, after.name] = after

    def of(self, value: str) -> list[Entry]:
        """Those with this value, in the order of their keys."""
        there = self._by_value.get(value, {})
        return [there[key] for key in sorted(there, key=lambda key: (f"{key[0]}/", key[1]))]


class Cabinet:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, _Shelf]] = {kind.plural: {} for kind in KINDS}
        # By kind and by the position of the field among the kept ones, of which there are few.
        self._indexes: dict[str, dict[int, _Index]] = {kind.plural: {} for kind in KINDS}

    def get(self, kind: Kind, namespace: str, name: str) -> Entry | None:
        """One object, or None."""
        shelf = self._shelves[kind.plural].get(namespace)
        return shelf.entries.get(name) if shelf is not None else None

    def put(self, kind: Kind, namespace: str, name: str, entry: Entry | None) -> Entry | None:
        """Replace an object, or take it out with None. Returns what was there before."""
        before = self._put(self._shelves[kind.plural], namespace, name, entry)
        indexes = self._indexes[kind.plural]
        if indexes:
            for index in indexes.values():
                index.change(before, entry)
        return before

    def _put(
        self, shelves: dict[str, _Shelf], namespace: str, name: str, entry: Entry | None
    ) -> Entry | None:
        shelf = shelves.get(namespace)
        if entry is None:
            return self._taken(shelves, shelf, namespace, name)
        if shelf is None:
            shelf = shelves[namespace] = _Shelf()
        before = shelf.entries.get(name)
        shelf.entries[name] = entry
        if before is None:
            shelf.order = None
        return before

    def _taken(
        self, shelves: dict[str, _Shelf], shelf: _Shelf | None, namespace: str, name: str
    ) -> Entry | None:
        before = shelf.entries.pop(name, None) if shelf is not None else None
        if before is not None and shelf is not None:
            shelf.order = None
            if not shelf.entries:
                del shelves[namespace]
        return before

    def count(self, kind: Kind, namespace: str = "") -> int:
        """How many there are of a kind, in one namespace or in all."""
        return sum(len(shelf.entries) for shelf in self._chosen(kind, namespace))

    def select(self, selection: Selection) -> list[Entry]:
        """All objects of a selection in the order of their keys."""
        kind, namespace = selection.kind, selection.namespace
        if selection.name is not None and (namespace or not kind.namespaced):
            entry = self.get(kind, namespace, selection.name)
            return [entry] if entry is not None and selection.matches(entry) else []
        place = selection.place
        if place is not None and place[0] > NAMESPACE_AT:
            found = self._index(kind, place[0]).of(place[1])
            return [entry for entry in found if selection.matches(entry)]
        found = [e for shelf in self._chosen(kind, namespace) for e in shelf.ordered()]
        if selection.is_everything:
            return found
        return [entry for entry in found if selection.matches(entry)]

    def _index(self, kind: Kind, at: int) -> _Index:
        indexes = self._indexes[kind.plural]
        if at not in indexes:
            shelves = self._shelves[kind.plural].values()
            indexes[at] = _Index(at, (it for shelf in shelves for it in shelf.entries.values()))
        return indexes[at]

    def _chosen(self, kind: Kind, namespace: str) -> Iterable[_Shelf]:
        shelves = self._shelves[kind.plural]
        if namespace or not kind.namespaced:
            shelf = shelves.get(namespace)
            return (shelf,) if shelf is not None else ()
        # A namespace ends with a slash in the key, which is greater than a hyphen.
        return [shelves[name] for name in sorted(shelves, key=lambda name: f"{name}/")]
