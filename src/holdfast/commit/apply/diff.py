"""The differences between two trees of an object, by field.

Field ownership needs to know which fields a write set and removed, by the kind's shape: list items
by their keys, defaults equal to absence. The rules about who may write which field, and which
fields never change, need the paths of all differences. They may ask with a shape, or without one
for fields that must not change at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast.commit.apply.field_sets import (
    SELF,
    Fields,
    item_element,
    member_element,
    paths,
    union,
    wire_text,
)
from holdfast.commit.apply.shapes import (
    FREE,
    MOMENT,
    WHOLE,
    FieldShape,
    FreeShape,
    KeyedListShape,
    MapShape,
    RecordShape,
    SetShape,
    Shape,
)

Tree = dict[str, Any]


class Absent:
    """Stands for a value that is not there; null is a value."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()

# Named once: a union that is written out is built again with every check.
_OBJECTS = (RecordShape, MapShape, FreeShape)
_LISTS = (KeyedListShape, SetShape, FreeShape)
_PLAIN = (str, int)


class FieldChanges(msgspec.Struct, frozen=True):
    """The fields that a write set and removed. A removed field stands for everything below it.

    `moved` are lists whose items only changed places, which affects no field's ownership.
    """

    touched: Fields
    removed: Fields
    moved: Fields

    def everything(self) -> Fields:
        """All that differs, in one set."""
        return union(union(self.touched, self.removed), self.moved)


def json_equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal. In Python True equals 1; in JSON it does not."""
    if a is b:
        return True
    # Values that are equal as JSON are always equal in Python, which decides most cases in C.
    if a != b:
        return False
    if isinstance(a, dict):
        return all(json_equal(item, b[key]) for key, item in a.items())
    if isinstance(a, list):
        return all(map(json_equal, a, b))
    return isinstance(a, bool) is isinstance(b, bool)


def equivalent(a: Any, b: Any, shape: Shape) -> bool:
    """Whether two values mean the same. Objects keep timestamps in UTC, however they were sent."""
    return json_equal(a, b) or (shape is MOMENT and _moment(a) == _moment(b) is not None)


def _moment(value: Any) -> datetime | None:
    try:
        return msgspec.convert(value, datetime) if isinstance(value, str) else None
    except msgspec.ValidationError:
        return None


def compare(old: Tree | None, new: Tree, shape: Shape) -> FieldChanges:
    """The changes from one tree to another. An object that did not exist had no fields."""
    change = FieldChanges({}, {}, {})
    if old is None:
        change.touched.update(_parts(new, shape))
    elif old is not new:
        _visit(old, new, shape, change)
    return change


def changed_paths(old: Tree, new: Tree, shape: Shape = FREE) -> list[str]:
    """The paths of all that differs, in the order of the trees."""
    return [wire_text(path) for path in paths(compare(old, new, shape).everything())]


def changed_paths_outside(
    old: Tree, new: Tree, allowed: Iterable[str] = (), shape: Shape = FREE
) -> list[str]:
    """The paths of all that differs and does not lie at or below an allowed path."""
    permitted = tuple(allowed)
    return [
        path
        for path in changed_paths(old, new, shape)
        if not any(is_at_or_below(path, p) for p in permitted)
    ]


def is_at_or_below(path: str, above: str) -> bool:
    """Whether a path lies at or below another, as `spec.pool` and `spec[a]` lie below `spec`."""
    return path.startswith(above) and path[len(above) : len(above) + 1] in {"", ".", "["}


def effective_value(value: Any, slot: FieldShape) -> Any:
    """The effective value of a field, whether stated or left to its default.

    An empty default (0, "", false, an empty container) counts as absence, because objects carry it
    that way; any other default stands for its value.
    """
    if value is ABSENT or value is None:
        return slot.default if slot.standing or slot.default else ABSENT
    if not value and not (slot.required or slot.standing) and json_equal(value, slot.default):
        return ABSENT
    return value


def elements(items: list[Any], shape: KeyedListShape | SetShape) -> dict[str, Any] | None:
    """The items of a list by their identifying element; None if two items have the same one."""
    if isinstance(shape, SetShape):
        found = {member_element(item): item for item in items}
    else:
        found = {element_of(item, shape): item for item in items}
    return found if len(found) == len(items) else None


def element_of(item: Any, shape: KeyedListShape) -> str:
    """The element that identifies an item. A key that is left out has its default."""
    if not isinstance(item, dict):
        return member_element(item)
    return item_element(tuple((name, item.get(name, default)) for name, default in shape.keys))


def value_fields(value: Any, shape: Shape) -> Fields:
    """The field itself and all fields below it, for a new value."""
    parts = _parts(value, shape) if isinstance(value, dict | list) else {}
    return {SELF: {}, **parts} if parts else {}


def _parts(value: Any, shape: Shape) -> Fields:
    """The fields below a container. A value that is not of the shape's type has none."""
    if isinstance(shape, RecordShape) and isinstance(value, dict):
        return _record_parts(value, shape)
    if isinstance(shape, MapShape | FreeShape) and isinstance(value, dict):
        below_each = shape.value if isinstance(shape, MapShape) else FREE
        return {f"f:{key}": value_fields(item, below_each) for key, item in value.items()}
    if isinstance(shape, KeyedListShape | SetShape) and isinstance(value, list):
        item_shape = shape.item if isinstance(shape, KeyedListShape) else WHOLE
        items = elements(value, shape) or {}
        return {element: value_fields(item, item_shape) for element, item in items.items()}
    return {}


