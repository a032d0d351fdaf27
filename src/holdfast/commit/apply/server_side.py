"""Server-side apply, and how any other write changes field ownership.

An applier sends only the fields that it manages, and owns them from then on. An apply that would
change a field of another owner gets a conflict that names the owner, with two exceptions: if the
values are equal both own it, and if the apply is forced only the new one does. An applier that
leaves out a field that it owned gives it up. Any other write, PUT or patch, owns what it changed
and takes it from all others.

All of this is about consent between clients; it authorizes nothing. `objects/field_writers.py`
decides which identity may write which field, and `force` does not change that.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.commit.apply.diff import ABSENT, FieldChanges, Tree, compare, element_of
from holdfast.commit.apply.field_sets import (
    SELF,
    Fields,
    Path,
    difference,
    member_element,
    remove_subtrees,
    union,
)
from holdfast.commit.apply.managed_fields import (
    APPLY,
    UPDATE,
    Conflicts,
    Entries,
    FieldConflict,
    FieldManager,
    arrange_entries,
    check_count,
    check_manager,
    conflicts_with,
    replace_fields,
)
from holdfast.commit.apply.merge import claimed_fields, merge_configuration, put_value
from holdfast.commit.apply.patch import check_tree
from holdfast.commit.apply.shapes import KeyedListShape, MapShape, RecordShape, SetShape, Shape
from holdfast.model.encoding.json_guard import parse
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import ManagedFields

# Moving from `kubectl apply` to `kubectl apply --server-side` without conflicts with oneself.
#
# Client-side apply keeps the last configuration in an annotation and writes as an ordinary updater,
# so its fields belong to `kubectl-client-side-apply`. When the same person turns to server-side
# apply as `kubectl`, the annotation proves which of those fields are theirs. The server honours it,
# and keeps it up to date so that the way back works as well. Newer versions of kubectl rewrite
# managedFields themselves; for them nothing is left to do here.

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
# The limit of Kubernetes on all annotations together.
_ANNOTATION_BYTES_MAX = 256 * 1024


def conflicts_after_last_applied(
    found: tuple[FieldConflict, ...], live: Tree, manager: str, shape: RecordShape
) -> tuple[FieldConflict, ...]:
    """The conflicts that remain when kubectl's own last configuration is taken into account."""
    text = _last_applied(live)
    if manager != KUBECTL or not text:
        return found
    allowed = _still_theirs(text, live, shape)
    return tuple(conflict for conflict in found if not _contains(allowed, conflict.path))


def refresh_last_applied(tree: Tree, config: Tree, manager: str) -> Tree:
    """The tree with the annotation updated, if it has one and kubectl applied."""
    text = _last_applied(tree)
    if manager != KUBECTL or not text:
        return tree
    current = msgspec.json.encode(config, order="sorted").decode() + "\n"
    if text == current:
        return tree
    metadata = dict(tree["metadata"])
    metadata["annotations"] = dict(metadata["annotations"])
    if len(current.encode()) > _ANNOTATION_BYTES_MAX:
        del metadata["annotations"][LAST_APPLIED]
    else:
        metadata["annotations"][LAST_APPLIED] = current
    return {**tree, "metadata": metadata}


def _last_applied(tree: Tree) -> str:
    metadata = tree.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(LAST_APPLIED, "") if isinstance(annotations, dict) else ""
    return text if isinstance(text, str) else ""


def _still_theirs(text: str, live: Tree, shape: RecordShape) -> Fields:
    """The fields of the last configuration that still have the value it gave them."""
    try:
        last: Any = parse(text.encode())
        if not isinstance(last, dict):
            return {}
        fields = claimed_fields(last, shape)
    except (Invalid, UnicodeEncodeError):
        # Any client may have written the annotation; if it is malformed it proves nothing.
        return {}
    change = compare(last, live, shape)
    return remove_subtrees(difference(fields, change.touched), change.removed)


def _contains(fields: Fields, path: Path) -> bool:
    node = fields
    for element in path:
        if element not in node:
            return False
        node = node[element]
    return not node or "." in node


