"""Validation is total: whatever the decoder lets through is judged, and never breaks the judge."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from holdfast.model.defaults import apply_defaults
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import Object
from holdfast.model.registry import KINDS
from holdfast.model.validation import validate, validate_status, validate_update
from tests.scale import examples

# Texts that mean something to some rule, often nearly right.
HOSTILE = (
    *("", " ", "a", "A", "a.b", "web-0-0", "holdfast-system", "default", "..", "/", "a/b", "a//"),
    *("\x00", "\u202e", "é", "٣", "1", "-1", "1e9", "1e99", "500m", "16Ei", "0%", "25%", "101%"),
    *("@daily", "* * * * *", "0 0 30 2 *", "UTC", "../x", "0644", "7777", "cpu", "gpu", "=", "%"),
    *("sha256:" + "0" * 64, "YQ==", "10.0.0.1:80", "https://a:99999", "https://[", "x" * 300),
)
texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8))
moments = st.datetimes(timezones=st.just(UTC)) | st.just(datetime(2026, 3, 1, tzinfo=UTC))


def numbers(low: int | None, high: int | None) -> st.SearchStrategy[int]:
    least, most = (-(2**53) if low is None else low), (2**53 if high is None else high)
    near = st.sampled_from([n for n in (least, most, 0, 1, 2, 100) if least <= n <= most])
    return st.one_of(near, st.integers(least, most))


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Every value of a type, as the decoder understands the type."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            required = {f.name: strategy(f.type) for f in fields if f.required}
            optional = {f.name: strategy(f.type) for f in fields if not f.required}
            return st.fixed_dictionaries(required, optional=optional).map(lambda d: cls(**d))
        case inspect.UnionType(types=types):
            return st.one_of([strategy(each) for each in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(strategy(item), max_size=3).map(tuple)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(strategy(key), strategy(value), max_size=3)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case inspect.IntType(ge=low, le=high):
            return numbers(low, high)
        case inspect.StrType(pattern=None):
            return texts
    plain: dict[type, st.SearchStrategy[Any]] = {
        inspect.LiteralType: st.just("holdfast.dev/v1"),
        inspect.BoolType: st.booleans(),
        inspect.NoneType: st.none(),
        inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
        inspect.DateTimeType: moments,
        inspect.AnyType: st.none(),
    }
    return plain[type(kind)]


@cache
def objects(struct: type[Object]) -> st.SearchStrategy[Object]:
    return strategy(inspect.type_info(struct))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_any_object_that_decodes_is_judged_without_an_accident(
    kind: Kind, data: st.DataObject
) -> None:
    """Every error has a path of this object and a rule; two runs say the same."""
    first, second = (data.draw(objects(kind.struct)) for _ in range(2))
    changed, _ = apply_defaults(first)
    for found in (validate(first), validate(changed), validate_update(second, first)):
        for error in found:
            assert error.rule
            assert error.path.isprintable()
            assert error.value.isprintable()
            assert error.path.partition(".")[0].partition("[")[0] in fields_of(first)
    assert validate(first) == validate(first)
    assert set(validate_status(first)) <= set(validate(first))
    assert validate_update(first, first) == ()


def fields_of(obj: Object) -> set[str]:
    return {"", *(field.encode_name for field in msgspec.structs.fields(obj))}
