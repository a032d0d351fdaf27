"""Merge patches (RFC 7386) and JSON patches (RFC 6902) on plain trees.

The server decodes a patch with the same guards as any document, applies it here to the tree of the
live object, and checks the result against the kind's structs; field ownership then follows from the
difference. Arguments are never changed.

A patch within all limits can still ask for a lot: ten `copy` operations make a thousand of one
value. So nodes, depth, bytes and work are counted with every operation, and the patch is refused
when one of them exceeds its bound. No error shows a value, because the object may be a Secret.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from holdfast.commit.apply.diff import json_equal
from holdfast.model.encoding.json_guard import BODY_BYTES_MAX, DEPTH_MAX, NODES_MAX
from holdfast.model.encoding.problems import escape
from holdfast.model.errors import Conflict, FieldError, Invalid

# The size limits of trees that the server computes, by a patch or by an apply.
#
# What a client sends is measured in bytes before it is parsed. The results computed here are
# measured as trees, by the same limits, so that they can always be sent and read again.

CODE_PATCH_INVALID = "PatchInvalid"
_BOUNDED_CONTAINERS = (dict, list)


class TreeSize(msgspec.Struct, gc=False):
    """The size of trees. `characters` is never more than the bytes of their encodings."""

    nodes: int = 0
    characters: int = 0

    def check(self) -> None:
        """Raise Invalid for what is certainly too large."""
        if self.nodes > NODES_MAX:
            raise impossible(f"the result must have at most {NODES_MAX} values")
        if self.characters > BODY_BYTES_MAX:
            raise impossible(f"the result must be at most {BODY_BYTES_MAX} bytes")


def measure(value: Any, depth: int, size: TreeSize) -> None:
    """Add a value at a depth, counted from 1. A value that is too deep ends the count."""
    # Without recursion and with local counters: tens of thousands of values of a patch are counted
    # before it is refused, while all other requests wait.
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
    return isinstance(value, _BOUNDED_CONTAINERS)


def check_tree(tree: Any) -> None:
    """Raise Invalid for a whole document that is too large or too deep."""
    size = TreeSize()
    measure(tree, 1, size)
    check_measured(tree, size)


def check_measured(tree: Any, size: TreeSize) -> None:
    """The same for a document that has been measured already."""
    size.check()
    # Escapes and non-ASCII characters make an encoding up to six times as long as the counted
    # characters. A document that is small enough even then need not be encoded.
    if size.characters > BODY_BYTES_MAX // 8 and len(msgspec.json.encode(tree)) > BODY_BYTES_MAX:
        raise impossible(f"the result must be at most {BODY_BYTES_MAX} bytes")


def impossible(rule: str, path: str = "") -> Invalid:
    """The error for a patch that cannot be applied to this object."""
    return Invalid(rule, (FieldError(path=path, value="", rule=rule),), code=CODE_PATCH_INVALID)


OPERATIONS_MAX = 1_000
# The longest path of any kind has some 60 characters; keys of labels and annotations add 317.
POINTER_CHARACTERS_MAX = 1_024
# The limit on nodes visited by all operations together. Moving a large part back and forth grows
# nothing and would otherwise take seconds.
WORK_NODES_MAX = 3 * NODES_MAX

# Unlike an inapplicable patch, a stale view of the object is cured by reading again.
CODE_TEST_FAILED = "PatchTestFailed"

# The members that each operation needs besides `op` and `path`.
_NEEDS = {
    "add": "value",
    "replace": "value",
    "test": "value",
    "remove": "",
    "move": "from",
    "copy": "from",
}
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")
_SHOWN_MAX = 120
_CONTAINERS = (dict, list)


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with a merge patch applied: objects are merged, null removes, anything else
    replaces.

    The result is bounded like any document. It shares unchanged parts with the arguments.
    """
    result = _merged(target, patch, 1)
    check_tree(result)
    return result


def _merged(target: Any, patch: Any, depth: int) -> Any:
    if not isinstance(patch, dict):
        return patch
    if depth > DEPTH_MAX:
        raise impossible(f"the patch must not be nested deeper than {DEPTH_MAX} levels")
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value, depth + 1)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """The target with all operations applied in order, or an error that names the first to fail.

    A `test` that does not hold is a Conflict: the caller's view of the object is stale. Any other
    error is Invalid.
    """
    if not isinstance(operations, list):
        raise impossible("a JSON patch must be a list of operations")
    if len(operations) > OPERATIONS_MAX:
        raise impossible(
            f"a JSON patch must have at most {OPERATIONS_MAX} operations; it has {len(operations)}"
        )
    patching = _Patching(target)
    for index, operation in enumerate(operations):
        patching.perform(index, operation)
    check_measured(patching.tree, patching.size)
    return patching.tree


def _copied(value: Any) -> Any:
    """A copy that shares no container with the value, whose depth was measured before."""
    if isinstance(value, dict):
        return {
            key: _copied(item) if isinstance(item, _CONTAINERS) else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_copied(item) if isinstance(item, _CONTAINERS) else item for item in value]
    return value


