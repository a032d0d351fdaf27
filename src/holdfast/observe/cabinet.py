"""All current objects as entries, by kind, namespace and name: what reads are answered from.

The hub puts in what the store's watch brings. Lists come out in the order of the store's keys, so
that a first page from here and a second one from the store fit together.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import keys
from holdfast.model.registry import KINDS, Kind
from holdfast.observe.entries import Entry
from holdfast.observe.selection import Selection

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


class Cabinet:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._shelves: dict[str, dict[str, _Shelf]] = {kind.plural: {} for kind in KINDS}

    def get(self, kind: Kind, namespace: str, name: str) -> Entry | None:
        """One object, or None."""
        shelf = self._shelves[kind.plural].get(namespace)
        return shelf.entries.get(name) if shelf is not None else None

    def put(self, kind: Kind, namespace: str, name: str, entry: Entry | None) -> Entry | None:
        """Replace an object, or take it out with None. Returns what was there before."""
        shelves = self._shelves[kind.plural]
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
        found = [e for shelf in self._chosen(kind, namespace) for e in shelf.ordered()]
        if selection.is_everything:
            return found
        return [entry for entry in found if selection.matches(entry)]

    def _chosen(self, kind: Kind, namespace: str) -> Iterable[_Shelf]:
        shelves = self._shelves[kind.plural]
        if namespace or not kind.namespaced:
            shelf = shelves.get(namespace)
            return (shelf,) if shelf is not None else ()
        # A namespace ends with a slash in the key, which is greater than a hyphen.
        return [shelves[name] for name in sorted(shelves, key=lambda name: f"{name}/")]