# Pruning fields that their last owner gave up.
#
# An applier that leaves a field out of its configuration gives it up. If it has no other owner, the
# field is removed. Fields of other owners stay, with as much around them as they need: a list item
# keeps its keys as long as one of its fields has an owner.


def prune_fields(tree: Tree, gone: Fields, kept: Fields, shape: RecordShape) -> Tree:
    """The tree without the fields in `gone`. `kept` are all fields that still have an owner."""
    return _prune_record(tree, gone, kept, shape)


def _prune_record(tree: Tree, gone: Fields, kept: Fields, shape: RecordShape) -> Tree:
    out = tree
    for element, node in gone.items():
        name = element[2:]
        slot = shape.slots.get(name)
        if slot is None or element == SELF or name not in tree:
            continue
        left = _prune(tree[name], node, kept.get(element), slot.shape)
        out = put_value(out, tree, name, left)
    return out


def _prune_table(tree: Tree, gone: Fields, kept: Fields, shape: MapShape) -> Tree:
    out = tree
    for element, node in gone.items():
        key = element[2:]
        if element != SELF and key in tree:
            left = _prune_entry(tree[key], node, kept.get(element), shape.value)
            out = put_value(out, tree, key, left)
    return out


def _prune(value: Any, node: Fields, kept: Fields | None, shape: Shape) -> Any:
    """The rest of a field. It is removed as a whole once it is empty and has no owner."""
    if isinstance(value, dict) and isinstance(shape, RecordShape):
        left: Any = _prune_record(value, node, kept or {}, shape)
    elif isinstance(value, dict) and isinstance(shape, MapShape):
        left = _prune_table(value, node, kept or {}, shape)
    elif isinstance(value, list) and isinstance(shape, KeyedListShape | SetShape):
        left = _prune_list(value, node, kept or {}, shape)
    else:
        return ABSENT if _itself(node) else value
    # It may have been empty before, if the removed part held only defaults.
    return left if left or kept is not None else ABSENT


def _prune_entry(value: Any, node: Fields, kept: Fields | None, shape: Shape) -> Any:
    """The rest of a map entry.

    An owner that added the entry and gives it up removes all of it, unless another owns a part.
    """
    if _itself(node) and kept is None:
        return ABSENT
    if isinstance(value, dict) and isinstance(shape, RecordShape):
        return _prune_record(value, node, kept or {}, shape)
    if isinstance(value, dict) and isinstance(shape, MapShape):
        return _prune_table(value, node, kept or {}, shape)
    return value


def _prune_list(
    items: list[Any], gone: Fields, kept: Fields, shape: KeyedListShape | SetShape
) -> list[Any]:
    out = []
    for item in items:
        element = (
            element_of(item, shape) if isinstance(shape, KeyedListShape) else member_element(item)
        )
        node = gone.get(element)
        if node is None:
            out.append(item)
        elif _itself(node) and element not in kept:
            continue
        elif isinstance(shape, KeyedListShape):
            # Without its keys it would be another item, or none.
            keys = [f"f:{name}" for name, _ in shape.keys]
            parts = {part: below for part, below in node.items() if part not in keys}
            out.append(_prune_record(item, parts, kept.get(element, {}), shape.item))
        else:
            out.append(item)
    unchanged = len(out) == len(items) and all(a is b for a, b in zip(out, items, strict=True))
    return items if unchanged else out


def _itself(node: Fields) -> bool:
    return not node or SELF in node


# The manager of fields that were written before ownership was recorded.
BEFORE_FIRST_APPLY = "before-first-apply"


class ApplyResult(msgspec.Struct, frozen=True):
    """The resulting object. Both parts are the live ones themselves if nothing changes."""

    tree: Tree
    managed_fields: Entries


