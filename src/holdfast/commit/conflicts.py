"""Conflicts of server-side apply, in the words that users of Kubernetes and their tools know."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.commit.diff import Change
from holdfast.commit.fields import Path, common, kubernetes_text, paths, union
from holdfast.commit.ownership import UPDATE
from holdfast.model.errors import Conflict
from holdfast.model.meta import ManagedFields

# Enough to see who is meant; an object may have thousands of fields.
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
        """The owner: its name, its subresource, and for updaters the version they wrote in."""
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
    """Why an apply was not done. Each conflict becomes a cause of the answer."""

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


def conflicts_with(others: Iterable[ManagedFields], change: Change) -> tuple[FieldConflict, ...]:
    """The fields of others that a change would set, or remove by a null."""
    claimed = union(change.touched, change.removed)
    return tuple(
        FieldConflict(entry, path)
        for entry in others
        for path in sorted(paths(common(entry.fields_v1, claimed)))
    )
