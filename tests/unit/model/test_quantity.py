"""Amounts are exact, whatever form they come in, and never promise what is not there."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.encoding.problems import excerpt
from holdfast.model.errors import Invalid
from holdfast.model.meta import INT_MAX
from holdfast.model.quantity import (
    EXPONENT_MAX,
    Resource,
    capacity,
    demand,
    exact,
    parse,
    render,
    units_per_one,
)

RESOURCES = st.sampled_from([*map(str, Resource), "gpu"])
AMOUNTS = st.integers(0, INT_MAX)
# Texts near to quantities, so that the grammar's edges are met often.
NEARLY = st.text("0123456789.+-eEnumkKMGTPi ", max_size=8)


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", Fraction(0)),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", Fraction(3, 2) * 2**30),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("+1", Fraction(1)),
        ("-1", Fraction(-1)),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("1k", Fraction(1000)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(2**60)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("2e-3", Fraction(1, 500)),
        ("1e+18", Fraction(10**18)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_quantity_means_what_it_means_in_kubernetes(text: str, value: Fraction) -> None:
    """Decimal and binary suffixes, exponents and signs, without rounding."""
    assert parse(text) == value


NO_QUANTITIES = """m 1K 1ki 1mi 1e 1e1.5 0x10 1_000 NaN inf 1e9999 --1 1.2.3 1mm 1e3Ki ١ １"""


@pytest.mark.parametrize(
    "text", [*NO_QUANTITIES.split(), "", " ", "1 ", "1\n", "1\u200b", "9" * 41, "9" * 99_999]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """Also digits of other scripts, and texts too long to be meant."""
    with pytest.raises(Invalid, match="must be a quantity") as caught:
        parse(text)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    "text", [f"1e{EXPONENT_MAX + 1}", f"1e-{EXPONENT_MAX + 1}", "1e999", "0e999"]
)
def test_a_huge_exponent_is_refused_before_it_is_computed(text: str) -> None:
    """1e999999 would be a number of a million digits."""
    with pytest.raises(Invalid, match="exponent within ±18"):
        parse(text)


@given(NEARLY)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but Invalid is raised, and what is read agrees with decimal arithmetic."""
    try:
        value = parse(text)
    except Invalid:
        return
    number = re.match(r"[-+]?[0-9.]+", text)
    assert number is not None
    mantissa = Fraction(Decimal(number[0]))
    assert value == 0 if mantissa == 0 else value / mantissa > 0


@given(st.floats(min_value=0, max_value=1e15, allow_subnormal=False))
def test_a_float_is_taken_as_it_was_typed(value: float) -> None:
    """0.1 is a tenth, not the nearest binary fraction."""
    if 0 < value < 1e-18:
        with pytest.raises(Invalid, match="exponent"):
            exact(value)
    else:
        assert exact(value) == Fraction(repr(value))


@given(st.integers(0, 10**30))
def test_an_integer_is_itself(value: int) -> None:
    """However long it is."""
    assert exact(value) == value


def test_a_boolean_is_no_amount() -> None:
    """Though Python takes it for 1."""
    with pytest.raises(Invalid, match="not a boolean"):
        exact(True)


@given(RESOURCES, AMOUNTS)
def test_what_is_rendered_reads_back_exactly(resource: str, units: int) -> None:
    """A ledger's number can be shown and typed in again."""
    text = render(resource, units)
    assert capacity(resource, text) == demand(resource, text) == units


@given(RESOURCES, st.fractions(0, 10**6).map(lambda f: round(f, 6)))
def test_a_demand_is_rounded_up_and_a_capacity_down(resource: str, amount: Fraction) -> None:
    """So that rounding never promises what is not there. [C6.6]"""
    text = f"{Decimal(amount.numerator) / Decimal(amount.denominator):f}"
    units = amount * units_per_one(resource)
    assert capacity(resource, text) <= units <= demand(resource, text)
    assert demand(resource, text) - capacity(resource, text) == (0 if units.denominator == 1 else 1)


@pytest.mark.parametrize("value", ["-1", "-1m", "-0.0000001", -1, -0.5, "-1n"])
@pytest.mark.parametrize("resource", ["cpu", "memory", "gpu"])
def test_nothing_negative_is_accepted(resource: str, value: str | float) -> None:
    """Not even what rounding would turn into nothing."""
    for read in (demand, capacity):
        with pytest.raises(Invalid, match="must not be negative"):
            read(resource, value)


@pytest.mark.parametrize("value", ["9999999E", "1Ei", 10**5000, INT_MAX + 1, "1e18"], ids=excerpt)
def test_what_does_not_fit_is_refused(value: str | int) -> None:
    """Sums of what is accepted stay exact in every reader of JSON."""
    for read in (demand, capacity):
        with pytest.raises(Invalid, match="must be at most 9007199254740992"):
            read("memory", value)
    assert capacity("memory", INT_MAX) == INT_MAX


@pytest.mark.parametrize(
    "resource, units, text",
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("memory", 3 << 29, "1536Mi"),
        ("memory", 1000, "1000"),
        ("memory", 0, "0"),
        ("replicas", 7, "7"),
        ("gpu", 500, "500m"),
    ],
)
def test_units_are_rendered_as_people_write_them(resource: str, units: int, text: str) -> None:
    """In the largest unit that loses nothing."""
    assert render(resource, units) == text
