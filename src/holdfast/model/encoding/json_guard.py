"""Parses JSON from clients within bounds on size, depth and number of values.

`measure` scans the raw bytes with C-speed operations that never recurse: it counts values and depth
before any parser sees the document. `parse` then returns a plain tree, and refuses what parsers
accept but no object may contain: duplicate keys, NaN and infinities, integers beyond ±2^53, lone
surrogates and NUL.

`wire.decode` calls this for every document that is not self-proving, and for all patches.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from holdfast.model.encoding.problems import (
    CODE_MALFORMED,
    CODE_TOO_LARGE,
    DocumentPath,
    Problems,
    escape,
    invalid,
    malformed_error,
)
from holdfast.model.errors import Invalid
from holdfast.model.meta import INT_MAX

BODY_BYTES_MAX = 1 << 20
DEPTH_MAX = 32
# A node is any value: an object, a list, a string, a number, true, false or null.
NODES_MAX = 20_000
# No integer within ±2^53 has more characters, so longer ones are refused without being converted.
_INT_CHARACTERS_MAX = len(str(-INT_MAX))
# Any 64-bit float needs far fewer characters, and converting a megabyte of digits is slow.
_FLOAT_CHARACTERS_MAX = 64

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * len(str(INT_MAX))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_FOLD_BRACKETS = bytes.maketrans(b"{}", b"[]")


def measure(data: bytes) -> None:
    """Refuses a document that is too large, has too many values or is nested too deeply.

    A malformed document may pass; the parser explains it better. Up to the first error, the strings
    found here are those that a parser finds, so a parser never meets more than twice DEPTH_MAX open
    brackets.
    """
    if len(data) > BODY_BYTES_MAX:
        rule = f"must be at most {BODY_BYTES_MAX} bytes; it has {len(data)}"
        raise malformed_error(rule, code=CODE_TOO_LARGE)
    # Each value needs a byte, each level a bracket: most documents are this small and flat.
    if len(data) <= NODES_MAX and data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return
    outside = _without_strings(data)
    opening = outside.count(b"[") + outside.count(b"{")
    nodes = 1 + outside.count(b",") + opening
    if nodes > NODES_MAX and nodes - _empty_containers(outside) > NODES_MAX:
        _too_many_nodes()
    _measure_depth(outside, opening)


def _without_strings(data: bytes) -> bytes:
    """The document with each string replaced by one character, which leaves only structure."""
    if b"\\" in data:
        # Escaped backslashes first: the rest of a run then belongs to the next character.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value has at most a key and a string. More quotes would be split into a million objects.
    if data.count(b'"') > 4 * NODES_MAX:
        _too_many_nodes()
    return b"0".join(data.split(b'"')[::2])


def _empty_containers(outside: bytes) -> int:
    dense = outside.translate(None, b" \t\r\n")
    return dense.count(b"[]") + dense.count(b"{}")


def _too_many_nodes() -> NoReturn:
    raise malformed_error(f"must have at most {NODES_MAX} values")


def _measure_depth(outside: bytes, opening: int) -> None:
    brackets = outside.translate(_FOLD_BRACKETS, _NOT_BRACKETS)
    if len(brackets) > 2 * opening:
        # It is wrong, and a megabyte of these would make the loop below slow.
        raise malformed_error("is not JSON: more brackets are closed than opened")
    for _ in range(DEPTH_MAX):
        if not brackets:
            return
        # Each pass removes the innermost pairs, and so one level of the deepest nesting at least.
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > DEPTH_MAX:
        raise malformed_error(f"must not be nested deeper than {DEPTH_MAX} levels")


def has_long_integer(data: bytes) -> bool:
    """Whether some number may be an integer beyond ±2^53. May return a false positive."""
    # Most documents have no such run of digits, which is quicker to check.
    return _LONG in data.translate(_DIGITS_TO_ZERO) and _LONG in _without_strings(data).translate(
        _DIGITS_TO_ZERO
    )


def parse(data: bytes, *, hide_values: bool = False) -> Any:
    """A document as dicts, lists and scalars. Raises Invalid with every flaw and its path.

    `hide_values` keeps values out of the errors, for documents that hold secrets.
    """
    measure(data)
    if not data:
        raise malformed_error("is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise malformed_error(
            f"must be UTF-8; byte 0x{data[error.start]:02x} at offset {error.start} is not"
        ) from None
    if text.startswith("\ufeff"):
        raise malformed_error("must not begin with a byte order mark")
    return _Parse(hide_values).run(text, escapes="\\u" in text)


class _Flaw:
    """A placeholder for an unacceptable value, until the walk that finds its path."""

    __slots__ = ("rule", "text")

    def __init__(self, text: str, rule: str) -> None:
        self.text = text
        self.rule = rule

    def __str__(self) -> str:
        return self.text


class _Doubled(dict[str, Any]):
    """An object with duplicate keys."""

    __slots__ = ("doubled",)
    doubled: tuple[str, ...]


class _Parse:
    """One run of the standard library's parser, which has the hooks and is written in C."""

    def __init__(self, hide_values: bool) -> None:
        self._problems = Problems(hide_values=hide_values)
        self._flawed = False

    def run(self, text: str, *, escapes: bool) -> Any:
        decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._int,
            parse_float=self._float,
            parse_constant=self._constant,
        )
        try:
            tree = decoder.decode(text)
        except json.JSONDecodeError as error:
            raise _not_json(error) from None
        # Only an escape can produce a lone surrogate or a NUL: raw ones are not UTF-8 or not JSON.
        if self._flawed or escapes:
            self._find(tree, None, escapes)
        if self._problems.errors:
            raise invalid(self._problems.errors, self._problems.uncounted, code=CODE_MALFORMED)
        return tree

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) == len(pairs):
            return tree
        self._flawed = True
        times = Counter(key for key, _ in pairs)
        doubled = _Doubled(tree)
        doubled.doubled = tuple(key for key, count in times.items() if count > 1)
        return doubled

    def _int(self, text: str) -> int | _Flaw:
        if len(text) <= _INT_CHARACTERS_MAX:
            number = int(text)
            if -INT_MAX <= number <= INT_MAX:
                return number
        return self._flaw(text, f"must be an integer within ±{INT_MAX}")

    def _float(self, text: str) -> float | _Flaw:
        if len(text) > _FLOAT_CHARACTERS_MAX:
            rule = f"must be a number of at most {_FLOAT_CHARACTERS_MAX} characters"
            return self._flaw(text, rule)
        number = float(text)
        if math.isinf(number):
            return self._flaw(text, "must be a number that fits 64-bit floating point")
        return number

    def _constant(self, text: str) -> _Flaw:
        return self._flaw(text, "must be a number: JSON has no NaN and no infinities")

    def _flaw(self, text: str, rule: str) -> _Flaw:
        self._flawed = True
        return _Flaw(text, rule)

    def _find(self, value: Any, place: DocumentPath, escapes: bool) -> None:
        """Reports every flaw below a path. The depth was measured, so recursion is safe."""
        match value:
            case dict():
                if isinstance(value, _Doubled):
                    for key in value.doubled:
                        self._problems.add_rule(
                            (place, key), "duplicate field; it must be given once"
                        )
                for key, item in value.items():
                    if escapes:
                        self._find_in_text(key, (place, key))
                    self._find(item, (place, key), escapes)
            case list():
                for index, item in enumerate(value):
                    self._find(item, (place, index), escapes)
            case str() if escapes:
                self._find_in_text(value, place)
            case _Flaw():
                self._problems.add(place, value, value.rule)

    def _find_in_text(self, text: str, place: DocumentPath) -> None:
        if "\0" in text:
            self._problems.add(place, text, "must not contain NUL")
        if not text.isascii() and _has_lone_surrogate(text):
            self._problems.add(place, text, "must not contain a lone surrogate")


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _not_json(error: json.JSONDecodeError) -> Invalid:
    # The parser's message names no value of the document, only what it expected and where.
    rule = escape(error.msg, 80)
    return malformed_error(f"is not JSON: {rule} at line {error.lineno}, column {error.colno}")
