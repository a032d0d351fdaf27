"""How large a tree may become that the server makes itself: by a patch or by an apply.

What a client sends is measured as bytes before it is parsed. What grows out of it here is measured
as a tree, by the same limits, so that the result can always be sent and read again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import FieldError, Invalid
from holdfast.model.guard import BODY_BYTES_MAX, DEPTH_MAX, NODES_MAX

CODE_PATCH_INVALID = "PatchInvalid"
_CONTAINERS = (dict, list)


class Size(msgspec.Struct, gc=False):
    """What trees take up. `characters` is never more than their encodings have bytes."""

    nodes: int = 0
    characters: int = 0

    def check(self) -> None:
        """Refuse what is certainly too large."""
        if self.nodes > NODES_MAX:
            raise impossible(f"the result must have at most {NODES_MAX} values")
        if self.characters > BODY_BYTES_MAX:
            raise impossible(f"the result must be at most {BODY_BYTES_MAX} bytes")


def measure(value: Any, depth: int, size: Size) -> None:
    """Add a value that stands at a depth, counted from 1. What is too deep ends the count."""
    # Without recursion and with counts of its own: patches have tens of thousands of values counted
    # before they are refused, while all other requests wait.
    nodes, characters = 0, 0
    level: list[Any] = [value]
    while level:
        below: list[Any] = []
        nodes += len(level)
        for item in level:
            if isinstance(item, str):
                characters += len(item) + 2
            elif isinstance(item, dict):
                characters += sum(map(len, item)) + 3 * len(item) + 2
                below += item.values()
            elif isinstance(item, list):
                characters += 2
                below += item
            else:
                characters += 1
        if depth > DEPTH_MAX and any(map(_is_container, level)):
            raise impossible(f"the result must not be nested deeper than {DEPTH_MAX} levels")
        level, depth = below, depth + 1
    size.nodes += nodes
    size.characters += characters


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS)


def check_tree(tree: Any) -> None:
    """Refuse a whole document that is too large or too deep."""
    size = Size()
    measure(tree, 1, size)
    check_measured(tree, size)


def check_measured(tree: Any, size: Size) -> None:
    """The same for one that has been measured already."""
    size.check()
    # Escapes and other alphabets make an encoding up to six times as long as the characters that
    # were counted; what is small enough even then need not be encoded to know it.
    if size.characters > BODY_BYTES_MAX // 8 and len(msgspec.json.encode(tree)) > BODY_BYTES_MAX:
        raise impossible(f"the result must be at most {BODY_BYTES_MAX} bytes")


def impossible(rule: str, path: str = "") -> Invalid:
    """What was asked for cannot be done to this object."""
    return Invalid(rule, (FieldError(path=path, value="", rule=rule),), code=CODE_PATCH_INVALID)
