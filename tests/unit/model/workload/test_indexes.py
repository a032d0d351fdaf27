"""Sets of indexes and the text that states them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.workload.indexes import INDEX_MAX, Indexes, is_index, is_within, parse

few = st.sets(st.integers(0, 40), max_size=30)


@given(few, few)
def test_a_set_of_indexes_is_the_set_that_python_has(have: set[int], more: set[int]) -> None:
    """Adding, asking, counting, and what is missing; the text says the same again."""
    made = Indexes().plus(sorted(have))
    both = made.plus(more)
    assert [index for index in range(50) if index in both] == sorted(have | more)
    assert len(both) == len(have | more)
    assert list(both.missing(45)) == [index for index in range(45) if index not in have | more]
    assert parse(str(both)) == both
    assert is_within(str(made), str(both))
    assert is_within(str(both), str(made)) is (more <= have)


def test_it_is_written_as_kubernetes_does() -> None:
    """Single numbers and ranges, the lowest first."""
    assert str(Indexes().plus([7, 0, 1, 3, 2])) == "0-3,7"
    assert str(parse("")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "1,0",
        "0,1",
        "0-3,4",
        "3-1",
        "2-2",
        "-1",
        "a",
        "0-",
        "01",
        "1,,2",
        " 1",
        "٣",
        "1-0",
        "0-9999999",
    ],
)
def test_what_is_not_written_so_is_refused(text: str) -> None:
    """There is one text for each set, and it is bounded."""
    with pytest.raises(Invalid):
        parse(text)
    assert not is_within(text, "")


def test_an_index_is_a_plain_number_up_to_the_bound() -> None:
    assert is_index("0")
    assert is_index(str(INDEX_MAX))
    assert not any(map(is_index, ["", "-1", "00", "1-2", str(INDEX_MAX + 1), "x"]))
