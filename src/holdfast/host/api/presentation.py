"""How objects look in answers: each form is a facade and a shape.

The watch hub asks for the object of an event in a form, lists and reads ask for whole answers. A
plain object is the hub's own bytes; nothing is decoded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.host.api import facades, pods, tables
from holdfast.host.api.negotiation import JSON, PARTIAL, TABLE
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.registry import Kind
from holdfast.model.versions import complete_version
from holdfast.model.wire import decode_trusted
from holdfast.observe.news import LIST_ENDS, LISTED

_SEPARATOR = "/"
_ENCODER = msgspec.json.Encoder()


class _Metadata(msgspec.Struct):
    """The one part of an object that is cut out as it is."""

    metadata: msgspec.Raw


_METADATA = msgspec.json.Decoder(_Metadata)


class Listing(msgspec.Struct, frozen=True):
    """What a list says about itself, and the table of one object about that."""

    version: str
    more_from: str = ""
    remaining: int | None = None


def form_of(facade: str, shape: str) -> str:
    """The name of a form, as watches are opened with it."""
    return f"{facade}{_SEPARATOR}{shape}" if facade or shape else ""


class Forms:
    """The hub's presentation."""

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        """As `observe.window.Presentation` has it."""
        if not form:
            return data
        facade, _, shape = form.partition(_SEPARATOR)
        return one(facade, shape, kind, data)

    def bookmark(self, form: str, kind: Kind, revision: int, listed: int | None) -> bytes:
        """As `observe.window.Presentation` has it."""
        facade, _, shape = form.partition(_SEPARATOR)
        names = facades.names(facade, kind)
        called, version = names.kind, names.api_version
        if shape == PARTIAL:
            called, version = "PartialObjectMetadata", tables.TABLE_API_VERSION
        elif shape.startswith(TABLE):
            called, version = "Table", tables.TABLE_API_VERSION
        metadata: dict[str, object] = {
            "resourceVersion": complete_version(revision),
            "creationTimestamp": None,
        }
        if listed is not None:
            metadata["annotations"] = {LIST_ENDS: "true", LISTED: str(listed)}
        body: dict[str, object] = {"kind": called, "apiVersion": version, "metadata": metadata}
        if called == "Table":
            body |= {"columnDefinitions": [], "rows": []}
        return _ENCODER.encode(body)


def one(facade: str, shape: str, kind: Kind, data: bytes) -> bytes:
    """One object."""
    if shape == JSON:
        return facades.shown(facade, data)
    if shape == PARTIAL:
        return _partial(data)
    return _table(facade, shape, kind, [data], Listing(_version(data)))


def head(facade: str, shape: str, kind: Kind, listing: Listing) -> bytes:
    """The beginning of a list that is not a table, up to its items; `]}` ends it."""
    names = facades.names(facade, kind)
    called, version = f"{names.kind}List", names.api_version
    if shape == PARTIAL:
        called, version = "PartialObjectMetadataList", tables.TABLE_API_VERSION
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


def items(facade: str, shape: str, objects: Sequence[bytes]) -> Sequence[bytes]:
    """The items of such a list."""
    if shape == PARTIAL:
        return [_partial(data) for data in objects]
    if not facade:
        return objects
    return [facades.shown(facade, data) for data in objects]


def table(facade: str, shape: str, kind: Kind, objects: Sequence[bytes], listing: Listing) -> bytes:
    """A list as a table."""
    return _table(facade, shape, kind, objects, listing)


def _table(
    facade: str, shape: str, kind: Kind, objects: Sequence[bytes], listing: Listing
) -> bytes:
    include, now = shape.removeprefix(TABLE), datetime.now(UTC)
    if facade == facades.NAMESPACE:
        return facades.namespace_table(
            [decode_trusted(Tenant, data) for data in objects],
            now=now,
            version=listing.version,
            include=include,
            more_from=listing.more_from,
        )
    if facade == facades.POD:
        return pods.table(
            [decode_trusted(Replica, data) for data in objects],
            now=now,
            version=listing.version,
            include=include,
            more_from=listing.more_from,
        )
    return tables.table(
        kind,
        [decode_trusted(kind.struct, data) for data in objects],
        now=now,
        version=listing.version,
        include=include,
        more_from=listing.more_from,
        remaining=listing.remaining,
    )


def _partial(data: bytes) -> bytes:
    return b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%b}' % (
        bytes(_METADATA.decode(data).metadata)
    )


class _Versioned(msgspec.Struct):
    resource_version: str = msgspec.field(default="0", name="resourceVersion")


def _version(data: bytes) -> str:
    metadata = msgspec.json.decode(_METADATA.decode(data).metadata, type=_Versioned)
    return metadata.resource_version
