"""The entry table finds what is selected, by an index or by scanning, with the same result."""

from __future__ import annotations

import random

import pytest

from holdfast.model.kinds.replica import Replica
from holdfast.model.registry import kind_of_struct
from holdfast.model.selection.field_selector import parse_field_selector
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.entry_table import EntryTable
from holdfast.observe.selection import ObjectSelection

KIND = kind_of_struct(Replica)
# In keys `a/` comes after `a-b/`, unlike in names.
NAMESPACES = ("a", "a-b", "b")


def replica(namespace: str, name: str, node: str, state: str = "Bound") -> ObjectEntry:
    return ObjectEntry((name, namespace, node, state, "web"), 1, {}, b"{}")


def selection(fields: str, namespace: str = "") -> ObjectSelection:
    return ObjectSelection(KIND, namespace, fields=parse_field_selector(fields, Replica))


def scan(entry_table: EntryTable, wanted: ObjectSelection) -> list[ObjectEntry]:
    return [it for it in entry_table.select(ObjectSelection(KIND)) if wanted.matches(it)]


@pytest.mark.parametrize(
    "fields, namespace",
    [
        ("status.binding.node=n1", ""),
        ("status.binding.node=n1", "a"),
        ("status.binding.node=n1,status.state=Bound", ""),
        ("status.binding.node=n1,metadata.name!=r3", ""),
        ("spec.workload=web,status.binding.node=n2", "b"),
        ("status.binding.node=nobody", ""),
    ],
)
def test_what_an_index_finds_is_what_a_scan_finds(fields: str, namespace: str) -> None:
    """Objects come, move and go around the first query; the order is that of the keys."""
    rng, entry_table, wanted = random.Random(7), EntryTable(), selection(fields, namespace)
    for step in range(600):
        where, name = rng.choice(NAMESPACES), f"r{rng.randrange(12)}"
        node, state = f"n{rng.randrange(3)}", rng.choice(("Bound", "Running"))
        gone = rng.random() < 0.3
        entry_table.put(KIND, where, name, None if gone else replica(where, name, node, state))
        if step > 200 and step % 7 == 0:
            assert entry_table.select(wanted) == scan(entry_table, wanted)


def test_a_query_for_one_node_tests_only_its_own_replicas() -> None:
    """The second query costs what it returns, however many others there are."""
    entry_table = EntryTable()
    for number in range(200):
        entry_table.put(KIND, "a", f"r{number}", replica("a", f"r{number}", f"n{number % 100}"))
    looked: list[str] = []

    class Counting(ObjectSelection):
        def matches(self, entry: ObjectEntry) -> bool:
            looked.append(entry.name)
            return super().matches(entry)

    wanted = Counting(KIND, fields=parse_field_selector("status.binding.node=n7", Replica))
    assert [it.name for it in entry_table.select(wanted)] == ["r107", "r7"]
    assert sorted(looked) == ["r107", "r7"]
