"""Walking the types that structs are made of, for what can be known before any document arrives."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import inspect

from holdfast.model.meta import INT_MAX


def inner_types(info: inspect.Type) -> Iterator[inspect.Type]:
    """The types directly inside a type."""
    match info:
        case inspect.StructType():
            yield from (field.type for field in info.fields)
        case inspect.VarTupleType():
            yield info.item_type
        case inspect.DictType():
            yield info.value_type
        case inspect.UnionType():
            yield from info.types


def integers_bounded(cls: type[msgspec.Struct]) -> bool:
    """Whether the types alone keep every integer of a struct within ±2^53.

    What takes any JSON is not counted; who accepts such a value must look into it.
    """
    return _bounded(inspect.type_info(cls))


def _bounded(info: inspect.Type) -> bool:
    if isinstance(info, inspect.IntType):
        low, high = info.ge, info.le
        return low is not None and high is not None and low >= -INT_MAX and high <= INT_MAX
    return all(map(_bounded, inner_types(info)))
