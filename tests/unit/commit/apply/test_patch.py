"""Patches follow their RFCs and stay within bounds, whatever they contain."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from holdfast.commit.apply.patch import (
    CODE_PATCH_INVALID,
    CODE_TEST_FAILED,
    OPERATIONS_MAX,
    POINTER_CHARACTERS_MAX,
    json_patch,
    merge_patch,
)
from holdfast.model.encoding.json_guard import BODY_BYTES_MAX, DEPTH_MAX, NODES_MAX
from holdfast.model.errors import Conflict, Invalid
from tests.yardstick import PATCH_STEPS_MAX, assert_cheap


@pytest.mark.parametrize(
    "original, patch, result",
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_each_example_of_its_rfc_shows(
    original: Any, patch: Any, result: Any
) -> None:
    """The table of RFC 7386, appendix A."""
    before = deepcopy((original, patch))
    assert merge_patch(original, patch) == result
    assert (original, patch) == before


def test_the_long_example_of_the_merge_patch_rfc() -> None:
    """RFC 7386, section 3: a title, an author, tags and content."""
    document = {
        "title": "Goodbye!",
        "author": {"givenName": "John", "familyName": "Doe"},
        "tags": ["example", "sample"],
        "content": "This will be unchanged",
    }
    patch = {
        "title": "Hello!",
        "phoneNumber": "+01-123-456-7890",
        "author": {"familyName": None},
        "tags": ["example"],
    }
    assert merge_patch(document, patch) == {
        "title": "Hello!",
        "author": {"givenName": "John"},
        "tags": ["example"],
        "content": "This will be unchanged",
        "phoneNumber": "+01-123-456-7890",
    }


def _op(op: str, path: str, **members: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **{k.rstrip("_"): v for k, v in members.items()}}


@pytest.mark.parametrize(
    "document, operations, result",
    [
        # A.1 to A.7, A.10, A.11, A.14 and A.16 of RFC 6902, appendix A.
        ({"foo": "bar"}, [_op("add", "/baz", value="qux")], {"baz": "qux", "foo": "bar"}),
        (
            {"foo": ["bar", "baz"]},
            [_op("add", "/foo/1", value="qux")],
            {"foo": ["bar", "qux", "baz"]},
        ),
        ({"baz": "qux", "foo": "bar"}, [_op("remove", "/baz")], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [_op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
        (
            {"baz": "qux", "foo": "bar"},
            [_op("replace", "/baz", value="boo")],
            {"baz": "boo", "foo": "bar"},
        ),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [_op("move", "/qux/thud", from_="/foo/waldo")],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [_op("move", "/foo/3", from_="/foo/1")],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        (
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [_op("test", "/baz", value="qux"), _op("test", "/foo/1", value=2)],
            {"baz": "qux", "foo": ["a", 2, "c"]},
        ),
        (
            {"foo": "bar"},
            [_op("add", "/child", value={"grandchild": {}})],
            {"foo": "bar", "child": {"grandchild": {}}},
        ),
        (
            {"foo": "bar"},
            [_op("add", "/baz", value="qux", xyz=123)],
            {"foo": "bar", "baz": "qux"},
        ),
        ({"/": 9, "~1": 10}, [_op("test", "/~01", value=10)], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [_op("add", "/foo/-", value=["x"])], {"foo": ["bar", ["x"]]}),
        # What the text of the RFC says without an example.
        ({"a": 1}, [_op("add", "/a", value=None)], {"a": None}),
        ({"a": 1}, [_op("replace", "", value={"b": 2})], {"b": 2}),
        ({"a": 1}, [_op("add", "", value=[1])], [1]),
        ({"a": {"b": [1]}}, [_op("copy", "/c", from_="/a"), _op("add", "/a/b/0", value=0)],
         {"a": {"b": [0, 1]}, "c": {"b": [1]}}),
        ({"a": 1}, [_op("move", "/a", from_="/a")], {"a": 1}),
        ({"": {"": 1}}, [_op("replace", "//", value=2)], {"": {"": 2}}),
        ({"a": [1, 2]}, [_op("add", "/a/2", value=3)], {"a": [1, 2, 3]}),
        ({"a": 1}, [_op("test", "/a", value=1.0)], {"a": 1}),
        ({"a": [1]}, [_op("replace", "/a/0", value=2)], {"a": [2]}),
        ({"a": {"x": 1, "y": 2}}, [_op("test", "/a", value={"y": 2, "x": 1})],
         {"a": {"x": 1, "y": 2}}),
        ({"m": {"a/b~c": 1}}, [_op("remove", "/m/a~1b~0c")], {"m": {}}),
    ],
)  # fmt: skip
def test_a_json_patch_does_what_its_rfc_shows(
    document: Any, operations: list[dict[str, Any]], result: Any
) -> None:
    """The examples of RFC 6902 that succeed."""
    before = deepcopy((document, operations))
    assert json_patch(document, operations) == result
    assert (document, operations) == before


@pytest.mark.parametrize(
    "document, operation",
    [
        ({"baz": "qux"}, _op("test", "/baz", value="bar")),
        ({"/": 9, "~1": 10}, _op("test", "/~01", value="10")),
        ({"a": True}, _op("test", "/a", value=1)),
        ({"a": [0]}, _op("test", "/a", value=[False])),
        ({"a": 1}, _op("test", "/b", value=1)),
        ({"a": None}, _op("test", "/a", value=False)),
    ],
)
def test_a_test_that_does_not_hold_is_a_conflict_that_names_operation_and_path(
    document: Any, operation: dict[str, Any]
) -> None:
    """The caller's snapshot is old: it reads again, as after any stale precondition. [C2]"""
    with pytest.raises(Conflict, match=rf"^operation 1 \(test {operation['path']}\)") as refused:
        json_patch(document, [_op("add", "/z", value=0), operation])
    assert refused.value.code == CODE_TEST_FAILED


