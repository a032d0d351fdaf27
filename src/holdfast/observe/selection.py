"""Which objects a list or a watch is about: a kind, a namespace, labels and fields.

The HTTP server makes a selection from a request, the hub holds entries against it. `place` names
the one condition by which most objects can be told apart without looking at the watcher at all:
with a thousand watchers, each of one node, an event concerns one or two of them.
"""

from __future__ import annotations

from holdfast.model.field_selector import FieldRequirement, FieldSelector, selects_fields
from holdfast.model.registry import Kind
from holdfast.model.selectors import LabelSelector, selects
from holdfast.model.wire import decode_trusted
from holdfast.observe.entries import Entry, kept_paths

# Position among the kept fields, and the value there. The empty place is everywhere.
Place = tuple[int, str] | None
NAME_AT = 0
NAMESPACE_AT = 1


class Selection:
    """An immutable test of entries. An empty namespace means all of them."""

    __slots__ = ("_decoded", "_kept", "_labels", "is_unconditional", "kind", "namespace")

    def __init__(
        self,
        kind: Kind,
        namespace: str = "",
        labels: LabelSelector | None = None,
        fields: FieldSelector = (),
    ) -> None:
        self.kind, self.namespace = kind, namespace
        self._labels = labels if labels is not None and labels != LabelSelector() else None
        paths = kept_paths(kind)
        kept = [(paths.index(f.path), f.value, f.equal) for f in fields if f.path in paths]
        if namespace:
            kept.append((NAMESPACE_AT, namespace, True))
        self._kept = tuple(kept)
        self._decoded: tuple[FieldRequirement, ...] = tuple(
            f for f in fields if f.path not in paths
        )
        # Every object of the kind, in whichever namespace: asked for every event and watcher.
        self.is_unconditional = not kept and self.is_by_place

    @property
    def is_everything(self) -> bool:
        """Whether every object of the kind and namespace is selected."""
        return self.is_by_place and len(self._kept) == bool(self.namespace)

    @property
    def is_by_place(self) -> bool:
        """Whether only kept fields are looked at."""
        return self._labels is None and not self._decoded

    @property
    def name(self) -> str | None:
        """The one name that is selected, if there is one."""
        return next((v for at, v, equal in self._kept if at == NAME_AT and equal), None)

    @property
    def place(self) -> Place:
        """The condition that says most: what an object belongs to, its name, its namespace."""
        equals = [(at, value) for at, value, equal in self._kept if equal]
        return max(equals, key=lambda it: (it[0] != NAMESPACE_AT, it[0]), default=None)

    def matches(self, entry: Entry) -> bool:
        """Whether the object is one of those."""
        fields = entry.fields
        for at, value, equal in self._kept:
            if (fields[at] == value) is not equal:
                return False
        if self._labels is not None and not selects(self._labels, entry.labels):
            return False
        if not self._decoded:
            return True
        return selects_fields(self._decoded, decode_trusted(self.kind.struct, entry.data))
