"""What one decision looks at: objects, up to which revision they are known, and how old that is.

Schedulers, controllers and explanations get one for each step; `propose/fleet_snapshot.py` adds the
nodes as columns. Nothing in it changes during a decision, and it never authorises anything.

A snapshot is also a hypothesis: `with_objects` and `without` give another snapshot in which some
objects are different, and share the rest with this one. So the question "what if" is asked of the
same functions as the question "what now".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import msgspec

from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.meta import Object
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS, is_too_old
from holdfast.model.registry import kind_of
from holdfast.observe.indexer import Index, Key, key_of
from holdfast.observe.reflector import ObjectChange


class Objects(Protocol):
    """Where objects are looked up. A `Cache` is one."""

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        ...

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which they became known."""
        ...

    def found(self, index: Index, value: str) -> list[Any]:
        """The objects under a value of an index, by namespace and name."""
        ...

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has an object under a value for which `is_meant` holds."""
        ...


class ObjectTable:
    """Objects that are all given at once, such as those of a past revision."""

    def __init__(self, objects: Mapping[str, Iterable[Any]]) -> None:
        self._by_plural = {
            plural: {key_of(obj): obj for obj in some} for plural, some in objects.items()
        }

    def get(self, plural: str, namespace: str, name: str) -> Any:
        return self._by_plural.get(plural, {}).get((namespace, name))

    def all(self, plural: str) -> Iterator[Any]:
        return iter(self._by_plural.get(plural, {}).values())

    def found(self, index: Index, value: str) -> list[Any]:
        matching = (it for it in self.all(index.plural) if value in index.of(it))
        return sorted(matching, key=key_of)

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        return any(is_meant(it) for it in self.found(index, value))


class Snapshot(msgspec.Struct, frozen=True):
    """See the module's docstring. Everything up to `revision` is known, of every kind.

    `age_ms` is how long ago the servers last sent anything, and `age_max_ms` the greatest age on
    which the plane allows decisions. `supposed` has the objects that are different by hypothesis,
    by plural; None is one that is gone. `abroad` has the snapshots of other planes, by name, as far
    as they were ever listed: each has a revision and an age of its own.
    """

    objects: Objects
    revision: int = 0
    age_ms: int = 0
    age_max_ms: int = OBSERVATION_AGE_MAX_MS
    supposed: Mapping[str, Mapping[Key, Any]] = {}
    abroad: Mapping[str, Snapshot] = {}

    @property
    def is_too_old(self) -> bool:
        """Whether nothing may be decided on it."""
        return is_too_old(self.age_ms, self.age_max_ms)

    def of(self, plane: str) -> Snapshot | None:
        """The snapshot of another plane, or this one for the empty name; None if never listed."""
        return self.abroad.get(plane) if plane else self

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        changed = self.supposed.get(plural)
        if changed is not None and (namespace, name) in changed:
            return changed[namespace, name]
        return self.objects.get(plural, namespace, name)

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which they became known."""
        changed = self.supposed.get(plural)
        if changed is None:
            return self.objects.all(plural)
        kept = [it for it in self.objects.all(plural) if key_of(it) not in changed]
        return iter([*kept, *(it for it in changed.values() if it is not None)])

    def found(self, index: Index, value: str) -> list[Any]:
        """The objects under a value of an index, by namespace and name."""
        found = self.objects.found(index, value)
        changed = self.supposed.get(index.plural)
        if changed is None:
            return found
        kept = [it for it in found if key_of(it) not in changed]
        put = [it for it in changed.values() if it is not None and value in index.of(it)]
        return sorted([*kept, *put], key=key_of)

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has an object under a value for which `is_meant` holds."""
        if index.plural in self.supposed:
            return any(is_meant(it) for it in self.found(index, value))
        return self.objects.has(index, value, is_meant)

    def knows_all_of(self, obj: Object) -> bool:
        """Whether everything is known that existed when this object was last written.

        Each kind has its own watch stream. The absence of another object proves something only if
        this holds.
        """
        return object_revision(obj.metadata.resource_version) <= self.revision

    # Hypotheses ----------------------------------------------------------------------------------

    def with_objects(self, *objects: Object) -> Self:
        """The same, if these objects were created, or replaced those of their names."""
        return self._suppose([change for it in objects for change in self._changes(it, it)])

    def without(self, *objects: Object) -> Self:
        """The same, if these objects were gone."""
        return self._suppose([change for it in objects for change in self._changes(it, None)])

    def _changes(self, obj: Object, after: Object | None) -> Iterator[ObjectChange]:
        plural = kind_of(obj).plural
        before: Object | None = self.get(plural, *key_of(obj))
        if before is not None and after is not None and before.metadata.uid != after.metadata.uid:
            # As a cache reports it: the old one is gone, and then the new one is there.
            yield ObjectChange(plural, before, None)
            before = None
        if before is not None or after is not None:
            yield ObjectChange(plural, before, after)

    def _suppose(self, changes: Sequence[ObjectChange]) -> Self:
        supposed = {plural: dict(some) for plural, some in self.supposed.items()}
        for change in changes:
            supposed.setdefault(change.plural, {})[key_of(change.object)] = change.after
        return msgspec.structs.replace(self, supposed=supposed)
