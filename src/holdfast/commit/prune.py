"""Taking out what its last owner no longer wants.

An applier that leaves a field out of its configuration gives it up. If nobody else owns the field,
it goes. What others own stays, with as much around it as it needs to stand: an item of a list keeps
its keys as long as one of its fields has an owner.
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.diff import ABSENT, Tree, element_of
from holdfast.commit.fields import SELF, Fields, member_element
from holdfast.commit.merge import put
from holdfast.commit.shapes import Keyed, Members, Record, Shape, Table


def pruned(tree: Tree, gone: Fields, kept: Fields, shape: Record) -> Tree:
    """The tree without the fields in `gone`. `kept` are all fields that have an owner still."""
    return _prune_record(tree, gone, kept, shape)


def _prune_record(tree: Tree, gone: Fields, kept: Fields, shape: Record) -> Tree:
    out = tree
    for element, node in gone.items():
        name = element[2:]
        slot = shape.slots.get(name)
        if slot is None or element == SELF or name not in tree:
            continue
        left = _prune(tree[name], node, kept.get(element), slot.shape)
        out = put(out, tree, name, left)
    return out


def _prune_table(tree: Tree, gone: Fields, kept: Fields, shape: Table) -> Tree:
    out = tree
    for element, node in gone.items():
        key = element[2:]
        if element != SELF and key in tree:
            left = _prune_entry(tree[key], node, kept.get(element), shape.value)
            out = put(out, tree, key, left)
    return out


def _prune(value: Any, node: Fields, kept: Fields | None, shape: Shape) -> Any:
    """What is left of a field. It goes as a whole once it is empty and nobody wants it so."""
    if isinstance(value, dict) and isinstance(shape, Record):
        left: Any = _prune_record(value, node, kept or {}, shape)
    elif isinstance(value, dict) and isinstance(shape, Table):
        left = _prune_table(value, node, kept or {}, shape)
    elif isinstance(value, list) and isinstance(shape, Keyed | Members):
        left = _prune_list(value, node, kept or {}, shape)
    else:
        return ABSENT if _itself(node) else value
    # It may have been empty all along, when what was given up held only defaults.
    return left if left or kept is not None else ABSENT


def _prune_entry(value: Any, node: Fields, kept: Fields | None, shape: Shape) -> Any:
    """What is left of an entry of a map.

    Whoever put it there and takes it back takes all of it, unless somebody else owns some.
    """
    if _itself(node) and kept is None:
        return ABSENT
    if isinstance(value, dict) and isinstance(shape, Record):
        return _prune_record(value, node, kept or {}, shape)
    if isinstance(value, dict) and isinstance(shape, Table):
        return _prune_table(value, node, kept or {}, shape)
    return value


def _prune_list(items: list[Any], gone: Fields, kept: Fields, shape: Keyed | Members) -> list[Any]:
    out = []
    for item in items:
        element = element_of(item, shape) if isinstance(shape, Keyed) else member_element(item)
        node = gone.get(element)
        if node is None:
            out.append(item)
        elif _itself(node) and element not in kept:
            continue
        elif isinstance(shape, Keyed):
            # Without its keys the item would be another one, or none.
            keys = [f"f:{name}" for name, _ in shape.keys]
            parts = {part: below for part, below in node.items() if part not in keys}
            out.append(_prune_record(item, parts, kept.get(element, {}), shape.item))
        else:
            out.append(item)
    unchanged = len(out) == len(items) and all(a is b for a, b in zip(out, items, strict=True))
    return items if unchanged else out


def _itself(node: Fields) -> bool:
    return not node or SELF in node