class _Patching:
    """One run of a JSON patch over a private copy of the target."""

    def __init__(self, target: Any) -> None:
        self.size = TreeSize()
        measure(target, 1, self.size)
        self.size.check()
        self.tree = _copied(target)
        self._work = self.size.nodes
        self._where = ""

    def perform(self, index: int, operation: Any) -> None:
        """Apply one operation, or raise an error that names its number and path."""
        self._where = f"operation {index}"
        if not isinstance(operation, dict):
            self._refuse("must be an object")
        name = operation.get("op")
        if not isinstance(name, str) or name not in _NEEDS:
            self._refuse(f"op must be one of {', '.join(_NEEDS)}")
        path = self._pointer(operation, "path")
        self._where = f"operation {index} ({name} {escape(operation['path'], _SHOWN_MAX)})"
        needed = _NEEDS[name]
        if needed and needed not in operation:
            self._refuse(f"needs {needed!r}")
        match name:
            case "add":
                self._add(path, self._taken(operation["value"], len(path)))
            case "remove":
                self._drop(path)
            case "replace":
                self._find(path)
                self._replace(path, self._taken(operation["value"], len(path)))
            case "test":
                self._test(path, operation["value"])
            case "move":
                self._move(self._pointer(operation, "from"), path)
            case _:
                source = self._find(self._pointer(operation, "from"))
                self._add(path, self._taken(source, len(path)))
        # Checked here and not before, because an operation may replace as much as it adds.
        self.size.check()

    def _refuse(self, rule: str) -> NoReturn:
        raise impossible(f"{self._where}: {rule}")

    def _pointer(self, operation: dict[str, Any], member: str) -> list[str]:
        """The steps of a JSON pointer."""
        text = operation.get(member)
        if not isinstance(text, str):
            self._refuse(f"{member} must be a JSON pointer")
        if len(text) > POINTER_CHARACTERS_MAX:
            self._refuse(f"{member} must have at most {POINTER_CHARACTERS_MAX} characters")
        if text and not text.startswith("/"):
            self._refuse(f"{member} must be empty or begin with a slash")
        if _BAD_ESCAPE.search(text):
            self._refuse(f"{member} may contain ~ only as ~0 or ~1")
        steps = text.split("/")[1:]
        if len(steps) > DEPTH_MAX:
            self._refuse(f"{member} must have at most {DEPTH_MAX} steps")
        # In this order, so that ~01 becomes ~1 and not a slash.
        return [step.replace("~1", "/").replace("~0", "~") for step in steps]

    def _taken(self, value: Any, depth: int) -> Any:
        """A counted copy of a value that is about to be put at this depth."""
        size = TreeSize()
        measure(value, depth + 1, size)
        self._grow(size)
        return _copied(value)

    def _grow(self, size: TreeSize) -> None:
        self._spend(size.nodes)
        self.size.nodes += size.nodes
        self.size.characters += size.characters

    def _shrink(self, value: Any) -> None:
        size = TreeSize()
        measure(value, 1, size)
        self._spend(size.nodes)
        self.size.nodes -= size.nodes
        self.size.characters -= size.characters

    def _spend(self, nodes: int) -> None:
        self._work += nodes
        if self._work > WORK_NODES_MAX:
            self._refuse(f"the patch must not copy or move more than {WORK_NODES_MAX} values")

    def _find(self, path: list[str]) -> Any:
        value = self.tree
        for step in path:
            value = self._child(value, step)
        return value

    def _child(self, parent: Any, step: str) -> Any:
        if isinstance(parent, dict):
            if step not in parent:
                self._refuse(f"there is no {escape(step, _SHOWN_MAX)!r}")
            return parent[step]
        if not isinstance(parent, list):
            self._refuse("there is nothing below a plain value")
        return parent[self._index(step, len(parent))]

    def _index(self, step: str, length: int) -> int:
        """The index that a step means in a list; it must be less than `length`."""
        if not _INDEX.fullmatch(step):
            self._refuse(f"{escape(step, _SHOWN_MAX)!r} is not an index of a list")
        index = int(step)
        if index >= length:
            self._refuse(f"index {index} is beyond the end of the list")
        return index

    def _add(self, path: list[str], value: Any) -> None:
        if not path:
            self._shrink(self.tree)
            self.tree = value
            return
        parent, step = self._find(path[:-1]), path[-1]
        if isinstance(parent, dict):
            if step in parent:
                self._shrink(parent[step])
            else:
                self.size.characters += len(step) + 3
            parent[step] = value
        elif isinstance(parent, list):
            # One past the end is allowed here, and has a name of its own.
            at = len(parent) if step == "-" else self._index(step, len(parent) + 1)
            parent.insert(at, value)
        else:
            self._refuse("there is nothing below a plain value")

    def _replace(self, path: list[str], value: Any) -> None:
        """Replace a value that is known to exist."""
        if not path:
            self._shrink(self.tree)
            self.tree = value
            return
        parent: Any = self._find(path[:-1])
        at = path[-1] if isinstance(parent, dict) else int(path[-1])
        self._shrink(parent[at])
        parent[at] = value

    def _drop(self, path: list[str]) -> Any:
        """Remove a value and return it."""
        if not path:
            self._refuse("the whole document cannot be removed")
        parent, step = self._find(path[:-1]), path[-1]
        value = self._child(parent, step)
        self._shrink(value)
        if isinstance(parent, dict):
            self.size.characters -= len(step) + 3
            del parent[step]
        else:
            del parent[int(step)]
        return value

    def _move(self, source: list[str], path: list[str]) -> None:
        if path[: len(source)] == source:
            if len(path) == len(source):
                self._find(source)
                return
            self._refuse("a value cannot be moved into itself")
        value = self._drop(source)
        size = TreeSize()
        measure(value, len(path) + 1, size)
        self._grow(size)
        self._add(path, value)

    def _test(self, path: list[str], value: Any) -> None:
        try:
            found = self._find(path)
        except Invalid as missing:
            raise Conflict(missing.message, code=CODE_TEST_FAILED) from None
        if not json_equal(found, value):
            raise Conflict(
                f"{self._where}: the value there is not the expected one", code=CODE_TEST_FAILED
            )
