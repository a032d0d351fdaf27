"""The entries of `metadata.managedFields`: who owns which fields, in order and bounded.

`apply/server_side.py` computes new sets of fields; this module makes entries of them. An unchanged
entry stays the same object, with its time, so that a write that changes nothing is recognized as
such.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.commit.apply.diff import FieldChanges
from holdfast.commit.apply.field_sets import (
    Fields,
    Path,
    intersection,
    kubernetes_text,
    parse_field_set,
    paths,
    union,
)
from holdfast.model.errors import Conflict, FieldError, Invalid
from holdfast.model.meta import API_VERSION, ManagedFields

APPLY = "Apply"
UPDATE = "Update"

# As in Kubernetes, the oldest updaters beyond this number share one entry.
UPDATERS_MAX = 10
ANCIENT = "ancient-changes"
MANAGERS_MAX = 100
MANAGER_CHARACTERS_MAX = 128

Entries = tuple[ManagedFields, ...]

_NEVER = datetime(1, 1, 1, tzinfo=UTC)


class FieldManager(msgspec.Struct, frozen=True, gc=False):
    """The owner of an entry. One name may own some fields by applying and others by updating."""

    manager: str
    operation: str
    subresource: str = ""

    def has(self, entry: ManagedFields) -> bool:
        return (
            entry.manager == self.manager
            and entry.operation == self.operation
            and entry.subresource == self.subresource
        )

    def entry(self, fields: Fields, now: datetime) -> ManagedFields:
        """A new entry of this owner."""
        return ManagedFields(
            manager=self.manager,
            operation=self.operation,
            subresource=self.subresource,
            api_version=API_VERSION,
            time=now,
            fields_v1=fields,
        )


def replace_fields(entry: ManagedFields, fields: Fields) -> ManagedFields:
    """The entry with another set. Its time stays, because its owner did nothing."""
    if fields is entry.fields_v1:
        return entry
    return msgspec.structs.replace(entry, fields_v1=fields)


def arrange_entries(entries: Iterable[ManagedFields], before: Entries) -> Entries:
    """The entries in their order, without empty ones, within the bounds.

    Returns `before` itself if they are the same.
    """
    kept = [entry for entry in entries if entry.fields_v1]
    if len(kept) > UPDATERS_MAX:
        kept = _capped(kept)
    kept.sort(key=_order)
    if len(kept) == len(before) and all(a is b for a, b in zip(kept, before, strict=True)):
        return before
    return tuple(kept)


def _order(entry: ManagedFields) -> tuple[str, datetime, str, str]:
    return entry.operation, entry.time or _NEVER, entry.manager, entry.subresource


def _capped(entries: list[ManagedFields]) -> list[ManagedFields]:
    updaters = [entry for entry in entries if entry.operation == UPDATE]
    surplus = len(updaters) - UPDATERS_MAX
    if surplus <= 0:
        return entries
    ancient = FieldManager(ANCIENT, UPDATE)
    oldest = [u for u in updaters if ancient.has(u)]
    if not oldest:
        # The shared entry takes a place itself, so one more of the others goes into it.
        surplus += 1
    oldest += sorted((u for u in updaters if not ancient.has(u)), key=_order)[:surplus]
    fields: Fields = {}
    for entry in oldest:
        fields = union(fields, entry.fields_v1)
    together = ancient.entry(fields, max(entry.time or _NEVER for entry in oldest))
    return [e for e in entries if not any(e is old for old in oldest)] + [together]


def check_manager(manager: str) -> None:
    """Raise Invalid for a name that an entry cannot have."""
    if not manager or len(manager) > MANAGER_CHARACTERS_MAX or not manager.isprintable():
        rule = f"must have 1 to {MANAGER_CHARACTERS_MAX} printable characters"
        raise Invalid(
            f"fieldManager: {rule}", (FieldError(path="fieldManager", value="", rule=rule),)
        )


def check_count(entries: Entries) -> None:
    """Raise Invalid if an object would have more appliers than it may."""
    if len(entries) > MANAGERS_MAX:
        rule = f"an object must have at most {MANAGERS_MAX} field managers"
        errors = (FieldError(path="metadata.managedFields", value="", rule=rule),)
        raise Invalid(f"metadata.managedFields: {rule}", errors)


def entries_for_update(live: Entries, sent: Any) -> Entries:
    """The entries that an update starts from, given the client's entries (as plain JSON) or none.

    Clients may rewrite them: kubectl does when it moves from client-side to server-side apply, and
    `[{}]` means to drop them all. Most clients do not understand them, so missing or unreadable
    entries leave them as they were.
    """
    if sent == [{}]:
        return ()
    if not sent or not isinstance(sent, list) or len(sent) > MANAGERS_MAX:
        return live
    try:
        entries = msgspec.convert(sent, Entries)
    except msgspec.ValidationError:
        return live
    if entries == live:
        return live
    by_owner: dict[FieldManager, ManagedFields] = {}
    for entry in entries:
        read = _read(entry)
        if read is None:
            return live
        owner = FieldManager(read.manager, read.operation, read.subresource)
        if twin := by_owner.get(owner):
            read = replace_fields(read, union(twin.fields_v1, read.fields_v1))
        by_owner[owner] = read
    return arrange_entries(by_owner.values(), live)


def _read(entry: ManagedFields) -> ManagedFields | None:
    fields = parse_field_set(entry.fields_v1)
    if (
        fields is None
        or entry.operation not in (APPLY, UPDATE)
        or entry.fields_type != "FieldsV1"
        or entry.api_version != API_VERSION
        or not 0 < len(entry.manager) <= MANAGER_CHARACTERS_MAX
    ):
        return None
    return msgspec.structs.replace(entry, fields_v1=fields)


# Conflicts of server-side apply, worded as users of Kubernetes and their tools know them.

# Enough to recognize the owner; an object may have thousands of fields.
SHOWN_MAX = 50
CODE_APPLY_CONFLICT = "ApplyConflict"
CAUSE_REASON = "FieldManagerConflict"


class FieldConflict(msgspec.Struct, frozen=True):
    """One field that another manager owns and that the configuration would change."""

    owner: ManagedFields
    path: Path

    @property
    def field(self) -> str:
        """The field, for the `field` of a cause."""
        return kubernetes_text(self.path)

    @property
    def with_whom(self) -> str:
        """The owner: its name, its subresource, and for updaters the version that they wrote in."""
        text = msgspec.json.encode(self.owner.manager).decode()
        if self.owner.subresource:
            text += f" with subresource {msgspec.json.encode(self.owner.subresource).decode()}"
        if self.owner.operation == UPDATE:
            text += f" using {self.owner.api_version}"
        return text

    @property
    def message(self) -> str:
        """The sentence for the `message` of a cause."""
        return f"conflict with {self.with_whom}"


class Conflicts(msgspec.Struct, frozen=True):
    """The reason why an apply was refused. Each conflict becomes a cause of the answer."""

    found: tuple[FieldConflict, ...]

    @property
    def message(self) -> str:
        """All conflicts in one text, by owner."""
        if len(self.found) == 1:
            only = self.found[0]
            return f"Apply failed with 1 conflict: {only.message}: {only.field}"
        by_owner: dict[str, list[str]] = {}
        for conflict in self.found[:SHOWN_MAX]:
            by_owner.setdefault(conflict.with_whom, []).append(f"- {conflict.field}")
        texts = [
            "\n".join([f"conflicts with {whom}:", *fields])
            for whom, fields in sorted(by_owner.items())
        ]
        if len(self.found) > SHOWN_MAX:
            texts.append(f"and {len(self.found) - SHOWN_MAX} more")
        return f"Apply failed with {len(self.found)} conflicts: " + "\n".join(texts)

    def error(self) -> Conflict:
        """The same as an exception, for callers that raise."""
        return Conflict(self.message, code=CODE_APPLY_CONFLICT)


def conflicts_with(
    others: Iterable[ManagedFields], change: FieldChanges
) -> tuple[FieldConflict, ...]:
    """The fields of others that a change would set, or remove by a null."""
    claimed = union(change.touched, change.removed)
    return tuple(
        FieldConflict(entry, path)
        for entry in others
        for path in sorted(paths(intersection(entry.fields_v1, claimed)))
    )
