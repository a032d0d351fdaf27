"""The limits of a document, each at its very edge."""

from __future__ import annotations

import json

import pytest

from holdfast.model.encoding.json_guard import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    NODES_MAX,
    has_long_integer,
    parse,
)
from holdfast.model.encoding.problems import CODE_MALFORMED, CODE_TOO_LARGE, PROBLEMS_MAX
from holdfast.model.errors import Invalid
from holdfast.model.meta import INT_MAX


def refusal(data: bytes) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse(data)
    return caught.value


def test_what_is_within_all_limits_is_read() -> None:
    """Each limit names the last value that is accepted."""
    assert parse(b'"' + b"a" * (BODY_BYTES_MAX - 2) + b'"') == "a" * (BODY_BYTES_MAX - 2)
    assert parse(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX) is not None
    assert len(parse(b"[" + b"0," * (NODES_MAX - 2) + b"0]")) == NODES_MAX - 1
    assert parse(f"[{INT_MAX},{-INT_MAX}]".encode()) == [INT_MAX, -INT_MAX]


@pytest.mark.parametrize(
    "data, says, code",
    [
        (b" " * BODY_BYTES_MAX + b"1", "at most 1048576 bytes; it has 1048577", CODE_TOO_LARGE),
        (b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1), "deeper than 32", CODE_MALFORMED),
        (b"[" + b"0," * (NODES_MAX - 1) + b"0]", "at most 20000 values", CODE_MALFORMED),
        (str(INT_MAX + 1).encode(), "an integer within", CODE_MALFORMED),
        (str(-INT_MAX - 1).encode(), "an integer within", CODE_MALFORMED),
    ],
)
def test_one_more_than_a_limit_is_refused(data: bytes, says: str, code: str) -> None:
    """The refusal names the rule, and its code tells a body too large from a malformed one."""
    caught = refusal(data)
    assert says in caught.message
    assert caught.code == code


def test_every_flaw_is_named_with_its_place() -> None:
    """A user mends them in one go."""
    caught = refusal(b'{"a":{"b":NaN,"b":1,"c":[1e999,"\\u0000",99999999999999999]},"\\ud800":1}')
    assert [(error.path, error.value) for error in caught.errors] == [
        ("a.b", ""),
        ("a.c[0]", "1e999"),
        ("a.c[1]", '"\\x00"'),
        ("a.c[2]", "99999999999999999"),
        ("[\\ud800]", '"\\ud800"'),
    ]


def test_flaws_beyond_the_bound_are_counted() -> None:
    """The refusal stays short however many there are."""
    caught = refusal(b"[" + b"NaN," * 999 + b"NaN]")
    assert len(caught.errors) == PROBLEMS_MAX
    assert caught.message.endswith(f"and {1000 - PROBLEMS_MAX} more")


def test_a_syntax_error_says_where() -> None:
    """Line and column are counted as editors do."""
    assert "at line 2, column 8" in refusal(b'{\n  "a": nope\n}').message


def test_values_are_hidden_on_demand() -> None:
    """A tree whose kind is not known yet may be a Secret."""
    with pytest.raises(Invalid) as caught:
        parse(b'{"data":{"k":31337313373133731337}}', hide_values=True)
    assert "31337" not in caught.value.message
    assert "data.k: (hidden)" in caught.value.message


def test_pairs_of_surrogates_and_escapes_are_text() -> None:
    """Only lone surrogates are refused; the rest of JSON's escapes stay usable."""
    assert parse(b'"\\ud83d\\ude00\\u00e9\\n\\\\u0000\\/"') == "😀é\n\\u0000/"


@pytest.mark.parametrize(
    "data, expected",
    [
        (b'{"a":9007199254740992}', True),
        (b'{"a":900719925474099}', False),
        (b'{"a":"9007199254740992"}', False),
        (b'{"a":"\\"9007199254740992"}', False),
        (b'{"9007199254740992":1}', False),
    ],
)
def test_long_integers_are_found_outside_strings_only(data: bytes, expected: bool) -> None:
    """A digest of digits in a string must not send a document the slow way."""
    assert has_long_integer(data) is expected


def test_a_tree_is_what_the_standard_library_reads() -> None:
    """The guard adds refusals; it changes no value."""
    text = '{"a": [1, -2.5, true, null, "x", {"": []}], "b": {"c": 1e3}}'
    assert parse(text.encode()) == json.loads(text)
