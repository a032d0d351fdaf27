"""Shapes: how the parts of an object are compared and merged.

A tree alone does not say whether `env` is a list to be replaced or a map by name, nor that a
missing `replicas` means 1. Shapes do. They are built once per kind from its structs and from the
table of `model/encoding/list_maps.py`, which the schema and the validation read as well.

Trees leave out fields at their default, as everything on the wire does. So "absent" and "default"
are the same to users of shapes, and a client that states a default changes nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import msgspec
from msgspec import inspect

from holdfast.model.encoding.list_maps import ATOMIC_STRUCTS, ListType, list_rule
from holdfast.model.encoding.struct_types import struct_type
from holdfast.model.meta import Object, ObjectMeta

# Only these metadata fields have owners; the rest is the server's or never changes.
TRACKED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
# Fields that identify the object's type cannot be owned.
_IDENTITY = frozenset({"apiVersion", "kind"})


class Shape(msgspec.Struct, frozen=True):
    """How a value is compared and merged. The base shape: as a whole."""


class TimestampShape(Shape, frozen=True):
    """A timestamp as text. Several texts mean the same time."""


class FieldShape(msgspec.Struct, frozen=True):
    """A field of a record.

    `default` is the meaning of its absence, as a tree; None stands for no value. `standing` says
    that it has parts and that its absence means an empty one: labels always exist, even if empty,
    while an empty drain is not the same as none.
    """

    element: str
    shape: Shape
    default: Any = None
    required: bool = False
    standing: bool = False


class RecordShape(Shape, frozen=True):
    """A struct: each field by itself. `untracked` fields have no owner."""

    slots: dict[str, FieldShape]
    untracked: frozenset[str] = frozenset()


class MapShape(Shape, frozen=True):
    """A map with keys that its users choose, such as labels."""

    value: Shape


class KeyedListShape(Shape, frozen=True):
    """A list that is a map: items are identified by keys, each with its default if it has one."""

    keys: tuple[tuple[str, Any], ...]
    item: RecordShape


class SetShape(Shape, frozen=True):
    """A list of plain values whose order has no meaning."""


class FreeShape(Shape, frozen=True):
    """A value without a known structure: objects by their keys, lists by position."""


WHOLE = Shape()
MOMENT = TimestampShape()
FREE = FreeShape()


def has_parts(shape: Shape) -> bool:
    """Whether such a value consists of fields that can have different owners."""
    return isinstance(shape, _WITH_PARTS)


_WITH_PARTS = (RecordShape, MapShape, KeyedListShape, SetShape)


@cache
def shape_of(struct: type[Object]) -> RecordShape:
    """The shape of a kind's objects."""
    record = _record(struct)
    slots = {name: slot for name, slot in record.slots.items() if name not in _IDENTITY}
    # Every object has metadata, so the metadata itself has no owner.
    slots["metadata"] = msgspec.structs.replace(slots["metadata"], default={}, standing=True)
    return RecordShape(slots, _IDENTITY)


@cache
def _record(struct: type[msgspec.Struct]) -> RecordShape:
    fields = struct_type(struct).fields
    slots = {field.encode_name: _slot(struct, field) for field in fields}
    if struct is not ObjectMeta:
        return RecordShape(slots)
    tracked = {name: slots[name] for name in TRACKED_METADATA}
    return RecordShape(tracked, frozenset(slots) - frozenset(tracked))


def _slot(struct: type[msgspec.Struct], field: inspect.Field) -> FieldShape:
    shape = _field_shape(struct, field)
    default = _default(field)
    return FieldShape(
        element=f"f:{field.encode_name}",
        shape=shape,
        default=default,
        required=field.required,
        standing=has_parts(shape) and default is not None,
    )


def _default(field: inspect.Field) -> Any:
    if field.default is not msgspec.NODEFAULT:
        default = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    else:
        return None
    # Encoded through JSON, so that it looks as it does in any other tree.
    return msgspec.json.decode(msgspec.json.encode(default))


def _field_shape(struct: type[msgspec.Struct], field: inspect.Field) -> Shape:
    rule = list_rule(struct, field)
    if rule is None:
        return _shape(field.type)
    match rule.type:
        case ListType.SET:
            return SetShape()
        case ListType.MAP:
            element = cast(inspect.StructType, cast(inspect.VarTupleType, field.type).item_type)
            item = _record(element.cls)
            return KeyedListShape(
                tuple((key, item.slots[key].default) for key in sorted(rule.keys)), item
            )
        case ListType.ATOMIC:
            return WHOLE


def _shape(info: inspect.Type) -> Shape:
    match info:
        case inspect.StructType():
            return WHOLE if info.cls in ATOMIC_STRUCTS else _record(info.cls)
        case inspect.DictType():
            return MapShape(_shape(info.value_type))
        case inspect.UnionType():
            options = [o for o in info.types if not isinstance(o, inspect.NoneType)]
            # A field of several types has no parts that all of them share.
            return _shape(options[0]) if len(options) == 1 else WHOLE
        case inspect.DateTimeType():
            return MOMENT
        case _:
            return WHOLE


def tree_of(obj: msgspec.Struct) -> dict[str, Any]:
    """An object as a plain tree, the form that patches and applies work on."""
    return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(obj)))
