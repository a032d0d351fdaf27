"""Which fields a configuration claims, and how it is merged into the live tree.

`apply/server_side.py` calls both, and decides about owners and pruning in between. Results share
unchanged parts with the given trees, and are the live tree itself if nothing changed.
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.apply.diff import ABSENT, Tree, element_of, elements, equivalent, json_equal
from holdfast.commit.apply.field_sets import (
    SELF,
    Fields,
    Path,
    kubernetes_text,
    member_element,
    wire_text,
)
from holdfast.commit.apply.shapes import (
    WHOLE,
    FieldShape,
    KeyedListShape,
    MapShape,
    RecordShape,
    SetShape,
    Shape,
    has_parts,
)
from holdfast.model.errors import FieldError, Invalid


def claimed_fields(config: Tree, shape: RecordShape) -> Fields:
    """The fields that a configuration states. Raises Invalid if it does not have the shape.

    A null for a plain value is a claim that the value is absent. A null for a value with parts
    claims nothing, as in Kubernetes, because an absent part is no claim.
    """
    return _claimed(config, shape, ()) or {}


def _claimed(value: Any, shape: Shape, path: Path) -> Fields | None:
    """The fields below a path, `{}` for the field alone, None for no claim."""
    if value is None:
        return None if has_parts(shape) else {}
    if isinstance(shape, RecordShape):
        return _claimed_record(_object(value, path), shape, path)
    if isinstance(shape, MapShape):
        return {
            f"f:{key}": _item(item, shape.value, (*path, f"f:{key}"))
            for key, item in _object(value, path).items()
        }
    if isinstance(shape, KeyedListShape | SetShape):
        return _claimed_list(value, shape, path)
    return {}


def _claimed_record(value: Tree, shape: RecordShape, path: Path) -> Fields | None:
    fields: Fields = {}
    for name, item in value.items():
        slot = shape.slots.get(name)
        if slot is None:
            if name in shape.untracked:
                continue
            raise _invalid((*path, f"f:{name}"), "field not declared in schema")
        part = _claimed(item, slot.shape, (*path, slot.element))
        if part is not None:
            fields[slot.element] = part
    # A stated object is claimed, even if empty; but every object has its metadata.
    return None if shape.untracked and not fields else fields


def _claimed_list(value: Any, shape: KeyedListShape | SetShape, path: Path) -> Fields:
    if not isinstance(value, list):
        raise _invalid(path, "must be a list")
    fields: Fields = {}
    for index, item in enumerate(value):
        if isinstance(shape, KeyedListShape):
            _check_keys(item, shape, (*path, f"i:{index}"))
            element = element_of(item, shape)
            part = _item(item, shape.item, (*path, element))
        else:
            if item is None or isinstance(item, dict | list):
                raise _invalid((*path, f"i:{index}"), "must be a plain value")
            element, part = member_element(item), {}
        if element in fields:
            raise _invalid((*path, element), "duplicate entries for key")
        fields[element] = part
    return fields


def _check_keys(item: Any, shape: KeyedListShape, path: Path) -> None:
    for name, default in shape.keys:
        key = _object(item, path).get(name, default)
        if key is None or isinstance(key, dict | list):
            raise _invalid((*path, f"f:{name}"), "is required: it tells the items apart")


def _item(value: Any, shape: Shape, path: Path) -> Fields:
    """An entry of a map or list is claimed along with its parts, because the configuration put it
    there.
    """
    parts = _claimed(value, shape, path)
    return {SELF: {}, **parts} if parts else {}


def _object(value: Any, path: Path) -> Tree:
    if not isinstance(value, dict):
        raise _invalid(path, "must be an object")
    return value


def _invalid(path: Path, rule: str) -> Invalid:
    errors = (FieldError(path=wire_text(path), value="", rule=rule),)
    return Invalid(f"{kubernetes_text(path)}: {rule}", errors)


def merge_configuration(live: Tree | None, config: Tree, shape: RecordShape) -> Tree:
    """The live tree with a configuration merged into it."""
    return _merge_record(_fresh(config, shape) if live is None else live, config, shape)


def _fresh(config: Tree, shape: RecordShape) -> Tree:
    """The start of a new object: fields without owners, such as its name, as stated."""
    tree = {name: value for name, value in config.items() if name in shape.untracked}
    metadata = shape.slots["metadata"].shape
    given = config.get("metadata")
    if isinstance(metadata, RecordShape) and isinstance(given, dict):
        untracked = metadata.untracked - {"managedFields"}
        tree["metadata"] = {name: value for name, value in given.items() if name in untracked}
    return tree


def _merge_record(live: Tree, config: Tree, shape: RecordShape) -> Tree:
    out = live
    for name, value in config.items():
        slot = shape.slots.get(name)
        if slot is not None:
            out = put_value(
                out, live, name, _merge(live.get(name, ABSENT), value, slot.shape, slot)
            )
    return out


def _merge_table(live: Tree, config: Tree, shape: MapShape) -> Tree:
    out = live
    for key, value in config.items():
        out = put_value(out, live, key, _merge(live.get(key, ABSENT), value, shape.value, None))
    return out


def put_value(out: Tree, live: Tree, name: str, value: Any) -> Tree:
    """`out` with a new value under a name. It is copied first if it is still the live tree
    itself.
    """
    if value is live.get(name, ABSENT):
        return out
    if out is live:
        out = dict(live)
    if value is ABSENT:
        del out[name]
    else:
        out[name] = value
    return out


def _merge(old: Any, value: Any, shape: Shape, slot: FieldShape | None) -> Any:
    if value is None:
        return old if has_parts(shape) else ABSENT
    if not has_parts(shape):
        return _merge_whole(old, value, shape, slot)
    if isinstance(shape, RecordShape | MapShape):
        base: Any = old if isinstance(old, dict) else {}
        new: Any = (
            _merge_record(base, value, shape)
            if isinstance(shape, RecordShape)
            else _merge_table(base, value, shape)
        )
    else:
        base = old if isinstance(old, list) else []
        new = _merge_list(base, value, shape)
    # A part that is always there need not be stated while it is empty.
    return old if new is base and slot is not None and slot.standing else new


def _merge_whole(old: Any, value: Any, shape: Shape, slot: FieldShape | None) -> Any:
    if old is ABSENT:
        # Trees leave defaults out, so a stated default leaves them as they are.
        default = None if slot is None else slot.default
        return ABSENT if default is not None and json_equal(value, default) else value
    return old if equivalent(old, value, shape) else value


def _merge_list(old: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    """The items of both lists, each once.

    Applied items come in their applied order; live items that were not applied keep their position
    among the others. So an unchanged configuration never moves anything.
    """
    if not isinstance(shape, KeyedListShape | SetShape):
        return applied
    item_shape = shape.item if isinstance(shape, KeyedListShape) else WHOLE
    # Neither has duplicates: the configuration was checked, and stored lists were validated.
    live, mine = elements(old, shape) or {}, elements(applied, shape) or {}
    out = []
    waiting = iter(mine.items())
    for element, item in live.items():
        if element not in mine:
            out.append(item)
            continue
        # This position belongs to an applied item that was here before; new ones go before it.
        for its_element, its in waiting:
            out.append(_merge(live.get(its_element, ABSENT), its, item_shape, None))
            if its_element in live:
                break
    out.extend(_merge(ABSENT, its, item_shape, None) for _, its in waiting)
    unmoved = len(out) == len(old) and all(a is b for a, b in zip(out, old, strict=True))
    return old if unmoved else out
