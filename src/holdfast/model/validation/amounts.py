"""Validates quantities: they parse, are not negative, and are within the exact range.

`model/quantity.py` parses them, so validation accepts exactly what placement and quota arithmetic
can use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.model.errors import Invalid
from holdfast.model.meta import Quantity
from holdfast.model.quantity import Resource, capacity, demand
from holdfast.model.validation import names
from holdfast.model.validation.findings import FieldPath

RESOURCES = tuple(resource.value for resource in Resource)

_RESOURCES_MAX = 64


def _read(
    at: FieldPath, resource: str, value: Quantity, rule: Callable[[str, Quantity], int]
) -> int | None:
    try:
        return rule(resource, value)
    except Invalid as invalid:
        at.borrow(value, invalid.errors)
        return None


def read_demand(at: FieldPath, resource: str, value: Quantity) -> int | None:
    """A demand in internal units; None, with a finding, if it cannot be parsed."""
    return _read(at, resource, value, demand)


def read_capacity(at: FieldPath, resource: str, value: Quantity) -> int | None:
    """A capacity in internal units; None, with a finding, if it cannot be parsed."""
    return _read(at, resource, value, capacity)


def device_class(at: FieldPath, text: str) -> None:
    """Checks the class of a device. It shares the table of sums with plain resources."""
    names.name(at, text)
    if text in RESOURCES:
        at.wrong(text, "must not be the name of a plain resource")


def table(at: FieldPath, entries: Mapping[str, Quantity]) -> dict[str, int]:
    """The parsed amounts by resource, without those that cannot be parsed."""
    found: dict[str, int] = {}
    if not names.at_most(at, entries, _RESOURCES_MAX):
        return found
    for resource, value in entries.items():
        place = at.entry(resource)
        if not names.is_name(resource):
            known = ", ".join(RESOURCES)
            place.wrong(resource, f"must be {known} or the name of a device class")
            continue
        units = read_capacity(place, resource, value)
        if units is not None:
            found[resource] = units
    return found


def units(at: FieldPath, entries: Mapping[str, int]) -> None:
    """Checks amounts in internal units, such as charges."""
    for resource, amount in entries.items():
        if amount < 0:
            at.entry(resource).wrong(amount, "must not be negative")
