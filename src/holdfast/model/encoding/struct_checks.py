"""Checks derived from the structs' types, one per type, built once.

A check takes a value of a plain tree with its path, reports problems, and returns the normalized
value: without unknown fields, nulls that mean "absent" and fields at their default, with maps in
the order of keys and times in UTC. It also returns a value after a problem, so that one walk finds
all problems. `conform.py` is the caller.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import cache, partial
from typing import Any, cast

import msgspec
from msgspec import inspect

from holdfast.model.encoding.json_guard import BODY_BYTES_MAX
from holdfast.model.encoding.problems import DocumentPath, Problems
from holdfast.model.encoding.struct_types import struct_type
from holdfast.model.errors import invariant
from holdfast.model.meta import INT_MAX, Timestamp

# Checks of single values: texts, numbers, times, enums.

# Reports what is wrong with the value at a path, and returns the normalized value.
Check = Callable[[Any, DocumentPath, Problems], Any]


def one_of(accepted: tuple[str, ...]) -> Check:
    """One of these texts."""
    rule = f"must be {'one of ' if len(accepted) > 1 else ''}{', '.join(accepted)}"
    known = frozenset(accepted)

    def check(value: Any, place: DocumentPath, problems: Problems) -> Any:
        if type(value) is not str or value not in known:
            problems.add(place, value, rule)
        return value

    return check


def string(info: inspect.StrType) -> Check:
    """A text within the bounds of its type."""
    if info.pattern is None and info.min_length is None and info.max_length is None:
        return _any_string
    matches = re.compile(info.pattern or "").search
    at_least = info.min_length or 0
    # The guard refuses anything longer.
    at_most = BODY_BYTES_MAX if info.max_length is None else info.max_length

    def check(value: Any, place: DocumentPath, problems: Problems) -> Any:
        if type(value) is not str:
            problems.add(place, value, "must be a string")
        elif not at_least <= len(value) <= at_most:
            problems.add(place, value, f"must have from {at_least} to {at_most} characters")
        elif not matches(value):
            problems.add(place, value, f"must match {info.pattern}")
        return value

    return check


def _any_string(value: Any, place: DocumentPath, problems: Problems) -> Any:
    if type(value) is not str:
        problems.add(place, value, "must be a string")
    return value


def integer(info: inspect.IntType) -> Check:
    """A whole number, within ±2^53 if its type has no closer bounds."""
    other = info.gt, info.lt, info.multiple_of
    invariant(other == (None, None, None), f"{info}: an integer is bounded by ge and le only")
    at_least = -INT_MAX if info.ge is None else info.ge
    at_most = INT_MAX if info.le is None else info.le
    rule = f"must be from {at_least} to {at_most}"

    def check(value: Any, place: DocumentPath, problems: Problems) -> Any:
        # In Python a boolean is also an int; only the exact type distinguishes them.
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            problems.add(place, value, "must be an integer")
        elif not at_least <= value <= at_most:
            problems.add(place, value, rule)
        return value

    return check


def _number(value: Any, place: DocumentPath, problems: Problems) -> Any:
    if type(value) is float:
        # 2.0 and 2 are equal, so they get the same form.
        whole = value.is_integer() and abs(value) <= INT_MAX
        return int(value) if whole else value
    if type(value) is not int:
        problems.add(place, value, "must be a number")
    return value


def _boolean(value: Any, place: DocumentPath, problems: Problems) -> Any:
    if type(value) is not bool:
        problems.add(place, value, "must be true or false")
    return value


def _time(value: Any, place: DocumentPath, problems: Problems) -> Any:
    try:
        # In UTC, so that one moment has one text. In other zones the first and last days of the
        # calendar overflow.
        return msgspec.convert(value, Timestamp).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        problems.add(place, value, "must be a time with a zone, such as 2027-05-01T12:00:00Z")
    return value


def _anything(value: Any, place: DocumentPath, problems: Problems) -> Any:
    if isinstance(value, dict):
        return {key: _anything(item, place, problems) for key, item in sorted(value.items())}
    return [_anything(item, place, problems) for item in value] if type(value) is list else value


PLAIN_CHECKS: dict[type[inspect.Type], Check] = {
    inspect.AnyType: _anything,
    inspect.FloatType: _number,
    inspect.BoolType: _boolean,
    inspect.DateTimeType: _time,
}


# Comparing two names takes time proportional to the product of their lengths; no field name is
# longer.
_SUGGEST_FOR_MAX = 40
# Below this ratio difflib makes useless suggestions, such as "rollout" for "colour".
_SUGGEST_ABOVE = 0.7


@cache
def struct_check(cls: type[msgspec.Struct]) -> Check:
    """The check of one struct, with those of all structs inside it."""
    return _of_struct(struct_type(cls))


def _of_struct(info: inspect.StructType) -> Check:
    """Structs are never recursive, so this ends."""
    fields = {field.encode_name: _check(field.type) for field in info.fields}
    required = tuple(field.encode_name for field in info.fields if field.required)
    defaults = {field.encode_name: _default(field) for field in info.fields if not field.required}
    if info.tag_field is not None:
        fields[info.tag_field] = one_of((str(info.tag),))
    return partial(_struct, fields, required, defaults)


def _default(field: inspect.Field) -> Any:
    """A field's default as it appears in a checked tree."""
    value = field.default
    if value is msgspec.NODEFAULT:
        value = cast(Callable[[], Any], field.default_factory)()
    # A tuple would never equal the list that stands for it.
    return msgspec.json.decode(msgspec.json.encode(value))


