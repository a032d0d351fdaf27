"""Ordered entries: a snapshot shows one moment, and equals a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe import entry_table
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.entry_table import OrderedEntries

CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()))


def entry(namespace: str, number: int, revision: int) -> ObjectEntry:
    return ObjectEntry((f"n{number}", namespace), revision, {}, b"{}")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_table, "CHUNK_MAX", 4)


@given(CHANGES, CHANGES)
def test_a_snapshot_stays_as_it_was(before: list, after: list) -> None:  # type: ignore[type-arg]
    """Whatever changes later, it shows what was there, in order, whole or of one namespace."""
    there: dict[str, ObjectEntry] = {}
    ordered = OrderedEntries()

    def change(changes: list[tuple[str, int, bool]]) -> None:
        for revision, (namespace, number, is_put) in enumerate(changes):
            key, made = f"{namespace}/n{number}", entry(namespace, number, revision)
            if is_put:
                there[key] = made
                ordered.put(key, made)
            elif there.pop(key, None) is not None:
                ordered.remove(key)

    change(before)
    expected = [there[key] for key in sorted(there)]
    whole, of_b = ordered.snapshot(), ordered.snapshot("b/", "b0")
    change(after)
    assert list(whole) == expected
    assert whole.count == len(expected)
    assert list(of_b) == [it for it in expected if it.namespace == "b"]
    assert list(ordered.snapshot()) == [there[key] for key in sorted(there)]
    assert ordered.count == len(there)
