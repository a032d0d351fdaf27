"""Portions: numbers stay, percentages round the way that was asked for, the rest is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.placement.disruption import (
    PORTION_MAX,
    is_nothing,
    is_portion,
    percent,
    portion,
)

totals = st.integers(0, 1_000_000)


@pytest.mark.parametrize(
    "value, total, up, down",
    [
        ("25%", 4, 1, 1),
        ("25%", 5, 2, 1),
        ("25%", 1, 1, 0),
        ("0%", 100, 0, 0),
        ("100%", 7, 7, 7),
        ("1%", 0, 0, 0),
        (0, 10, 0, 0),
        (3, 2, 3, 3),
    ],
)
def test_a_portion_means_what_kubernetes_means_by_it(
    value: int | str, total: int, up: int, down: int
) -> None:
    """A rollout of one replica rounds its surge up to 1 and its shortfall down to 0."""
    assert portion(value, total, round_up=True) == up
    assert portion(value, total, round_up=False) == down


@given(share=st.integers(0, 100), total=totals)
def test_a_percentage_is_off_by_less_than_one_on_the_side_that_was_asked_for(
    share: int, total: int
) -> None:
    exact = Fraction(total * share, 100)
    up, down = (portion(f"{share}%", total, round_up=r) for r in (True, False))
    assert down <= exact <= up
    assert up - exact < 1
    assert exact - down < 1


@given(value=st.integers(0, PORTION_MAX), total=totals, up=st.booleans())
def test_a_number_is_taken_as_it_is(value: int, total: int, up: bool) -> None:
    assert portion(value, total, round_up=up) == value


@pytest.mark.parametrize(
    "value",
    [
        *("", "%", "25", "25 %", "+25%", "-1%", "101%", "025%", "2.5%", "25%\n", "٢٥%", "1e1%"),
        *(-1, PORTION_MAX + 1, True),
    ],
)
def test_what_is_not_a_portion_is_refused_with_the_rule(value: int | str) -> None:
    assert not is_portion(value)
    with pytest.raises(Invalid, match="percentage") as refused:
        portion(value, 10, round_up=True)
    assert refused.value.errors[0].rule.startswith("must be a whole number")


def test_only_zero_is_nothing() -> None:
    assert [value for value in (0, "0%", 1, "1%") if is_nothing(value)] == [0, "0%"]
    assert [percent(value) for value in (5, "5%")] == [None, 5]