def _check(info: inspect.Type) -> Check:
    match info:
        case inspect.StructType():
            return _of_struct(info)
        case inspect.VarTupleType():
            return partial(_list, _check(info.item_type))
        case inspect.DictType():
            return partial(_map, _check(info.value_type))
        case inspect.UnionType():
            return _union(info)
        case inspect.EnumType():
            return one_of(tuple(str(member.value) for member in info.cls))
        case inspect.LiteralType():
            return one_of(tuple(str(value) for value in info.values))
        case inspect.StrType():
            return string(info)
        case inspect.IntType():
            return integer(info)
    plain = PLAIN_CHECKS.get(type(info))
    invariant(plain is not None, f"no check for {info}: give it one before a struct uses it")
    return cast(Check, plain)


def _struct(
    fields: Mapping[str, Check],
    required: tuple[str, ...],
    defaults: Mapping[str, Any],
    value: Any,
    place: DocumentPath,
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
            checked = check(item, (place, key), problems)
            # The encoder leaves out only the default object itself, not one equal to it.
            # A null never gets this far, so a default of null drops nothing.
            if key not in defaults or checked != defaults[key]:
                clean[key] = checked
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


def _map(check: Check, value: Any, place: DocumentPath, problems: Problems) -> Any:
    if type(value) is not dict:
        problems.add(place, value, "must be an object")
        return value
    # In the order of keys, so that equal maps have equal encodings.
    return {key: check(item, (place, (key,)), problems) for key, item in sorted(value.items())}


def _list(check: Check, value: Any, place: DocumentPath, problems: Problems) -> Any:
    if type(value) is not list:
        problems.add(place, value, "must be a list")
        return value
    return [check(item, (place, index), problems) for index, item in enumerate(value)]


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
    """Selects the option of a union by JSON type.

    Null is not an option: where it is allowed it means "absent" and is handled before.
    """
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    if len(options) == 1:
        return _check(options[0])
    by_type = {_json_type(option): _check(option) for option in options}
    names = [_JSON_NAMES[kind] for kind in by_type if not (kind is int and float in by_type)]
    # 2 is also a number, and 2.0 may stand for an integer: the existing option checks it.
    if int in by_type:
        by_type.setdefault(float, by_type[int])
    elif float in by_type:
        by_type[int] = by_type[float]
    return partial(_either, by_type, "must be " + " or ".join(names))


def _json_type(option: inspect.Type) -> type:
    invariant(type(option) in _JSON_TYPES, f"{option} cannot be distinguished inside a union")
    return _JSON_TYPES[type(option)]


def _either(
    by_type: Mapping[type, Check], rule: str, value: Any, place: DocumentPath, problems: Problems
) -> Any:
    check = by_type.get(type(value))
    if check is None:
        problems.add(place, value, rule)
        return value
    return check(value, place, problems)
