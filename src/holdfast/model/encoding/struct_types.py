"""The types of structs as msgspec describes them, with all types inside; worked out once.

msgspec works a description out again at each call, struct by struct, which takes milliseconds. The
schema, the checks, selectors and patches all need those of the kinds, so they share them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec
from msgspec import inspect

from holdfast.model.errors import unreachable
from holdfast.model.registry import KINDS


@cache
def struct_type(cls: type[msgspec.Struct]) -> inspect.StructType:
    """The description of a struct."""
    known = _inside_kinds().get(cls)
    if known is not None:
        return known
    info = inspect.type_info(cls)
    return info if isinstance(info, inspect.StructType) else unreachable(f"{cls} is no struct")


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


@cache
def _inside_kinds() -> dict[type[msgspec.Struct], inspect.StructType]:
    """Every kind, and every struct inside one."""
    found: dict[type[msgspec.Struct], inspect.StructType] = {}
    waiting = list(inspect.multi_type_info([kind.struct for kind in KINDS]))
    while waiting:
        info = waiting.pop()
        if isinstance(info, inspect.StructType):
            if info.cls in found:
                continue
            found[info.cls] = info
        waiting.extend(inner_types(info))
    return found