@pytest.mark.parametrize(
    "document, operations, complaint",
    [
        ({"foo": "bar"}, [_op("add", "/baz/bat", value="qux")], r"operation 0 \(add /baz/bat\)"),
        ({}, [_op("remove", "/a")], "there is no 'a'"),
        ({}, [_op("replace", "/a", value=1)], "there is no 'a'"),
        ({}, [_op("copy", "/b", from_="/a")], "there is no 'a'"),
        ({"a": [1]}, [_op("add", "/a/2", value=1)], "beyond the end"),
        ({"a": [1]}, [_op("replace", "/a/1", value=1)], "beyond the end"),
        ({"a": [1]}, [_op("remove", "/a/-")], "not an index"),
        ({"a": [1]}, [_op("add", "/a/01", value=1)], "not an index"),
        ({"a": [1]}, [_op("add", "/a/-1", value=1)], "not an index"),
        ({"a": [1]}, [_op("add", "/a/1e0", value=1)], "not an index"),
        ({"a": [1]}, [_op("add", "/a/٠", value=1)], "not an index"),
        ({"a": [1]}, [_op("add", "/a/99999999999999999999", value=1)], "not an index"),
        ({"a": 1}, [_op("add", "/a/b", value=1)], "below a plain value"),
        ({"a": 1}, [_op("replace", "/a/b", value=1)], "below a plain value"),
        ({"a": {"b": 1}}, [_op("move", "/a/b/c", from_="/a/b")], "into itself"),
        ({"a": 1}, [_op("remove", "")], "whole document"),
        ({"a": 1}, [_op("add", "a", value=1)], "begin with a slash"),
        ({"a": 1}, [_op("add", "/~2", value=1)], "only as ~0 or ~1"),
        ({"a": 1}, [_op("add", "/~", value=1)], "only as ~0 or ~1"),
        ({"a": 1}, [_op("add", "/b")], "needs 'value'"),
        ({"a": 1}, [_op("move", "/b")], "needs 'from'"),
        ({"a": 1}, [_op("copy", "/b", from_=7)], "from must be a JSON pointer"),
        ({"a": 1}, [{"op": "add", "value": 1}], "path must be a JSON pointer"),
        ({"a": 1}, [{"op": "add", "path": None, "value": 1}], "path must be a JSON pointer"),
        ({"a": 1}, [_op("destroy", "/a")], "op must be one of"),
        ({"a": 1}, [{"op": ["add"], "path": "/a"}], "op must be one of"),
        ({"a": 1}, ["remove /a"], "must be an object"),
        ({"a": 1}, {"op": "remove", "path": "/a"}, "must be a list"),
        ({"a": 1}, [_op("test", "/a", value=1), _op("remove", "/b")], r"operation 1 \(remove /b\)"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    document: Any, operations: Any, complaint: str
) -> None:
    before = deepcopy(document)
    with pytest.raises(Invalid, match=complaint) as refused:
        json_patch(document, operations)
    assert refused.value.code == CODE_PATCH_INVALID
    assert document == before


def test_no_error_shows_a_value() -> None:
    """The object may be a Secret, and errors are logged."""
    with pytest.raises(Conflict) as refused:
        json_patch({"data": {"k": "hunter2"}}, [_op("test", "/data/k", value="swordfish")])
    assert "hunter2" not in refused.value.message
    assert "swordfish" not in refused.value.message


_WIDE = {"a": [0] * 9_000}

_HOSTILE: list[tuple[str, Any, Any]] = [
    ("too many operations", {}, [_op("add", "/a", value=1)] * (OPERATIONS_MAX + 1)),
    ("a long pointer", {}, [_op("add", "/" + "a" * POINTER_CHARACTERS_MAX, value=1)]),
    ("a deep pointer", {}, [_op("add", "/a" * (DEPTH_MAX + 1), value=1)]),
    (
        "doubling by copies",
        {"a": [1]},
        [_op("copy", "/a/-", from_="/a") for _ in range(OPERATIONS_MAX)],
    ),
    (
        "doubling a long text",
        {"a": "x" * 10_000},
        [_op("copy", f"/b{i}", from_="/a") for i in range(200)],
    ),
    (
        "text that grows when it is encoded",
        {"a": "\x01" * 90_000},
        [_op("copy", f"/b{i}", from_="/a") for i in range(3)],
    ),
    (
        "copying and removing",
        _WIDE,
        [_op("copy", "/b", from_="/a"), _op("remove", "/b")] * 500,
    ),
    (
        "moving to and fro",
        _WIDE,
        [_op("move", "/b", from_="/a"), _op("move", "/a", from_="/b")] * 500,
    ),
    (
        "growing deeper by moves",
        {"a": {}},
        [
            op
            for _ in range(100)
            for op in (
                _op("add", "/b", value={"c": {"c": {"c": {}}}}),
                _op("move", "/b/c/c/c/c", from_="/a"),
                _op("move", "/a", from_="/b"),
            )
        ],
    ),
    (
        "a copy of the whole into itself",
        {"a": {}},
        [_op("copy", "/a/a", from_="")] * 40,
    ),
    ("too many values", {}, [_op("add", "/a", value=[0] * NODES_MAX)]),
    ("too many bytes", {}, [_op("add", "/a", value="x" * BODY_BYTES_MAX)]),
]


@pytest.mark.parametrize("name, document, operations", _HOSTILE, ids=[h[0] for h in _HOSTILE])
def test_a_hostile_json_patch_is_refused_and_costs_little(
    name: str, document: Any, operations: Any
) -> None:
    """Bounds are checked as the tree grows, not after it has grown."""

    def refused() -> None:
        with pytest.raises(Invalid, match=r"at most|deeper|more than"):
            json_patch(document, operations)

    assert_cheap(refused, PATCH_STEPS_MAX)


def test_a_merge_patch_is_bounded_too() -> None:
    deep: Any = {}
    for _ in range(DEPTH_MAX + 2):
        deep = {"a": deep}
    half = {f"k{i}": 0 for i in range(NODES_MAX // 2 + 1)}
    other = {f"l{i}": 0 for i in range(NODES_MAX // 2 + 1)}
    for target, patch in (
        ({}, deep),
        (half, other),
        ({"a": "x" * (BODY_BYTES_MAX // 2)}, {"b": "y" * (BODY_BYTES_MAX // 2)}),
        ({"a": "\x01" * (BODY_BYTES_MAX // 7)}, {"b": "\x01" * (BODY_BYTES_MAX // 7)}),
    ):
        with pytest.raises(Invalid, match=r"at most|deeper"):
            merge_patch(target, patch)


def test_a_thousand_honest_operations_pass() -> None:
    """The bound on work is far from what an ordinary large patch needs."""
    patch = [_op("add", "/list/-", value={"n": i}) for i in range(OPERATIONS_MAX)]
    document = {"list": [{"n": 0}] * 2_000}
    assert len(json_patch(document, patch)["list"]) == 2_000 + OPERATIONS_MAX


def test_what_was_removed_no_longer_counts() -> None:
    """A patch may put in one large part for another, though both together would be too much."""
    large = [0] * (NODES_MAX // 2)
    swap = [_op("remove", "/a"), _op("add", "/a", value=large)]
    assert json_patch({"a": large}, swap) == {"a": large}
    assert json_patch({"a": large}, [_op("replace", "/a", value=large)] * 2) == {"a": large}
