"""Keys in order, against a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import mvcc
from holdfast.store.mvcc import SortedKeys

keys = st.text("abc", min_size=1, max_size=3)


@given(st.sets(keys), st.lists(keys), keys, keys)
def test_keys_are_read_in_order_after_any_additions_and_removals(
    first: set[str], changes: list[str], start: str, end: str
) -> None:
    """Also when runs are so short that they are split and emptied all the time."""
    length, mvcc.RUN_LENGTH = mvcc.RUN_LENGTH, 2
    try:
        sorted_keys = SortedKeys(first)
        expected = set(first)
        for key in changes:
            if key in expected:
                sorted_keys.remove(key)
                expected.remove(key)
            else:
                sorted_keys.add(key)
                expected.add(key)
        between = sorted(key for key in expected if start <= key < end)
        assert list(sorted_keys.between(start, end)) == between
        twin = sorted_keys.copy()
        twin.add("zzz")
        assert list(sorted_keys.between("", "zzzz")) == sorted(expected)
    finally:
        mvcc.RUN_LENGTH = length
