"""Patches and differences on random trees, against the shortest code that says what they mean."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.apply.diff import changed_paths, json_equal
from holdfast.commit.apply.patch import json_patch, merge_patch
from holdfast.model.encoding.json_guard import BODY_BYTES_MAX, DEPTH_MAX, NODES_MAX
from holdfast.model.errors import Conflict, Invalid
from tests.yardstick import PATCH_STEPS_MAX, assert_cheap

keys = st.sampled_from(["a", "b", "a/b", "m~n", "", "0", "-", "x.y"])
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 2), st.sampled_from(["", "s", 0.5, 1.0])
)
trees = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)
documents = st.dictionaries(keys, trees, max_size=4)


def _pointer(steps: list[str]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


@st.composite
def pointers(draw: st.DrawFn, document: Any) -> str:
    """Mostly a place in the document, or next to one; sometimes nowhere."""
    steps: list[str] = []
    value = document
    while isinstance(value, dict | list) and draw(st.integers(0, 3)):
        if isinstance(value, dict):
            step = draw(st.sampled_from(sorted(value)) if value and draw(st.booleans()) else keys)
            value = value.get(step)
        else:
            step = draw(st.sampled_from([str(i) for i in range(len(value) + 2)] + ["-"]))
            index = int(step) if step != "-" else len(value)
            value = value[index] if index < len(value) else None
        steps.append(step)
    return _pointer(steps)


@st.composite
def patches(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    document = draw(documents)
    operations = []
    for _ in range(draw(st.integers(0, 5))):
        operation: dict[str, Any] = {
            "op": draw(st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])),
            "path": draw(pointers(document)),
        }
        if operation["op"] in ("move", "copy"):
            operation["from"] = draw(pointers(document))
        else:
            operation["value"] = draw(trees)
        operations.append(operation)
    return document, operations


class Fails(Exception):
    """What the reference does where the RFC says error."""


def _steps(pointer: str) -> list[str]:
    return [s.replace("~1", "/").replace("~0", "~") for s in pointer.split("/")[1:]]


def _get(document: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step in map(str, range(len(document))):
            document = document[int(step)]
        else:
            raise Fails
    return document


def _add(document: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    parent, last = _get(document, steps[:-1]), steps[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list) and last in [*map(str, range(len(parent) + 1)), "-"]:
        parent.insert(len(parent) if last == "-" else int(last), value)
    else:
        raise Fails
    return document


def _remove(document: Any, steps: list[str]) -> None:
    _get(document, steps)
    if not steps:
        raise Fails
    parent = _get(document, steps[:-1])
    del parent[steps[-1] if isinstance(parent, dict) else int(steps[-1])]


def _reference(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902 in its own words, one line each, on a copy."""
    document = deepcopy(document)
    for operation in deepcopy(operations):
        path = _steps(operation["path"])
        match operation["op"]:
            case "add":
                document = _add(document, path, operation["value"])
            case "remove":
                _remove(document, path)
            case "replace":
                _get(document, path)
                if path:
                    _remove(document, path)
                document = _add(document, path, operation["value"])
            case "copy":
                source = deepcopy(_get(document, _steps(operation["from"])))
                document = _add(document, path, source)
            case "test":
                if not _equal(_get(document, path), operation["value"]):
                    raise Fails
            case "move":
                source = _steps(operation["from"])
                value = _get(document, source)
                if path[: len(source)] == source and path != source:
                    raise Fails
                if path != source:
                    _remove(document, source)
                    document = _add(document, path, value)
    return document


def _equal(a: Any, b: Any) -> bool:
    """JSON equality by way of text: 1 is 1.0, but neither is true."""

    def text(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, dict):
            return "{" + ",".join(f"{json.dumps(k)}:{text(value[k])}" for k in sorted(value)) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(text, value)) + "]"
        return json.dumps(value)

    return text(a) == text(b)


@given(case=patches())
def test_a_json_patch_is_what_its_rfc_says(case: tuple[Any, list[dict[str, Any]]]) -> None:
    """Whatever the operations, result and failure agree with the reference."""
    document, operations = case
    before = deepcopy(case)
    try:
        expected = _reference(document, operations)
    except Fails:
        expected = Fails
    try:
        result = json_patch(document, operations)
    except (Invalid, Conflict):
        result = Fails
    assert (result is Fails) == (expected is Fails)
    assert result is Fails or _equal(result, expected)
    assert case == before


def _merge_reference(target: Any, patch: Any) -> Any:
    """The pseudocode of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = _merge_reference(target.get(name), value)
    return target


@given(target=trees, patch=trees)
def test_a_merge_patch_is_what_its_rfc_says(target: Any, patch: Any) -> None:
    before = deepcopy((target, patch))
    assert _equal(merge_patch(target, patch), _merge_reference(deepcopy(target), patch))
    assert (target, patch) == before


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, items), default=0)


def _nodes(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 1
    return 1 + sum(map(_nodes, value.values() if isinstance(value, dict) else value))


greedy = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["copy", "copy", "copy", "move", "remove"]),
            "path": st.sampled_from(["/a/-", "/b", "/b/a/-", "/a/0", "/b/b", "/c", "/b/-"]),
            "from": st.sampled_from(["/a", "/b", "", "/c", "/a/0"]),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(document=st.sampled_from([{"a": [1]}, {"a": ["x" * 5000], "b": {"a": []}}]), ops=greedy)
def test_no_patch_grows_beyond_the_bounds_or_costs_much(document: Any, ops: Any) -> None:
    """Repeated to the allowed number of operations, it is refused or its result is small."""
    # Only those that work at all are repeated, for an error would end the patch at once.
    working: list[Any] = []
    for operation in ops:
        try:
            json_patch(document, [*working, operation])
        except Invalid:
            continue
        working.append(operation)
    result: Any = None

    def apply() -> None:
        nonlocal result
        with suppress(Invalid):
            result = json_patch(document, (working * 1_000)[:1_000])

    assert_cheap(apply, PATCH_STEPS_MAX)
    assert _depth(result) <= DEPTH_MAX
    assert _nodes(result) <= NODES_MAX
    assert len(json.dumps(result)) <= BODY_BYTES_MAX


@given(old=documents, new=documents)
def test_a_difference_is_reported_if_and_only_if_there_is_one(old: Any, new: Any) -> None:
    """No write to another owner's field goes unseen. [A9, C6.7]"""
    assert json_equal(old, new) == _equal(old, new)
    assert (changed_paths(old, new) == []) == _equal(old, new)
    assert changed_paths(old, deepcopy(old)) == []
