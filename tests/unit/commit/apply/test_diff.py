"""Differences between two trees: complete, by paths that mean one field each."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from holdfast.commit.apply.diff import (
    changed_paths,
    changed_paths_outside,
    compare,
    is_at_or_below,
    json_equal,
)
from holdfast.commit.apply.shapes import FREE, shape_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import Workload

WORKLOAD = shape_of(Workload)
NODE = shape_of(Node)


def _workload(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"template": {}, **spec}}


@pytest.mark.parametrize(
    "a, b, equal",
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1, [True]], [1, [1]], False),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": None}, {}, False),
        ("1", 1, False),
        ([], {}, False),
        (None, False, False),
    ],
)
def test_values_are_equal_as_json_and_not_as_python(a: Any, b: Any, equal: bool) -> None:
    assert json_equal(a, b) is equal
    assert json_equal(b, a) is equal


@pytest.mark.parametrize(
    "old, new, paths",
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ["a.c"]),
        ({"a": 1}, {"b": 1}, ["b", "a"]),
        ({"a": {"b": 1}}, {"a": 7}, ["a"]),
        ({"a": {"b": 1}}, {"a": {}}, ["a.b"]),
        ({"a": {}}, {"a": {"b": {"c": 1}}}, ["a.b", "a.b.c"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1]"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ["a[0].b"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["a[0]", "a[1]"]),
        ({"a": None}, {}, ["a"]),
        ({"a": True}, {"a": 1}, ["a"]),
        (
            {"labels": {"holdfast.dev/pool": "x"}},
            {"labels": {"holdfast.dev/pool": "y"}},
            ["labels[holdfast.dev/pool]"],
        ),
    ],
)
def test_without_a_shape_every_difference_has_its_path(
    old: dict[str, Any], new: dict[str, Any], paths: list[str]
) -> None:
    """One writer per field needs to know which fields a write changes. [A9]"""
    before = deepcopy((old, new))
    assert changed_paths(old, new) == paths
    assert (old, new) == before


def test_only_changes_outside_the_allowed_paths_are_reported() -> None:
    """A status writer that also changes the spec is caught by the path. [A9, C6.7]"""
    old = {"spec": {"replicas": 1, "pool": "a"}, "status": {"phase": "x", "phases": 1}}
    new = {"spec": {"replicas": 2, "pool": "a"}, "status": {"phase": "y", "phases": 2}}
    assert changed_paths_outside(old, new) == ["spec.replicas", "status.phase", "status.phases"]
    assert changed_paths_outside(old, new, ["status"]) == ["spec.replicas"]
    assert changed_paths_outside(old, new, ["spec", "status"]) == []
    # A path is no prefix of another just because its text is.
    assert changed_paths_outside(old, new, ["spec", "status.phase"]) == ["status.phases"]
    assert changed_paths_outside(old, new, ["spec", "stat"]) == ["status.phase", "status.phases"]


def test_a_key_with_dots_is_not_mistaken_for_a_path() -> None:
    assert is_at_or_below("labels.app", "labels")
    assert is_at_or_below("labels[app.kubernetes.io/name]", "labels")
    assert not is_at_or_below("labels[app.kubernetes.io/name]", "labels.app")
    assert not is_at_or_below("spec", "spec.replicas")


def test_conditions_differ_by_type_and_not_by_place() -> None:
    """Each condition has its own writer, wherever it stands in the list. [A9]"""
    ready = {"type": "Ready", "status": "True"}
    stuck = {"type": "Stuck", "status": "False"}
    old = {**_workload(), "status": {"conditions": [ready]}}
    new = {**_workload(), "status": {"conditions": [stuck, {**ready, "status": "False"}]}}
    mine = 'status.conditions[type="Ready"]'
    assert changed_paths_outside(old, new, [mine], WORKLOAD) == [
        'status.conditions[type="Stuck"]',
        'status.conditions[type="Stuck"].type',
        'status.conditions[type="Stuck"].status',
    ]
    assert changed_paths(old, new, FREE) == ["status.conditions"]


def test_a_changed_order_is_reported_although_it_touches_no_field() -> None:
    """Environment variables refer to earlier ones, so their order is part of what must not change.

    Ownership of fields, on the other hand, knows no order.
    """
    a, b = {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}
    old = {"metadata": {}, "spec": {"template": {"env": [a, b]}}}
    new = {"metadata": {}, "spec": {"template": {"env": [b, a]}}}
    change = compare(old, new, WORKLOAD)
    assert not change.touched
    assert not change.removed
    assert changed_paths(old, new, WORKLOAD) == ["spec.template.env"]
    assert changed_paths(old, new) == [
        f"spec.template.env[{i}].{key}" for i in (0, 1) for key in ("name", "value")
    ]


@pytest.mark.parametrize(
    "old, new",
    [
        (_workload(), _workload(replicas=1)),
        (_workload(replicas=1), _workload()),
        (_workload(), _workload(rollout={})),
        (_workload(), _workload(rollout={"maxSurge": "25%", "paused": False})),
        (_workload(), _workload(disruption=None)),
        (_workload(), {**_workload(), "status": {"progress": {"ready": 0}}}),
        (_workload(), {**_workload(), "metadata": {"labels": {}, "finalizers": []}}),
        (_workload(), {**_workload(), "metadata": {"uid": "1", "resourceVersion": "7"}}),
        (_workload(), {**_workload(), "kind": "Workload", "apiVersion": "holdfast.dev/v1"}),
    ],
)
def test_a_default_that_is_spelled_out_is_no_difference(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert changed_paths(old, new, WORKLOAD) == []
    assert changed_paths(new, old, WORKLOAD) == []


def test_going_back_to_a_default_that_is_a_value_is_a_change_to_that_value() -> None:
    change = compare(_workload(replicas=3), _workload(), WORKLOAD)
    assert change.touched == {"f:spec": {"f:replicas": {}}}
    assert change.removed == {}


def test_going_back_to_nothing_is_a_removal() -> None:
    """An empty text, 0 or false is how objects say nothing, where that is the default."""
    old, new = (
        {"spec": {"cordoned": True, "pool": "x", "taints": [{"key": "a"}, {"key": "b"}]}},
        {"spec": {"cordoned": False, "pool": "x", "taints": [{"key": "b"}]}},
    )
    change = compare(old, new, NODE)
    assert change.touched == {}
    gone = {'k:{"effect":"NoSchedule","key":"a"}': {}}
    assert change.removed == {"f:spec": {"f:cordoned": {}, "f:taints": gone}}


def test_a_part_that_may_be_missing_is_not_the_same_when_empty() -> None:
    """`drain: {}` drains the node; no drain does not."""
    change = compare({"spec": {}}, {"spec": {"drain": {}}}, NODE)
    assert change.touched == {"f:spec": {"f:drain": {}}}
    assert compare({"spec": {"drain": {}}}, {"spec": {}}, NODE).removed == change.touched


def test_a_key_that_is_left_out_has_its_default() -> None:
    explicit = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    short = {"spec": {"taints": [{"key": "a"}]}}
    assert changed_paths(explicit, short, NODE) == []


def test_items_without_distinct_keys_differ_as_a_whole() -> None:
    """Nothing slips through because two items claim the same key."""
    one = {"type": "Ready", "status": "True"}
    old = {"spec": {}, "status": {"conditions": [one]}}
    new = {"spec": {}, "status": {"conditions": [one, {**one, "status": "False"}]}}
    assert changed_paths(old, new, NODE) == ["status.conditions"]
