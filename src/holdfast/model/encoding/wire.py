"""Encodes objects to bytes and decodes bytes to objects. No other module does.

Shells call this once per request, store read or watch event; all other code works on typed objects.
There are two decoders, by the origin of the bytes:

- `decode_trusted` reads what Holdfast stored itself.
- `decode` reads what a client sent. A document that equals the encoding of its decoded object is
  self-proving: it has no unknown field, no duplicate key, no NaN, nothing that the object lacks.
  The components of Holdfast send such bytes, and theirs are most requests. All other documents go
  through `json_guard.parse` and `conform`, which also explain what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, overload

import msgspec

from holdfast.model.encoding.conform import AnyStruct, Decoded, conform, hides_values, normal
from holdfast.model.encoding.json_guard import NODES_MAX, has_long_integer, measure, parse
from holdfast.model.encoding.struct_checks import struct_check
from holdfast.model.encoding.unknown_fields import integers_bounded
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_VERSION, Object
from holdfast.model.registry import KINDS

__all__ = [
    "Decoded",
    "conform",
    "decode",
    "decode_tree",
    "decode_trusted",
    "encode",
    "normal",
    "prepare",
    "readable",
]

_encoder = msgspec.json.Encoder()

# Each value needs at least one byte, so a document of this size cannot have too many values and
# need not be measured before it is decoded.
_UNMEASURED_BYTES_MAX = NODES_MAX


def encode(obj: msgspec.Struct) -> bytes:
    """The object as JSON. Equal objects have equal bytes if both are `normal`."""
    return _encoder.encode(obj)


class _Reader(msgspec.Struct, Generic[AnyStruct], frozen=True):
    """The decoder of one struct, and facts that are known before any document arrives.

    `opening` is the start of every encoding of the struct. `integers_bounded` means that its types
    keep all integers within ±2^53.
    """

    decode: Callable[[bytes], AnyStruct]
    opening: bytes
    integers_bounded: bool


@cache
def _reader(cls: type[AnyStruct]) -> _Reader[AnyStruct]:
    config = cls.__struct_config__
    opening = "{" if config.tag is None else f'{{"{config.tag_field}":"{config.tag}",'
    return _Reader(msgspec.json.Decoder(cls).decode, opening.encode(), integers_bounded(cls))


def prepare() -> None:
    """Builds the decoders and checks of every kind, which takes a tenth of a second.

    A server calls it before it listens; otherwise the first request of each kind would be slow.
    """
    for kind in KINDS:
        _reader(kind.struct)
        struct_check(kind.struct)


def decode_trusted(cls: type[AnyStruct], data: bytes) -> AnyStruct:
    """Decodes an object from bytes that `encode` made and the store kept."""
    reader: _Reader[AnyStruct] = _reader(cls)
    return reader.decode(data)


def readable(cls: type[AnyStruct], data: bytes) -> AnyStruct | None:
    """The same, or None if this version cannot read it: damaged, or from a newer version.

    For callers that read many objects: an unreadable one must not hide the others.
    """
    try:
        return decode_trusted(cls, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@overload
def decode(kind: type[AnyStruct], data: bytes, *, strict: bool) -> Decoded[AnyStruct]: ...
@overload
def decode(kind: Kind, data: bytes, *, strict: bool) -> Decoded[Object]: ...
def decode(kind: Any, data: bytes, *, strict: bool) -> Decoded[Any]:
    """Decodes an object from a client's bytes. Raises Invalid that names every problem.

    Under `strict` an unknown field is a problem; otherwise it is left out and a warning says so.
    """
    cls = kind.struct if isinstance(kind, Kind) else kind
    typed = _self_proving(cls, data)
    if typed is not None:
        return Decoded(typed)
    return conform(cls, parse(data, hide_values=hides_values(cls)), strict=strict)


def decode_tree(data: bytes) -> Any:
    """Parses a document to dicts, lists and scalars, for patches.

    The patched object may be a Secret, so errors show no values.
    """
    return parse(data, hide_values=True)


def _self_proving(cls: type[AnyStruct], data: bytes) -> AnyStruct | None:
    """The object, if the document is its exact encoding within all limits; otherwise None."""
    reader: _Reader[AnyStruct] = _reader(cls)
    if not data.startswith(reader.opening):
        return None
    if len(data) > _UNMEASURED_BYTES_MAX:
        measure(data)
    try:
        typed = reader.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if _encoder.encode(typed) != data:
        return None
    # Two things that an object can hold and that no document may contain.
    if b"\\" in data and b"\\u0000" in data:
        return None
    if not reader.integers_bounded and has_long_integer(data):
        return None
    if not isinstance(typed, Object):
        return typed
    # A pattern's $ lets a line break follow, so the type alone does not settle this.
    if typed.api_version != API_VERSION:
        return None
    # The types bound the depth, except below the one field that takes any JSON.
    if typed.metadata.managed_fields:
        measure(data)
        if has_long_integer(data):
            return None
    return typed