def apply(
    live: Tree | None,
    managed_fields: Entries,
    config: Tree,
    *,
    manager: str,
    now: datetime,
    shape: RecordShape,
    force: bool = False,
    subresource: str = "",
) -> ApplyResult | Conflicts:
    """The live object, if there is one, with a manager's configuration applied."""
    check_manager(manager)
    _refuse_managed_fields(config)
    config = _in_reach(config, subresource)
    owner = FieldManager(manager, APPLY, subresource)
    claim = claimed_fields(config, shape)
    entries = managed_fields
    if live is not None and not entries:
        entries = _before_first_apply(live, shape, now)
    others = tuple(entry for entry in entries if not owner.has(entry))
    mine = next((entry for entry in entries if owner.has(entry)), None)

    tree = merge_configuration(live, config, shape)
    if mine is not None:
        tree = _given_up(tree, mine.fields_v1, claim, others, shape)
    change = compare(live, tree, shape)
    found = conflicts_with(others, change)
    if found and not force and live is not None:
        found = conflicts_after_last_applied(found, live, manager, shape)
        if found:
            return Conflicts(found)
    left = [_less(entry, change) for entry in others]
    left.append(_own_entry(owner, mine, claim, now, tree is not live))
    result = arrange_entries(left, managed_fields)
    if not result:
        # The last owner gave the field up, but an empty part may be left over from earlier owners.
        # The next apply would record it as a change although nothing changed.
        result = _before_first_apply(tree, shape, now)
    check_count(result)
    tree = refresh_last_applied(tree, config, manager)
    if tree is not live:
        # Many small configurations can add up to an object that no client could send in one piece.
        check_tree(tree)
    return ApplyResult(tree, result)


def entries_after_update(
    old: Tree | None,
    new: Tree,
    managed_fields: Entries,
    *,
    manager: str,
    now: datetime,
    shape: RecordShape,
    operation: str = UPDATE,
    subresource: str = "",
) -> Entries:
    """The entries after a write that is not an apply: the manager owns what it changed."""
    change = compare(old, new, shape)
    if not change.touched and not change.removed:
        return managed_fields
    owner = FieldManager(manager, operation, subresource)
    left = [_less(entry, change) for entry in managed_fields if not owner.has(entry)]
    mine = next((entry for entry in managed_fields if owner.has(entry)), None)
    before = {} if mine is None else mine.fields_v1
    fields = union(remove_subtrees(before, change.removed), change.touched)
    # As in Kubernetes, the time moves when the owner changes a value, even one that it already
    # owned.
    idle = mine is not None and not change.touched and fields is before
    left.append(mine if mine is not None and idle else owner.entry(fields, now))
    return arrange_entries(left, managed_fields)


def _refuse_managed_fields(config: Tree) -> None:
    metadata = config.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields"):
        rule = "metadata.managedFields must be nil"
        errors = (FieldError(path="metadata.managedFields", value="", rule="must be nil"),)
        raise Invalid(rule, errors)


def _in_reach(config: Tree, subresource: str) -> Tree:
    """The part of a configuration that this subresource can change.

    The rest is ignored and not owned, as in a PUT.
    """
    if subresource:
        return {name: value for name, value in config.items() if name == subresource}
    return {name: value for name, value in config.items() if name != "status"}


def _before_first_apply(live: Tree, shape: RecordShape, now: datetime) -> Entries:
    fields = compare(None, live, shape).touched
    return (FieldManager(BEFORE_FIRST_APPLY, UPDATE).entry(fields, now),) if fields else ()


def _given_up(tree: Tree, last: Fields, claim: Fields, others: Entries, shape: RecordShape) -> Tree:
    """The tree without the fields that the manager claimed last time, no longer claims, and no
    other manager owns.
    """
    gone = difference(last, claim)
    if not gone:
        return tree
    kept = claim
    for entry in others:
        kept = union(kept, entry.fields_v1)
    return prune_fields(tree, difference(gone, kept), kept, shape)


def _less(entry: ManagedFields, change: FieldChanges) -> ManagedFields:
    """Another manager's entry after a change: it loses the fields that were changed or removed."""
    fields = remove_subtrees(difference(entry.fields_v1, change.touched), change.removed)
    return replace_fields(entry, fields)


def _own_entry(
    owner: FieldManager, mine: ManagedFields | None, claim: Fields, now: datetime, changed: bool
) -> ManagedFields:
    if mine is not None and not changed and mine.fields_v1 == claim:
        return mine
    return owner.entry(claim, now)
