"""The one place where objects become bytes and bytes become objects.

Shells call this once per request, store read or watch event; everything inside works on typed
objects. There are two ways in, by who wrote the bytes:

- `decode_trusted` reads what this very program stored.
- `decode` reads what anybody sent. A document that equals the encoding of what it decodes to proves
  itself: it has no unknown field, no duplicate key, no NaN, nothing that the object does not have
  too. The components of Holdfast send such bytes, and theirs are most of all requests. Everything
  else goes through `guard.parse` and `conform`, which also explain what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, overload

import msgspec

from holdfast.model.encoding.checks import struct_check
from holdfast.model.encoding.conform import AnyStruct, Decoded, conform, hides_values, normal
from holdfast.model.encoding.json_guard import NODES_MAX, has_long_integer, measure, parse
from holdfast.model.encoding.unknown_fields import integers_bounded
from holdfast.model.meta import API_VERSION, Object
from holdfast.model.registry import KINDS, Kind

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

# Each value takes a byte at least, so a document of so many bytes cannot have too many of them and
# need not be measured before it is decoded.
_UNMEASURED_BYTES_MAX = NODES_MAX


def encode(obj: msgspec.Struct) -> bytes:
    """The object as JSON. Equal objects have equal bytes if both are `normal`."""
    return _encoder.encode(obj)


class _Reader(msgspec.Struct, Generic[AnyStruct], frozen=True):
    """What reading one struct needs: its decoder, and what is known before any document arrives.

    `opening` is how every encoding of the struct begins. `integers_bounded` says that its types
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
    """Build what reading needs for every kind, which takes a tenth of a second.

    A server calls it before it listens; otherwise the first request of each kind would pay.
    """
    for kind in KINDS:
        _reader(kind.struct)
        struct_check(kind.struct)


def decode_trusted(cls: type[AnyStruct], data: bytes) -> AnyStruct:
    """An object from bytes that `encode` made and our own store kept."""
    reader: _Reader[AnyStruct] = _reader(cls)
    return reader.decode(data)


def readable(cls: type[AnyStruct], data: bytes) -> AnyStruct | None:
    """The same, or None where this version cannot read it: damaged, or of a newer version.

    For those who look through many objects: one that cannot be read must not hide the others.
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
    """An object from bytes that anybody may have sent. Raises Invalid that names every problem.

    Under `strict` an unknown field is a problem; otherwise it is left out and a warning says so.
    """
    cls = kind.struct if isinstance(kind, Kind) else kind
    typed = _self_proving(cls, data)
    if typed is not None:
        return Decoded(typed)
    return conform(cls, parse(data, hide_values=hides_values(cls)), strict=strict)


def decode_tree(data: bytes) -> Any:
    """A guarded document as dicts, lists and scalars, for patches.

    What it will be part of is not known here and may be a Secret, so errors show no values.
    """
    return parse(data, hide_values=True)


def _self_proving(cls: type[AnyStruct], data: bytes) -> AnyStruct | None:
    """The object, if the document is its very encoding and keeps all limits. None: look closer."""
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
    # Two things that an object can hold and that no document may bring in.
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
