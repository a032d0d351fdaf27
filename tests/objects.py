"""Random objects of every kind, made from the structs' own types.

What these strategies give is well-typed and within the bounds that the types state; it need not
make sense. Tests of the wire format and the schema use them, and so may any test that must hold for
all objects.
"""

from __future__ import annotations

from datetime import UTC
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from holdfast.model.meta import INT_MAX

# Neither may be in a document; lone surrogates cannot even be written.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
KEYS = st.one_of(st.sampled_from(["cpu", "memory", "gpu", "app"]), TEXT)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-INT_MAX, INT_MAX) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)

PLAIN: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    inspect.BoolType: st.booleans(),
    inspect.DateTimeType: st.datetimes(timezones=st.just(UTC)),
    inspect.NoneType: st.none(),
    inspect.AnyType: ANY_JSON,
}


@cache
def objects(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Objects of one struct. Fields with a default are mostly left out, or they grow too large."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    required = {f.name: _values(f.type) for f in info.fields if f.required}
    optional = [(f.name, f.type) for f in info.fields if not f.required]

    @st.composite
    def draw_object(draw: st.DrawFn) -> Any:
        given_fields = {name: draw(values) for name, values in required.items()}
        chosen = draw(st.lists(st.sampled_from(optional), max_size=4)) if optional else []
        for name, kind in chosen:
            given_fields[name] = draw(_values(kind))
        return cls(**given_fields)

    return draw_object()


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType():
            return objects(info.cls)
        case inspect.VarTupleType():
            return st.lists(_values(info.item_type), max_size=2).map(tuple)
        case inspect.DictType():
            return st.dictionaries(KEYS, _values(info.value_type), max_size=2)
        case inspect.UnionType():
            return st.one_of([_values(option) for option in info.types])
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.StrType():
            return TEXT if info.pattern is None else st.from_regex(info.pattern.replace("$", r"\Z"))
        case inspect.IntType():
            return st.integers(
                -INT_MAX if info.ge is None else info.ge, INT_MAX if info.le is None else info.le
            )
    return PLAIN[type(info)]
