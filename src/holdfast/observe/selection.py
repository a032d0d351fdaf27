"""Which objects a list or a watch is about: a kind, a namespace, labels and fields.

The HTTP server makes a selection from a request; the watch hub matches entries against it. `place`
is the one condition by which most watchers are found without testing each: with a thousand
watchers, each of one node, an event concerns one or two of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.encoding.wire import readable
from holdfast.model.kind_declaration import Kind
from holdfast.model.selection.field_selector import FieldRequirement, FieldSelector, selects_fields
from holdfast.model.selection.selectors import LabelSelector, selects
from holdfast.observe.entries import ObjectEntry, kept_paths
from holdfast.observe.partial_decode import thin_decoder

# The position among the kept fields, and the value there. None matches everywhere.
Place = tuple[int, str] | None
NAME_AT = 0
NAMESPACE_AT = 1
# Decoded objects take about ten times as much memory as their bytes.
DECODINGS_BYTES_MAX = 4 << 20


class Decodings:
    """The last objects that were decoded for selectors of watches.

    However many watches select by fields that are not kept, each change is decoded once; its
    previous state was decoded when that was the current one.
    """

    def __init__(self, bytes_max: int = DECODINGS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # By plural, namespace, name and revision; with the size of its bytes.
        self._decoded: dict[tuple[str, str, str, int], tuple[int, Any]] = {}
        self.made = 0

    def of(self, kind: Kind, entry: ObjectEntry) -> Any:
        """The object of an entry, or None if it cannot be decoded."""
        key = (kind.plural, entry.namespace, entry.name, entry.revision)
        found = self._decoded.get(key)
        if found is None:
            self.made += 1
            found = (len(entry.data), readable(kind.struct, entry.data))
            self._decoded[key] = found
            self._bytes += found[0]
            while self._bytes > self._bytes_max and len(self._decoded) > 1:
                size, _ = self._decoded.pop(next(iter(self._decoded)))
                self._bytes -= size
        return found[1]


class ObjectSelection:
    """An immutable test of entries. An empty namespace means all namespaces."""

    __slots__ = (
        "_decoded",
        "_kept",
        "_labels",
        "_thin",
        "is_unconditional",
        "kind",
        "namespace",
    )

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
        self._thin = thin_decoder(kind, tuple(f.attributes for f in self._decoded))
        # Every object of the kind in every namespace. Precomputed: asked per event and watcher.
        self.is_unconditional = not kept and self.is_by_place

    @property
    def is_everything(self) -> bool:
        """Whether every object of the kind and namespace is selected."""
        return self.is_by_place and len(self._kept) == bool(self.namespace)

    @property
    def is_by_place(self) -> bool:
        """Whether only kept fields are tested."""
        return self._labels is None and not self._decoded

    @property
    def decodes(self) -> bool:
        """Whether an object must be decoded to know whether it is selected."""
        return bool(self._decoded)

    @property
    def name(self) -> str | None:
        """The one name that is selected, if there is one."""
        return next((v for at, v, equal in self._kept if at == NAME_AT and equal), None)

    def value_at(self, position: int) -> str | None:
        """The value that a kept field must have, if one is given."""
        return next((v for at, v, equal in self._kept if at == position and equal), None)

    @property
    def place(self) -> Place:
        """The most selective condition: what an object belongs to, its name, or its namespace."""
        equals = [(at, value) for at, value, equal in self._kept if equal]
        return max(equals, key=lambda it: (it[0] != NAMESPACE_AT, it[0]), default=None)

    def matches(self, entry: ObjectEntry, decodings: Decodings | None = None) -> bool:
        """Whether the object is selected. `decodings` has what was decoded for others."""
        fields = entry.fields
        for at, value, equal in self._kept:
            if (fields[at] == value) is not equal:
                return False
        if self._labels is not None and not selects(self._labels, entry.labels):
            return False
        if not self._decoded:
            return True
        obj = decodings.of(self.kind, entry) if decodings is not None else None
        if obj is not None:
            return selects_fields(self._decoded, obj)
        try:
            # These fields may be readable even if the object as a whole is not.
            return selects_fields(self._decoded, self._thin(entry.data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # An unreadable object matches no condition that requires decoding it.
            return False
