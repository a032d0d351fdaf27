"""How responses present objects: a form is a facade and a shape.

The watch hub asks for the object of an event in a form; lists and reads ask for whole responses. A
plain object is the hub's own bytes, without decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.host.api.objects import core_names, table_answers
from holdfast.host.api.objects.negotiation import JSON, PARTIAL, TABLE
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.encoding.wire import readable
from holdfast.model.kind_declaration import Kind
from holdfast.observe.watch_events import bookmark_annotations

_SEPARATOR = "/"
_STORED = "stored:"
_ENCODER = msgspec.json.Encoder()


class _Metadata(msgspec.Struct):
    """The part of an object that is cut out unchanged."""

    metadata: msgspec.Raw


_METADATA = msgspec.json.Decoder(_Metadata)


class ListMetadata(msgspec.Struct, frozen=True):
    """The metadata of a list, or of the table that shows one object."""

    version: str
    more_from: str = ""
    remaining: int | None = None


def form_of(facade: str, shape: str) -> str:
    """The name of a form, as watches are opened with it."""
    return f"{facade}{_SEPARATOR}{shape}" if facade or shape else ""


def stored_form_of(facade: str, shape: str) -> str:
    """The form in which objects are as stored and bookmarks as in `form_of`.

    For watches whose reader fills in what is not stored.
    """
    return _STORED + form_of(facade, shape)


class Forms:
    """The hub's presentation."""

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        """As `observe.recent_changes.Presentation` has it."""
        if not form or form.startswith(_STORED):
            return data
        facade, _, shape = form.partition(_SEPARATOR)
        return one(facade, shape, kind, data)

    def bookmark(
        self, form: str, kind: Kind, revision: int, listed: int | None, within_ms: int | None
    ) -> bytes:
        """As `observe.recent_changes.Presentation` has it."""
        facade, _, shape = form.removeprefix(_STORED).partition(_SEPARATOR)
        names = core_names.names(facade, kind)
        called, version = names.kind, names.api_version
        if shape == PARTIAL:
            called, version = "PartialObjectMetadata", table_answers.TABLE_API_VERSION
        elif shape.startswith(TABLE):
            called, version = "Table", table_answers.TABLE_API_VERSION
        metadata: dict[str, object] = {
            "resourceVersion": complete_version(revision),
            "creationTimestamp": None,
        }
        annotations = bookmark_annotations(listed, within_ms)
        if annotations:
            metadata["annotations"] = annotations
        body: dict[str, object] = {"kind": called, "apiVersion": version, "metadata": metadata}
        if called == "Table":
            body |= {"columnDefinitions": [], "rows": []}
        return _ENCODER.encode(body)


class Rendering:
    """A list in a form: its head, an item for each object, and its tail.

    It renders one object at a time, so that the caller can rest during a long list. `is_plain` says
    that the items are the hub's own bytes.
    """

    __slots__ = ("_facade", "_include", "_kind", "_now", "_shape", "head", "is_plain")

    tail = table_answers.ENDING

    def __init__(self, facade: str, shape: str, kind: Kind, listing: ListMetadata) -> None:
        self._facade, self._shape, self._kind = facade, shape, kind
        self._include, self._now = shape.removeprefix(TABLE), datetime.now(UTC)
        self.is_plain = not facade and shape == JSON
        self.head = self._table_head(listing) if self._is_table else self._list_head(listing)

    @property
    def _is_table(self) -> bool:
        return self._shape.startswith(TABLE)

    def _list_head(self, listing: ListMetadata) -> bytes:
        names = core_names.names(self._facade, self._kind)
        called, version = f"{names.kind}List", names.api_version
        if self._shape == PARTIAL:
            called, version = "PartialObjectMetadataList", table_answers.TABLE_API_VERSION
        metadata: dict[str, object] = {"resourceVersion": listing.version}
        if listing.more_from:
            metadata["continue"] = listing.more_from
        if listing.remaining is not None:
            metadata["remainingItemCount"] = listing.remaining
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[' % (
            called.encode(),
            version.encode(),
            _ENCODER.encode(metadata),
        )

    def _table_head(self, listing: ListMetadata) -> bytes:
        if self._facade == core_names.NAMESPACE:
            columns = core_names.namespace_definitions()
        elif self._facade == core_names.POD:
            columns = core_names.definitions()
        else:
            columns = table_answers.definitions(self._kind)
        return table_answers.opening(columns, listing.version, listing.more_from, listing.remaining)

    def item(self, data: bytes) -> bytes:
        """One object; empty if it cannot be decoded. `holdfast status` names those."""
        if self._is_table:
            return self._row(data)
        return _partial(data) if self._shape == PARTIAL else core_names.present(self._facade, data)

    def _row(self, data: bytes) -> bytes:
        obj: Any = readable(self._kind.struct, data)
        if obj is None:
            return b""
        if self._facade == core_names.NAMESPACE:
            return core_names.namespace_row(obj, self._now, self._include)
        if self._facade == core_names.POD:
            return core_names.row(obj, self._now, self._include)
        return table_answers.row(self._kind, obj, self._now, self._include)

    def whole(self, objects: Sequence[bytes]) -> bytes:
        """The whole response, for few objects."""
        items = [it for data in objects if (it := self.item(data))]
        return b"%b%b%b" % (self.head, b",".join(items), self.tail)


def one(facade: str, shape: str, kind: Kind, data: bytes) -> bytes:
    """One object in the given shape."""
    if shape == JSON:
        return core_names.present(facade, data)
    if shape == PARTIAL:
        return _partial(data)
    return Rendering(facade, shape, kind, ListMetadata(_version(data))).whole([data])


def _partial(data: bytes) -> bytes:
    return b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%b}' % (
        bytes(_METADATA.decode(data).metadata)
    )


class _Versioned(msgspec.Struct):
    resource_version: str = msgspec.field(default="0", name="resourceVersion")


def _version(data: bytes) -> str:
    metadata = msgspec.json.decode(_METADATA.decode(data).metadata, type=_Versioned)
    return metadata.resource_version
