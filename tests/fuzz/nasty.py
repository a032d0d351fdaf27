"""Strategies for what no client sends by accident: pieces that readers trip over, in any order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

# Whatever has made some parser somewhere stumble.
TEXTS = (
    "",
    " ",
    "\t",
    "\0",
    "\x7f",
    "\r\n",
    "..",
    "../",
    "/",
    "//",
    "~",
    "~0",
    "~2",
    "-",
    "-1",
    "0",
    "00",
    "1e999999999",
    "9" * 40,
    "NaN",
    "Infinity",
    "null",
    "true",
    "0x10",
    "1_000",
    "\u0661",
    "\u202e",
    "\u200d",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "%",
    "%00",
    "%ff",
    "%2f",
    "a" * 64,
    "a" * 300,
    "\\",
    '"',
    "'",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    "==",
    "!=",
    "!",
    "<",
    ">",
    "&",
    "*",
    "?",
    "#",
    "<<",
    "!!",
    "---",
    "__class__",
    "$(A)",
    "holdfast.dev/x",
    "2026-11-16T00:00:00Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
)
texts = st.sampled_from(TEXTS) | st.text(max_size=12)
numbers = st.one_of(
    st.integers(-2, 3),
    st.sampled_from((2**31, 2**53, -(2**53), 2**53 + 1, 2**63, 2**64, 10**30)),
    st.floats(allow_nan=False, allow_infinity=False),
)
plain = st.one_of(st.none(), st.booleans(), numbers, texts)


def trees(keys: Sequence[str]) -> st.SearchStrategy[Any]:
    """JSON whose objects mostly have these keys."""
    names = st.sampled_from(list(keys)) | texts
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=10,
    )


def words(*pieces: str) -> st.SearchStrategy[str]:
    """A text of these pieces and of nasty ones, sometimes of one piece many times over."""
    one = st.one_of(st.sampled_from(pieces), st.sampled_from(pieces), texts)
    joined = st.lists(one, max_size=8).map("".join)
    many = st.tuples(one, st.sampled_from((50, 700, 9_000)), one).map(
        lambda it: it[0] * it[1] + it[2]
    )
    return st.one_of(joined, joined, joined, many)


_SPLICES = st.one_of(
    st.binary(max_size=3),
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
    texts.map(lambda text: json.dumps(text).encode()),
    st.sampled_from((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\\udc00")),
    st.sampled_from((b"[" * 40, b'{"a":' * 40, b"1" * 400, b"," * 30, b"&a ", b"*a", b"!!x ")),
)


@st.composite
def damaged(draw: st.DrawFn, documents: Sequence[bytes]) -> bytes:
    """One of these with a few things put in, left out or repeated anywhere."""
    data = draw(st.sampled_from(list(documents)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 12)))
        middle = draw(_SPLICES) if draw(st.booleans()) else data[start:end] * 2
        data = data[:start] + middle + data[end:]
    return data
