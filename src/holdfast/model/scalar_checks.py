"""Checks of single values: texts, numbers, times, choices. `checks.py` puts them together."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.model.errors import invariant
from holdfast.model.guard import BODY_BYTES_MAX
from holdfast.model.meta import INT_MAX, Timestamp
from holdfast.model.problems import Place, Problems

# Reports what is wrong with the value at a place, and returns the value as it should be.
Check = Callable[[Any, Place, Problems], Any]


def one_of(accepted: tuple[str, ...]) -> Check:
    """One of these texts."""
    rule = f"must be {'one of ' if len(accepted) > 1 else ''}{', '.join(accepted)}"
    known = frozenset(accepted)

    def check(value: Any, place: Place, problems: Problems) -> Any:
        if type(value) is not str or value not in known:
            problems.add(place, value, rule)
        return value

    return check


def string(info: inspect.StrType) -> Check:
    """A text within the bounds that its type states."""
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


def integer(info: inspect.IntType) -> Check:
    """A whole number, within ±2^53 if its type states no closer bounds."""
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
    if type(value) is float:
        # 2.0 and 2 are equal, so they get the same form.
        whole = value.is_integer() and abs(value) <= INT_MAX
        return int(value) if whole else value
    if type(value) is not int:
        problems.add(place, value, "must be a number")
    return value


def _boolean(value: Any, place: Place, problems: Problems) -> Any:
    if type(value) is not bool:
        problems.add(place, value, "must be true or false")
    return value


def _time(value: Any, place: Place, problems: Problems) -> Any:
    try:
        # In UTC, so that one moment has one text. In other zones the calendar's first and last
        # days reach beyond it.
        return msgspec.convert(value, Timestamp).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        problems.add(place, value, "must be a time with a zone, such as 2027-05-01T12:00:00Z")
    return value


def _anything(value: Any, place: Place, problems: Problems) -> Any:
    if isinstance(value, dict):
        return {key: _anything(item, place, problems) for key, item in sorted(value.items())}
    return [_anything(item, place, problems) for item in value] if type(value) is list else value


PLAIN_CHECKS: dict[type[inspect.Type], Check] = {
    inspect.AnyType: _anything,
    inspect.FloatType: _number,
    inspect.BoolType: _boolean,
    inspect.DateTimeType: _time,
}
