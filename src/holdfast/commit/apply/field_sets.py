"""Sets of fields, in the wire form of `metadata.managedFields` (FieldsV1).

A set is a tree. Its elements are `f:name` for a field or key, `k:{"name":"http"}` for a list item
by its keys, `v:"value"` for a member of a set and `i:0` for a position in a list. A node without
children is a field that belongs to the set; a node with children belongs to it only if `.` is among
them; the root never does, so `{}` as a whole is the empty set.

Functions here never change their arguments. Results share unchanged parts, and are the same object
as the argument if nothing changed: callers use this as a cheap check that there is nothing to
write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.encoding.json_guard import DEPTH_MAX

Fields = dict[str, Any]
Path = tuple[str, ...]

SELF = "."
_ELEMENT = re.compile(r"f:.+|k:\{.*\}|v:.+|i:[0-9]+", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_encoder = msgspec.json.Encoder()


def item_element(keys: tuple[tuple[str, Any], ...]) -> str:
    """The element of a list item with these keys, sorted by name."""
    return "k:" + _encoder.encode(dict(keys)).decode()


def member_element(value: Any) -> str:
    """The element of a member of a set."""
    return "v:" + _encoder.encode(value).decode()


def union(a: Fields, b: Fields) -> Fields:
    """The fields that are in either set."""
    if not a or not b:
        return a or b
    return _joined(a, b)


def _joined(a: Fields, b: Fields) -> Fields:
    out = a
    for element, theirs in b.items():
        mine = a.get(element)
        if mine is None:
            joined = theirs
        elif mine == theirs:
            continue
        elif mine and theirs:
            joined = _joined(mine, theirs)
        else:
            # One of the two is the field alone, the other has parts of it too.
            joined = mine or theirs
            if SELF not in joined:
                joined = {SELF: {}, **joined}
        if joined is not mine:
            if out is a:
                out = dict(a)
            out[element] = joined
    return out


def difference(a: Fields, b: Fields) -> Fields:
    """The fields that are in the first set and not in the second."""
    return _minus(a, b) or {} if a and b else a


def _minus(a: Fields, b: Fields) -> Fields | None:
    """The difference of two nodes with children; None if it is empty."""
    out = a
    for element, theirs in b.items():
        mine = a.get(element)
        if mine is None:
            continue
        left = _node_minus(mine, theirs)
        if left is not mine:
            if out is a:
                out = dict(a)
            if left is None:
                del out[element]
            else:
                out[element] = left
    return _tidied(out)


def _node_minus(a: Fields, b: Fields) -> Fields | None:
    if not b:
        if not a:
            return None
        if SELF not in a:
            return a
        return _tidied({element: node for element, node in a.items() if element != SELF})
    if not a:
        return None if SELF in b else a
    return _minus(a, b)


def _tidied(node: Fields) -> Fields | None:
    """Write a node of which only the field itself is left as `{}`."""
    if not node:
        return None
    return {} if len(node) == 1 and SELF in node else node


def remove_subtrees(a: Fields, gone: Fields) -> Fields:
    """The set without these fields and everything below them."""
    return _without(a, gone) or {} if a and gone else a


def _without(a: Fields, gone: Fields) -> Fields | None:
    out = a
    for element, below in gone.items():
        mine = a.get(element)
        if mine is None:
            continue
        left = None if not below else _without(mine, below) if mine else mine
        if left is not mine:
            if out is a:
                out = dict(a)
            if left is None:
                del out[element]
            else:
                out[element] = left
    return _tidied(out)


def intersection(a: Fields, b: Fields) -> Fields:
    """The fields that are in both sets."""
    return {
        element: shared
        for element, mine in a.items()
        if (theirs := b.get(element)) is not None
        and (shared := _node_common(mine, theirs)) is not None
    }


def _node_common(a: Fields, b: Fields) -> Fields | None:
    if not a or not b:
        return {} if SELF in (a or b) or a == b else None
    return _tidied(intersection(a, b))


def paths(fields: Fields, above: Path = ()) -> Iterator[Path]:
    """Every field of the set, in the order of the tree."""
    for element, node in fields.items():
        if element == SELF:
            yield above
        elif node:
            yield from paths(node, (*above, element))
        else:
            yield (*above, element)


def kubernetes_text(path: Path) -> str:
    """A path as Kubernetes prints it in conflicts: `.spec.template.env[name="A"].value`."""
    return "".join(
        f".{element[2:]}" if element.startswith("f:") else _bracketed(element) for element in path
    )


def wire_text(path: Path) -> str:
    """A path as our own errors name it: `metadata.labels[holdfast.dev/pool]`, without a leading
    dot.

    Keys that contain dots are bracketed, so that one path is never a prefix of another by accident.
    """
    texts = []
    for element in path:
        if not element.startswith("f:"):
            texts.append(_bracketed(element))
        elif _PLAIN.fullmatch(element, 2):
            texts.append(f".{element[2:]}")
        else:
            texts.append(f"[{element[2:]}]")
    return "".join(texts).removeprefix(".")


def _bracketed(element: str) -> str:
    kind, content = element[:2], element[2:]
    if kind == "i:":
        return f"[{content}]"
    if kind == "v:":
        return f"[={content}]"
    keys: dict[str, Any] = msgspec.json.decode(content)
    inner = ",".join(f"{name}={_encoder.encode(value).decode()}" for name, value in keys.items())
    return f"[{inner}]"


def parse_field_set(node: Any, depth: int = 1) -> Fields | None:
    """Parse a set that a client sent, in canonical form; None if it is malformed."""
    if not isinstance(node, dict) or depth > DEPTH_MAX:
        return None
    out: Fields = {}
    for element, below in node.items():
        if element == SELF:
            if below != {} or depth == 1:
                return None
            tidy: Fields | None = {}
        else:
            tidy = parse_field_set(below, depth + 1) if _names_a_field(element) else None
        if tidy is None:
            return None
        out[element] = tidy
    return _tidied(out) or {}


def _names_a_field(element: str) -> bool:
    if not _ELEMENT.fullmatch(element):
        return False
    if element[0] in "kv":
        try:
            msgspec.json.decode(element[2:])
        except msgspec.DecodeError:
            return False
    return True