def _record_parts(value: Tree, shape: RecordShape) -> Fields:
    parts: Fields = {}
    for name, item in value.items():
        slot = shape.slots.get(name)
        if slot is None or (item := effective_value(item, slot)) is ABSENT:
            continue
        if not slot.standing:
            parts[slot.element] = value_fields(item, slot.shape)
        elif inner := _parts(item, slot.shape):
            # A part that is always there has no owner; only its fields have.
            parts[slot.element] = inner
    return parts


def _visit(old: Tree, new: Tree, shape: Shape, change: FieldChanges) -> None:
    """Compare the parts of two objects."""
    if isinstance(shape, RecordShape):
        _visit_record(old, new, shape, change)
        return
    value = shape.value if isinstance(shape, MapShape) else FREE
    for key, a in old.items():
        b = new.get(key, ABSENT)
        if a is not b:
            _field(f"f:{key}", a, b, value, change)
    for key, b in new.items():
        if key not in old:
            _field(f"f:{key}", ABSENT, b, value, change)


def _visit_record(old: Tree, new: Tree, shape: RecordShape, change: FieldChanges) -> None:
    slots = shape.slots
    for name, a in old.items():
        b = new.get(name, ABSENT)
        # Most fields are equal plain values; this check needs no call.
        if a is b or (a.__class__ in _PLAIN and a.__class__ is b.__class__ and a == b):
            continue
        slot = slots.get(name)
        if slot is not None:
            _field(
                slot.element, effective_value(a, slot), effective_value(b, slot), slot.shape, change
            )
    for name, b in new.items():
        if name not in old and (slot := slots.get(name)) is not None:
            _field(
                slot.element,
                effective_value(ABSENT, slot),
                effective_value(b, slot),
                slot.shape,
                change,
            )


def _field(element: str, a: Any, b: Any, shape: Shape, change: FieldChanges) -> None:
    """Compare the old and new value of one element."""
    if b is ABSENT:
        if a is not ABSENT:
            change.removed[element] = {}
    elif a is ABSENT:
        change.touched[element] = value_fields(b, shape)
    elif isinstance(a, dict) and isinstance(b, dict) and isinstance(shape, _OBJECTS):
        inner = FieldChanges({}, {}, {})
        _visit(a, b, shape, inner)
        _keep(element, inner, change)
    elif isinstance(a, list) and isinstance(b, list) and isinstance(shape, _LISTS):
        _list(element, a, b, shape, change)
    elif not equivalent(a, b, shape):
        change.touched[element] = {}


def _keep(element: str, inner: FieldChanges, change: FieldChanges) -> None:
    if inner.touched:
        change.touched[element] = inner.touched
    if inner.removed:
        change.removed[element] = inner.removed
    if inner.moved:
        change.moved[element] = inner.moved


def _list(
    element: str,
    a: list[Any],
    b: list[Any],
    shape: KeyedListShape | SetShape | FreeShape,
    change: FieldChanges,
) -> None:
    if json_equal(a, b):
        return
    if isinstance(shape, FreeShape):
        before: dict[str, Any] | None = {f"i:{i}": item for i, item in enumerate(a)}
        after: dict[str, Any] | None = {f"i:{i}": item for i, item in enumerate(b)}
        item_shape: Shape = FREE
        whole = len(a) != len(b)
    else:
        before, after = elements(a, shape), elements(b, shape)
        item_shape = shape.item if isinstance(shape, KeyedListShape) else WHOLE
        whole = False
    if before is None or after is None or whole:
        # Items without distinct keys cannot have distinct owners either.
        change.touched[element] = {}
        return
    inner = FieldChanges({}, {}, {})
    for key, item in before.items():
        _field(key, item, after.get(key, ABSENT), item_shape, inner)
    for key, item in after.items():
        if key not in before:
            _field(key, ABSENT, item, item_shape, inner)
    _keep(element, inner, change)
    if [key for key in before if key in after] != [key for key in after if key in before]:
        change.moved[element] = {}
