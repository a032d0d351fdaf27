"""Columns grow, rows are reused, and a reader behind the log recomputes everything."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.model.kinds.node import Device, Node, NodeSpec, NodeStatus
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import Allocation
from holdfast.model.quota.ledger import mirror_node
from holdfast.observe import feature_columns, node_columns
from holdfast.observe.node_columns import LOG_MAX, ROWS_MIN, ChangeLog, Interned, Level, NodeColumns


def put(columns: NodeColumns, name: str = "n", **more: Any) -> int:
    labels, images = more.pop("labels", {}), more.pop("images", ())
    spec = NodeSpec(**{"capacity": {"cpu": "4", "memory": "8Gi"}, **more})
    node = Node(
        ObjectMeta(name=name, uid=name, labels=labels), spec=spec, status=NodeStatus(images=images)
    )
    row = columns.add()
    columns.place_node(row, node, mirror_node(node, None))
    columns.restate(row, (), ())
    return row


def left(columns: NodeColumns, row: int, resource: str = "cpu", level: Level = Level.NOW) -> int:
    number = columns.resources.number(resource)
    return int(columns.left(number, np.array([row]), level)[0])


def test_rows_beyond_the_first_ones_keep_what_was_there() -> None:
    columns = NodeColumns()
    devices = (Device(id="g", device_class="gpu"),)
    rows = [put(columns, f"n{index}", labels={"k": str(index)}) for index in range(ROWS_MIN)]
    columns.take(rows[3], Allocation({"cpu": 1500}), 1)
    before = columns.facts.label("k").column[3]
    more = [put(columns, f"m{index}", devices=devices) for index in range(2 * ROWS_MIN)]
    assert columns.count == 3 * ROWS_MIN
    assert left(columns, rows[3]) == 2500
    assert [left(columns, row) for row in more] == [4000] * len(more)
    assert columns.facts.label("k").values[columns.facts.label("k").column[3]] == "3"
    assert columns.facts.label("k").column[3] == before
    assert columns.devices.free[more[-1], 0] == 1000
    assert columns.inverse[0, more[-1]] == 1 / 4000


def test_a_node_that_is_not_registered_is_in_no_zone() -> None:
    """Neither before it is known nor after it is gone: what runs there counts nowhere."""
    columns = NodeColumns()
    there = put(columns, zone="a", region="eu")
    unknown = columns.add()
    assert columns.zone[unknown] != columns.zone[there]
    assert columns.region[unknown] != columns.region[there]
    columns.absent(there)
    assert columns.zone[unknown] == columns.zone[there]
    assert columns.region[unknown] == columns.region[there]


def test_a_row_that_is_used_again_has_nothing_of_its_last_node() -> None:
    columns = NodeColumns()
    row = put(columns, devices=(Device(id="g", device_class="gpu"),), labels={"a": "1"})
    held = Allocation(
        {"cpu": 1000, "gpu": 1000},
        (DeviceShare(device="g", device_class="gpu", milli=1000),),
        ("TCP/80",),
    )
    columns.facts.label("a")
    columns.lend(row, held, 1)
    columns.shun(row, shunned=True)
    columns.lend(row, held, -1)
    columns.drop(row)
    assert not columns.live[row]
    assert columns.add() == row
    assert (left(columns, row), left(columns, row, level=Level.SETTLED)) == (0, 0)
    assert columns.devices.count[row] == 0
    assert not columns.shunned[row]
    assert columns.facts.label("a").column[row] == feature_columns.NONE
    assert columns.ports.taken("TCP/80", settled=False) == []


def test_what_is_assumed_counts_now_and_not_as_settled() -> None:
    """[F4]"""
    columns = NodeColumns()
    row = put(columns)
    columns.take(row, Allocation({"cpu": 1000}, ports=("TCP/1",)), 1)
    columns.lend(row, Allocation({"cpu": 500}, ports=("TCP/2",)), 1)
    levels = [left(columns, row, level=level) for level in Level]
    assert levels == [2500, 3000, 4000]
    assert columns.assumed[row] == 1
    assert columns.ports.taken("TCP/2", settled=False) == [row]
    assert columns.ports.taken("TCP/2", settled=True) == []
    assert columns.ports.taken("TCP/1", settled=True) == [row]


def test_a_new_resource_gets_a_column() -> None:
    columns = NodeColumns()
    first = put(columns)
    second = put(columns, capacity={"cpu": "1", "licence": "3"})
    columns.take(first, Allocation({"seat": 1}), 1)
    assert left(columns, second, "licence") > 0
    assert left(columns, first, "licence") == 0
    assert left(columns, first, "seat") == -1


def test_images_and_labels_are_separate_from_the_node_itself() -> None:
    """[F3]"""
    columns = NodeColumns()
    row = put(columns, images=("a:1",))
    assert columns.facts.image("a:1")[row]
    assert not columns.facts.image("b:1")[row]
    new = Node(ObjectMeta(name="n"), status=NodeStatus(images=("b:1",)))
    columns.images(row, new)
    assert not columns.facts.image("a:1")[row]
    assert columns.facts.image("b:1")[row]


def test_columns_of_facts_are_bounded() -> None:
    columns = NodeColumns()
    put(columns, labels={"k3": "x"})
    for index in range(feature_columns.COLUMNS_MAX + 10):
        columns.facts.label(f"k{index}")
    assert len(columns.facts.by_key) == feature_columns.COLUMNS_MAX
    assert columns.facts.label("k3").values == ["x"]


def test_the_log_gives_recent_changes_and_drops_old_ones() -> None:
    log = ChangeLog()
    for row in range(5):
        log.note(row)
    seen = log.end
    assert log.since(2) is not None
    log.note(7)
    found = log.since(seen)
    assert found is not None
    assert found.tolist() == [7]
    for row in range(2 * LOG_MAX):
        log.note(row % 11)
    assert log.since(seen) is None
    latest = log.since(log.end - 3)
    assert latest is not None
    assert latest.tolist() == [(2 * LOG_MAX - n) % 11 for n in (3, 2, 1)]
    assert node_columns.LOG_MAX == LOG_MAX


def test_equal_values_have_one_number() -> None:
    interned: Interned[tuple[str, str]] = Interned()
    assert interned.number(("a", "b")) == interned.number(("a", "b")) == 0
    assert interned.number(("a", "c")) == 1
    assert interned.known(("x", "y")) is None
    assert len(interned) == 2
