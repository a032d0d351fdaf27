"""The objects of one kind that a cache knows, by name and by the indexes its owner asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.model.errors import invariant
from holdfast.model.meta import Object

Key = tuple[str, str]
IndexFunction = Callable[[Any], Iterable[str]]


class Index(msgspec.Struct, frozen=True):
    """Objects of a kind by the values that `of` returns; indexes of one name are the same index."""

    plural: str
    name: str
    of: IndexFunction


# For a value with at least this many keys, the sorted order is kept.
MANY = 256


def key_of(obj: Object) -> Key:
    """The object's namespace and name."""
    metadata = obj.metadata
    return metadata.namespace, metadata.name


class Indexer:
    """Objects in the order in which they became known, each with its revision."""

    __slots__ = ("_indexes", "objects", "revisions")

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.revisions: dict[Key, int] = {}
        self._indexes: dict[str, _Index] = {}

    def index(self, name: str, index_function: IndexFunction) -> None:
        """Add an index. The result of `index_function` must depend on the object alone."""
        invariant(not self.objects, f"index {name} was added after the first object")
        self._indexes[name] = _Index(index_function)

    def found(self, index: str, value: str) -> list[Object]:
        """The objects that an index has under a value, by namespace and name."""
        return [self.objects[key] for key in self._indexes[index].ordered(value)]

    def has(self, index: str, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has a matching object under a value. The order does not matter."""
        keys = self._indexes[index].keys.get(value, ())
        return any(is_meant(self.objects[key]) for key in keys)

    def put(self, key: Key, after: Object | None, revision: int) -> Object | None:
        """Store the new state of an object. Returns the previous one."""
        before = self.objects.get(key)
        for index in self._indexes.values():
            index.change(key, before, after)
        if after is not None:
            self.objects[key] = after
            self.revisions[key] = revision
        elif before is not None:
            del self.objects[key], self.revisions[key]
        return before


class _Index:
    """Keys by value. Keys are always returned sorted, since the order of a set is arbitrary."""

    __slots__ = ("_orders", "index_function", "keys")

    def __init__(self, index_function: IndexFunction) -> None:
        self.index_function = index_function
        self.keys: dict[str, set[Key]] = {}
        # For values with many keys: the keys returned last, in order.
        self._orders: dict[str, list[Key]] = {}

    def ordered(self, value: str) -> Iterable[Key]:
        """The keys under a value, in order."""
        keys = self.keys.get(value, ())
        if len(keys) < MANY:
            # Usually there is one key, and nothing to sort.
            return sorted(keys) if len(keys) > 1 else keys
        known = [key for key in self._orders.get(value, ()) if key in keys]
        if len(known) < len(keys):
            # Sorting a list that is nearly sorted takes one pass instead of a dozen.
            known += sorted(set(keys).difference(known))
            known.sort()
        self._orders[value] = known
        return known

    def change(self, key: Key, before: Object | None, after: Object | None) -> None:
        old = tuple(self.index_function(before)) if before is not None else ()
        new = tuple(self.index_function(after)) if after is not None else ()
        if old == new:
            return
        for value in old:
            there = self.keys.get(value)
            if there is not None:
                there.discard(key)
                if len(there) < MANY:
                    self._orders.pop(value, None)
                if not there:
                    del self.keys[value]
        for value in new:
            self.keys.setdefault(value, set()).add(key)
