"""Preserves fields that this version does not know when it rewrites a record.

A newer version may have written fields that this version's structs lack. Decoding drops them, so a
new encoding lacks them; this module restores them from the previous bytes. Only the commit rewrites
records, and it has both forms (`commit/draft.py`).

A field belongs to its enclosing struct and is removed with it: with an element that is removed from
a list, an optional part that is removed, or an object that is deleted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.model.encoding.list_maps import list_keys
from holdfast.model.encoding.struct_types import inner_types, struct_type
from holdfast.model.meta import INT_MAX

# The fields that identify a list element after a change, if its type has no declared key.
_NAMES = ("id", "uid", "name", "replica", "manager", "number")


class _Struct(msgspec.Struct, frozen=True):
    """The known fields by wire name, and the shapes of those that hold structs.

    `kept` are struct fields that exist even if they are left out at their default.
    """

    known: frozenset[str]
    inside: dict[str, Any]
    kept: frozenset[str]
    names: tuple[str, ...]


class _List(msgspec.Struct, frozen=True):
    element: _Struct


class _Map(msgspec.Struct, frozen=True):
    value: Any


def with_unknown(cls: type[msgspec.Struct], old: bytes, new: bytes) -> bytes:
    """The new encoding of a record with all fields of the old one that `cls` does not know."""
    before, after = msgspec.json.decode(old), msgspec.json.decode(new)
    if not isinstance(before, dict) or _uid(before) != _uid(after):
        # It is another object of the same name.
        return new
    shape = _of_struct(cls)
    return msgspec.json.encode(after) if _graft(shape, before, after) else new


def has_unknown(obj: msgspec.Struct, data: bytes) -> bool:
    """Whether the bytes that an object was decoded from have fields that its type lacks."""
    known = msgspec.json.encode(obj)
    return data != known and with_unknown(type(obj), data, known) != known


def _uid(tree: dict[str, Any]) -> Any:
    metadata = tree.get("metadata")
    return metadata.get("uid") if isinstance(metadata, dict) else None


@cache
def _of_struct(cls: type[msgspec.Struct]) -> _Struct:
    """Structs are never recursive, so this ends."""
    info = struct_type(cls)
    inside = {it.encode_name: shape for it in info.fields if (shape := _shape(it.type)) is not None}
    known = {it.encode_name for it in info.fields}
    if info.tag_field is not None:
        known.add(info.tag_field)
    kept = {it.encode_name for it in info.fields if isinstance(it.type, inspect.StructType)}
    declared = list_keys(cls)
    return _Struct(
        frozenset(known),
        inside,
        frozenset(kept),
        declared or tuple(name for name in _NAMES if name in known)[:1],
    )


def _shape(info: inspect.Type) -> Any:
    """The shape of a type; None if it holds no struct."""
    match info:
        case inspect.StructType():
            return _of_struct(info.cls)
        case inspect.VarTupleType():
            element = _shape(info.item_type)
            return _List(element) if isinstance(element, _Struct) else None
        case inspect.DictType():
            value = _shape(info.value_type)
            return _Map(value) if value is not None else None
        case inspect.UnionType():
            return next((it for it in map(_shape, info.types) if it is not None), None)
    return None


def _graft(shape: Any, old: Any, new: Any) -> bool:
    """Copies fields that the types do not know from `old` to `new`. Returns whether any."""
    match shape:
        case _Struct() if isinstance(old, dict) and isinstance(new, dict):
            return _graft_struct(shape, old, new)
        case _List() if isinstance(old, list) and isinstance(new, list):
            return _graft_list(shape.element, old, new)
        case _Map() if isinstance(old, dict) and isinstance(new, dict):
            found = False
            for key, value in new.items():
                found |= key in old and _graft(shape.value, old[key], value)
            return found
    return False


def _graft_struct(shape: _Struct, old: dict[str, Any], new: dict[str, Any]) -> bool:
    found = False
    for key, value in old.items():
        if key not in shape.known:
            found = True
            new.setdefault(key, value)
        elif key in shape.inside:
            if key in new:
                found |= _graft(shape.inside[key], value, new[key])
            elif key in shape.kept:
                # It is at its default, but may still hold unknown fields.
                rest: dict[str, Any] = {}
                if _graft(shape.inside[key], value, rest):
                    found = True
                    new[key] = rest
    return found


def _graft_list(shape: _Struct, old: list[Any], new: list[Any]) -> bool:
    """Matches each element with its earlier form, by equality or by key."""
    left = [(it, _stripped(shape, it)) for it in old]
    if all(it == known for it, known in left):
        return False
    found = False
    for after in new:
        at = next((i for i, (_, known) in enumerate(left) if known == after), None)
        if at is None:
            key = _key(shape, after)
            at = next((i for i, (it, _) in enumerate(left) if key and _key(shape, it) == key), None)
        if at is not None:
            before, _ = left.pop(at)
            found |= _graft(shape, before, after)
    return found


def _key(shape: _Struct, element: Any) -> tuple[Any, ...]:
    """The key of an element; empty if it has none of the key fields."""
    if not isinstance(element, dict) or element.keys().isdisjoint(shape.names):
        return ()
    return tuple(element.get(name) for name in shape.names)


def _stripped(shape: Any, tree: Any) -> Any:
    """The tree without fields that the types do not know."""
    match shape:
        case _Struct() if isinstance(tree, dict):
            return {
                key: _stripped(shape.inside.get(key), value)
                for key, value in tree.items()
                if key in shape.known
            }
        case _List() if isinstance(tree, list):
            return [_stripped(shape.element, it) for it in tree]
        case _Map() if isinstance(tree, dict):
            return {key: _stripped(shape.value, value) for key, value in tree.items()}
    return tree


# Walks over the types of structs, for facts that are known before any document arrives.


def integers_bounded(cls: type[msgspec.Struct]) -> bool:
    """Whether the types alone keep every integer of a struct within ±2^53.

    Fields that accept any JSON are not considered; their user must check the values.
    """
    return _bounded(struct_type(cls))


def _bounded(info: inspect.Type) -> bool:
    if isinstance(info, inspect.IntType):
        low, high = info.ge, info.le
        return low is not None and high is not None and low >= -INT_MAX and high <= INT_MAX
    return all(map(_bounded, inner_types(info)))
