"""YAML of apply patches, guarded before anything is built from it.

kubectl sends JSON with the media type of YAML, other clients real YAML. A few hundred bytes can
keep a YAML parser busy for minutes, so this one reads events only: no aliases, anchors or tags,
bounds on everything, and scalars as in JSON. The result goes through the guard of JSON documents
like every other body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from holdfast.model.encoding import wire
from holdfast.model.encoding.json_guard import DEPTH_MAX
from holdfast.model.encoding.problems import CODE_TOO_LARGE, malformed_error
from holdfast.model.errors import Invalid

# The C parser reads this much in about ten milliseconds; the one in Python needs ten times as long.
HAS_C = hasattr(yaml, "CSafeLoader")
BYTES_MAX = (128 << 10) if HAS_C else (16 << 10)
NODES_MAX = 5_000

_LOADER: Any = yaml.CSafeLoader if HAS_C else yaml.SafeLoader
_INT = re.compile(r"[-+]?[0-9]{1,17}", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?", re.ASCII
)
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def decode_yaml(body: bytes) -> Any:
    """The tree of an apply patch in JSON or YAML. Raises Invalid."""
    if body[:64].lstrip()[:1] == b"{":
        return wire.decode_tree(body)
    if len(body) > BYTES_MAX:
        raise Invalid(
            f"YAML must be at most {BYTES_MAX} bytes long; send it as JSON", code=CODE_TOO_LARGE
        )
    try:
        text = body.decode("utf-8")
        tree = _Builder(text).tree()
        again = json.dumps(tree, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except yaml.YAMLError as error:
        raise malformed_error(f"is not YAML: {_place(error)}") from None
    except (UnicodeError, ValueError):
        raise malformed_error("is not YAML in UTF-8 text") from None
    return wire.decode_tree(again)


def documents(text: str) -> Iterator[tuple[int, Any]]:
    """Each document of a text with the line it begins at, one after another. Raises Invalid."""
    try:
        yield from _Builder(text).trees()
    except yaml.YAMLError as error:
        raise malformed_error(f"is not YAML: {_place(error)}") from None


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", "") or "it cannot be read")[:80]
    return f"{what} at line {mark.line + 1}, column {mark.column + 1}" if mark else what


class _Builder:
    """Builds one document from the parser's events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._nodes = 0

    def tree(self) -> Any:
        found: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found:
                    raise malformed_error("must be one document")
                found.append(self._node(next(self._events), 0))
        if not found:
            raise malformed_error("is empty")
        return found[0]

    def trees(self) -> Iterator[tuple[int, Any]]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._nodes = 0
                yield event.start_mark.line + 1, self._node(next(self._events), 0)

    def _node(self, event: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise malformed_error(f"YAML must have at most {NODES_MAX} values; send it as JSON")
        if depth > DEPTH_MAX:
            raise malformed_error(f"must not be nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise malformed_error("must not have anchors or aliases")
        if event.tag is not None:
            raise malformed_error("must not have tags")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth)
        return _scalar(event.value) if event.implicit[0] else event.value

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, depth + 1)
            if not isinstance(event, yaml.ScalarEvent):
                raise malformed_error("must have texts as keys")
            name = event.value if not isinstance(key, str) else key
            if name in found:
                raise malformed_error("duplicate field; it must be given once")
            found[name] = self._node(next(self._events), depth + 1)
        return found

    def _sequence(self, depth: int) -> list[Any]:
        found: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            found.append(self._node(event, depth + 1))
        return found


def _scalar(text: str) -> Any:
    """A plain scalar as JSON has it; a date or a `yes` is a string."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
