"""Amounts as users of Kubernetes write them, exact integers inside.

`parse` reads "500m", "1.5Gi", "2e3", 2 or 1.5 without ever going through binary floating point.
Inside Holdfast an amount is an integer in the unit of its resource: thousandths for cpu and
devices, bytes for memory and disk, pieces for the rest. A demand is rounded up and a capacity
down, so that rounding never promises what is not there.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import INT_MAX, Quantity

# Nothing real needs more digits, and a bound keeps hostile numbers from costing time.
TEXT_MAX = 40
EXPONENT_MAX = 18

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?",
    re.ASCII,
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Resource(StrEnum):
    """Resources with a meaning of their own.

    Any other name counts pieces, such as a device class.
    """

    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    REPLICAS = "replicas"


# One cpu, and one device, is this many of its internal unit.
MILLI = 1000
_UNITS_PER_ONE = {Resource.CPU: MILLI, Resource.MEMORY: 1, Resource.DISK: 1, Resource.REPLICAS: 1}


def units_per_one(resource: str) -> int:
    """The number of internal units in 1 of this resource.

    Device classes count in thousandths, for fractions.
    """
    return _UNITS_PER_ONE.get(resource, MILLI)  # type: ignore[call-overload, no-any-return]


def _wrong(value: object, rule: str) -> Invalid:
    error = FieldError(path="", value=excerpt(value), rule=rule)
    return Invalid(f"{error.value} {rule}", (error,))


@lru_cache(maxsize=4096)
def parse(text: str) -> Fraction:
    """Parses a quantity to its exact value. Raises Invalid with the rule that the text breaks."""
    found = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    if found is None:
        raise _wrong(text, 'must be a quantity such as "500m", "1.5Gi" or "2"')
    number, suffix = Fraction(found["number"]), found["suffix"] or ""
    if suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    elif suffix in _DECIMAL:
        number *= Fraction(10) ** _DECIMAL[suffix]
    elif suffix:
        exponent = int(suffix[1:])
        if abs(exponent) > EXPONENT_MAX:
            raise _wrong(text, f"must have an exponent within ±{EXPONENT_MAX}")
        number *= Fraction(10) ** exponent
    return -number if found["sign"] == "-" else number


def exact(value: Quantity) -> Fraction:
    """A quantity of any wire form as an exact number.

    A float came from a JSON number such as 1.5; its shortest text is what the user typed.
    """
    if isinstance(value, bool):
        raise _wrong(value, "must be a quantity, not a boolean")
    if isinstance(value, int):
        return Fraction(value)
    return parse(value if isinstance(value, str) else repr(value))


# By type as well: 1 and True are equal and hash alike, but only one of them is a quantity.
@lru_cache(maxsize=4096, typed=True)
def demand(resource: str, value: Quantity) -> int:
    """A demand in internal units, rounded up."""
    return _bounded(value, math.ceil(_units(resource, value)))


@lru_cache(maxsize=4096, typed=True)
def capacity(resource: str, value: Quantity) -> int:
    """A capacity or limit in internal units, rounded down."""
    return _bounded(value, math.floor(_units(resource, value)))


def _units(resource: str, value: Quantity) -> Fraction:
    units = exact(value) * units_per_one(resource)
    # Checked before rounding: -1m of memory, rounded up, would be 0.
    if units < 0:
        raise _wrong(value, "must not be negative")
    return units


def _bounded(value: Quantity, units: int) -> int:
    if units > INT_MAX:
        raise _wrong(value, f"must be at most {INT_MAX} in its smallest unit")
    return units


def render(resource: str, units: int) -> str:
    """Internal units as users write them: exact, in the largest unit that loses nothing."""
    per_one = units_per_one(resource)
    if per_one != 1:
        whole, rest = divmod(units, per_one)
        return str(whole) if rest == 0 else f"{units}m"
    if resource in (Resource.MEMORY, Resource.DISK) and units:
        for suffix, power in reversed(_BINARY.items()):
            if units % (1 << power) == 0:
                return f"{units >> power}{suffix}"
    return str(units)
