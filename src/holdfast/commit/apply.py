"""Server-side apply, and what any other write does to the ownership of fields.

An applier sends only the fields it has an opinion on, and owns them from then on. Who wants to
change a field that another one owns gets a conflict that names the owner, unless the values are
equal, then both own it, or it is forced, then only the new one does. Who leaves out a field that it
owned gives it up. Any other write, PUT or patch, owns what it changed and takes it from all others.

All of this is about consent between clients; it authorises nothing. Which identity may write which
field is decided elsewhere, and `force` has no say in it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.commit.bounds import check_tree
from holdfast.commit.clientside import refreshed, settled_by_last_applied
from holdfast.commit.conflicts import Conflicts, conflicts_with
from holdfast.commit.diff import Change, Tree, compare
from holdfast.commit.fields import Fields, minus, union, without
from holdfast.commit.merge import claimed, merged
from holdfast.commit.ownership import (
    APPLY,
    UPDATE,
    Entries,
    Owner,
    arranged,
    check_count,
    check_manager,
    with_fields,
)
from holdfast.commit.prune import pruned
from holdfast.commit.shapes import Record
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import ManagedFields

# Whoever wrote an object before anybody's fields were recorded.
BEFORE_FIRST_APPLY = "before-first-apply"


class Applied(msgspec.Struct, frozen=True):
    """The object as it shall be. Both parts are the very live ones if nothing changes."""

    tree: Tree
    managed_fields: Entries


def apply(
    live: Tree | None,
    managed_fields: Entries,
    config: Tree,
    *,
    manager: str,
    now: datetime,
    shape: Record,
    force: bool = False,
    subresource: str = "",
) -> Applied | Conflicts:
    """The live object, if there is one, with a manager's configuration applied."""
    check_manager(manager)
    _refuse_managed_fields(config)
    config = _in_reach(config, subresource)
    owner = Owner(manager, APPLY, subresource)
    claim = claimed(config, shape)
    entries = managed_fields
    if live is not None and not entries:
        entries = _before_first_apply(live, shape, now)
    others = tuple(entry for entry in entries if not owner.has(entry))
    mine = next((entry for entry in entries if owner.has(entry)), None)

    tree = merged(live, config, shape)
    if mine is not None:
        tree = _given_up(tree, mine.fields_v1, claim, others, shape)
    change = compare(live, tree, shape)
    found = conflicts_with(others, change)
    if found and not force and live is not None:
        found = settled_by_last_applied(found, live, manager, shape)
        if found:
            return Conflicts(found)
    left = [_less(entry, change) for entry in others]
    left.append(_own_entry(owner, mine, claim, now, tree is not live))
    result = arranged(left, managed_fields)
    if not result:
        # The last owner let go, but an empty part may be left over from others before it. The next
        # apply would record that, and so be a change without one.
        result = _before_first_apply(tree, shape, now)
    check_count(result)
    tree = refreshed(tree, config, manager)
    if tree is not live:
        # Many small configurations can add up to an object that nobody could send in one piece.
        check_tree(tree)
    return Applied(tree, result)


def updated(
    old: Tree | None,
    new: Tree,
    managed_fields: Entries,
    *,
    manager: str,
    now: datetime,
    shape: Record,
    operation: str = UPDATE,
    subresource: str = "",
) -> Entries:
    """The entries after a write that is not an apply: the manager owns what it changed."""
    change = compare(old, new, shape)
    if not change.touched and not change.removed:
        return managed_fields
    owner = Owner(manager, operation, subresource)
    left = [_less(entry, change) for entry in managed_fields if not owner.has(entry)]
    mine = next((entry for entry in managed_fields if owner.has(entry)), None)
    before = {} if mine is None else mine.fields_v1
    fields = union(without(before, change.removed), change.touched)
    # As in Kubernetes the time moves when the owner changes a value, even one that it owned before.
    idle = mine is not None and not change.touched and fields is before
    left.append(mine if mine is not None and idle else owner.entry(fields, now))
    return arranged(left, managed_fields)


def _refuse_managed_fields(config: Tree) -> None:
    metadata = config.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields"):
        rule = "metadata.managedFields must be nil"
        errors = (FieldError(path="metadata.managedFields", value="", rule="must be nil"),)
        raise Invalid(rule, errors)


def _in_reach(config: Tree, subresource: str) -> Tree:
    """The part of a configuration that this way of writing can change.

    What it cannot change is ignored and not owned, as it would be in a PUT.
    """
    if subresource:
        return {name: value for name, value in config.items() if name == subresource}
    return {name: value for name, value in config.items() if name != "status"}


def _before_first_apply(live: Tree, shape: Record, now: datetime) -> Entries:
    fields = compare(None, live, shape).touched
    return (Owner(BEFORE_FIRST_APPLY, UPDATE).entry(fields, now),) if fields else ()


def _given_up(tree: Tree, last: Fields, claim: Fields, others: Entries, shape: Record) -> Tree:
    """The tree without what the manager claimed last time, claims no more, and nobody else owns."""
    gone = minus(last, claim)
    if not gone:
        return tree
    kept = claim
    for entry in others:
        kept = union(kept, entry.fields_v1)
    return pruned(tree, minus(gone, kept), kept, shape)


def _less(entry: ManagedFields, change: Change) -> ManagedFields:
    """Another's entry after a change: what was changed or removed is no longer theirs."""
    fields = without(minus(entry.fields_v1, change.touched), change.removed)
    return with_fields(entry, fields)


def _own_entry(
    owner: Owner, mine: ManagedFields | None, claim: Fields, now: datetime, changed: bool
) -> ManagedFields:
    if mine is not None and not changed and mine.fields_v1 == claim:
        return mine
    return owner.entry(claim, now)
