"""Checks derived from the structs' types, one per type, built once.

A check takes a value of a plain tree with its place, reports what is wrong, and returns the value
as it should be: without unknown fields, and without nulls that mean "not given". It returns
something also when it reported, so that one walk finds all problems. `conform.py` is the caller.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, cast

import msgspec
from msgspec import inspect

from holdfast.model.errors import invariant
from holdfast.model.guard import BODY_BYTES_MAX
from holdfast.model.meta import INT_MAX, Timestamp
from holdfast.model.problems import Place, Problems

Check = Callable[[Any, Place, Problems], Any]

# Comparing two names takes time that grows with their product; no field's name is longer.
_SUGGEST_FOR_MAX = 40
# Below this, difflib finds likeness where nobody would: it takes "colour" for "rollout".
_SUGGEST_ABOVE = 0.7


@cache
def struct_check(cls: type[msgspec.Struct]) -> Check:
    """The check of one struct. Structs are never recursive, so building it ends."""
    info = cast(inspect.StructType, inspect.type_info(cls))
    fields = {field.encode_name: _check(field.type) for field in info.fields}
    required = tuple(field.encode_name for field in info.fields if field.required)
    if info.tag_field is not None:
        fields[info.tag_field] = _one_of((str(info.tag),))
    return partial(_struct, fields, required)


def _check(info: inspect.Type) -> Check:
    match info:
        case inspect.StructType():
            return struct_check(info.cls)
        case inspect.VarTupleType():
            return partial(_list, _check(info.item_type))
        case inspect.DictType():
            return partial(_map, _check(info.value_type))
        case inspect.UnionType():
            return _union(info)
        case inspect.EnumType():
            return _one_of(tuple(str(member.value) for member in info.cls))
        case inspect.LiteralType():
            return _one_of(tuple(str(value) for value in info.values))
        case inspect.StrType():
            return _string(info)
        case inspect.IntType():
            return _integer(info)
    plain = _PLAIN_CHECKS.get(type(info))
    invariant(plain is not None, f"no check for {info}: give it one before a struct uses it")
    return cast(Check, plain)


def _struct(
    fields: Mapping[str, Check],
    required: tuple[str, ...],
    value: Any,
    place: Place,
    problems: Problems,
) -> Any:
    if type(value) is not dict:
        problems.add(place, value, "must be an object")
        return value
    clean = {}
    for key, item in value.items():
        check = fields.get(key)
        if check is None:
            problems.add_unknown((place, key), partial(_suggestion, key, fields))
        elif item is not None:
            clean[key] = check(item, (place, key), problems)
    for key in required:
        if value.get(key) is None:
            problems.add_rule((place, key), "is required")
    return clean


def _suggestion(key: str, fields: Mapping[str, Check]) -> str:
    if len(key) > _SUGGEST_FOR_MAX:
        return ""
    lowered = {name.lower(): name for name in fields}
    close = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=_SUGGEST_ABOVE)
    return lowered[close[0]] if close else ""


def _map(check: Check, value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not dict:
        problems.add(place, value, "must be an object")
        return value
    return {key: check(item, (place, (key,)), problems) for key, item in value.items()}


def _list(check: Check, value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not list:
        problems.add(place, value, "must be a list")
        return value
    return [check(item, (place, index), problems) for index, item in enumerate(value)]


def _anything(value: Any, place: Place, problems: Problems) -> Any:
    return value


_JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
_JSON_TYPES: dict[type[inspect.Type], type] = {
    inspect.StrType: str,
    inspect.EnumType: str,
    inspect.DateTimeType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.StructType: dict,
    inspect.DictType: dict,
    inspect.VarTupleType: list,
}


def _union(info: inspect.UnionType) -> Check:
    """A union is told apart by JSON type.

    Null is not among them: where it is allowed it means "not given", and then it never gets here.
    """
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    if len(options) == 1:
        return _check(options[0])
    by_type = {_json_type(option): _check(option) for option in options}
    names = [_JSON_NAMES[kind] for kind in by_type if not (kind is int and float in by_type)]
    # 2 is a number too, and 2.0 may stand for an integer: the option that is there judges it.
    if int in by_type:
        by_type.setdefault(float, by_type[int])
    elif float in by_type:
        by_type[int] = by_type[float]
    return partial(_either, by_type, "must be " + " or ".join(names))


def _json_type(option: inspect.Type) -> type:
    invariant(type(option) in _JSON_TYPES, f"{option} cannot be told apart inside a union")
    return _JSON_TYPES[type(option)]


def _either(
    by_type: Mapping[type, Check], rule: str, value: Any, place: Place, problems: Problems
) -> Any:
    check = by_type.get(type(value))
    if check is None:
        problems.add(place, value, rule)
        return value
    return check(value, place, problems)


def _one_of(accepted: tuple[str, ...]) -> Check:
    rule = f"must be {'one of ' if len(accepted) > 1 else ''}{', '.join(accepted)}"
    known = frozenset(accepted)

    def check(value: Any, place: Place, problems: Problems) -> Any:
        if type(value) is not str or value not in known:
            problems.add(place, value, rule)
        return value

    return check


def _string(info: inspect.StrType) -> Check:
    if info.pattern is None and info.min_length is None and info.max_length is None:
        return _any_string
    matches = re.compile(info.pattern or "").search
    at_least = info.min_length or 0
    # Nothing longer gets past the guard.
    at_most = BODY_BYTES_MAX if info.max_length is None else info.max_length

    def check(value: Any, place: Place, problems: Problems) -> Any:
        if type(value) is not str:
            problems.add(place, value, "must be a string")
        elif not at_least <= len(value) <= at_most:
            problems.add(place, value, f"must have from {at_least} to {at_most} characters")
        elif not matches(value):
            problems.add(place, value, f"must match {info.pattern}")
        return value

    return check


def _any_string(value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not str:
        problems.add(place, value, "must be a string")
    return value


def _integer(info: inspect.IntType) -> Check:
    other = info.gt, info.lt, info.multiple_of
    invariant(other == (None, None, None), f"{info}: an integer is bounded by ge and le only")
    at_least = -INT_MAX if info.ge is None else info.ge
    at_most = INT_MAX if info.le is None else info.le
    rule = f"must be from {at_least} to {at_most}"

    def check(value: Any, place: Place, problems: Problems) -> Any:
        # To Python a boolean is an int as well; only the exact type tells them apart.
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            problems.add(place, value, "must be an integer")
        elif not at_least <= value <= at_most:
            problems.add(place, value, rule)
        return value

    return check


def _number(value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not float and type(value) is not int:
        problems.add(place, value, "must be a number")
    return value


def _boolean(value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not bool:
        problems.add(place, value, "must be true or false")
    return value


def _time(value: Any, place: Place, problems: Problems) -> Any:
    try:
        msgspec.convert(value, Timestamp)
    except msgspec.ValidationError:
        problems.add(place, value, "must be a time with a zone, such as 2027-05-01T12:00:00Z")
    return value


_PLAIN_CHECKS: dict[type[inspect.Type], Check] = {
    inspect.AnyType: _anything,
    inspect.FloatType: _number,
    inspect.BoolType: _boolean,
    inspect.DateTimeType: _time,
}


def integers_bounded(cls: type[msgspec.Struct]) -> bool:
    """Whether the types alone keep every integer of a struct within ±2^53.

    What takes any JSON is not counted; who accepts such a value must look into it.
    """
    return _bounded(inspect.type_info(cls))


def _bounded(info: inspect.Type) -> bool:
    match info:
        case inspect.IntType():
            low, high = info.ge, info.le
            return low is not None and high is not None and low >= -INT_MAX and high <= INT_MAX
        case inspect.StructType():
            return all(_bounded(field.type) for field in info.fields)
        case inspect.UnionType():
            return all(_bounded(option) for option in info.types)
        case inspect.VarTupleType():
            return _bounded(info.item_type)
        case inspect.DictType():
            return _bounded(info.value_type)
        case _:
            return True
