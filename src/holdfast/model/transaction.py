"""The store's data types: records with revisions, and transactions guarded by compares.

`commit/` builds transactions, every store in `store/` runs them, the simulator's checkers read
them. A transaction is atomic: if every compare holds, all writes take effect at one new revision;
otherwise nothing is written and the answer holds the current records of all compared keys, so that
the caller can decide again without a second read.

Keys are strings ordered by code point, which is the byte order of their UTF-8 form. Values are
opaque bytes.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import invariant

# The revision of a key that was never written or is deleted. The first transaction makes revision
# 1.
ABSENT = 0
# No record ever has this revision. A transaction that compares it fails, and so reads all its keys
# at one revision without a separate call.
NEVER = -1


class Record(msgspec.Struct, frozen=True, gc=False):
    """One key at one revision.

    `created` is the revision of its first write since it was last absent.
    """

    key: str
    value: bytes
    created: int
    modified: int


class Compare(msgspec.Struct, frozen=True, gc=False):
    """Holds while the key was last written at this revision; ABSENT: while it does not exist."""

    key: str
    modified: int


class Put(msgspec.Struct, frozen=True, gc=False, tag="put"):
    key: str
    value: bytes


class Delete(msgspec.Struct, frozen=True, gc=False, tag="delete"):
    """Deleting an absent key is allowed and writes nothing."""

    key: str


Write = Put | Delete


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """Compares and writes. A key may appear once among the compares and once among the writes."""

    compares: tuple[Compare, ...]
    writes: tuple[Write, ...]

    def check(self) -> None:
        """Checks that no key is named twice, because stores would disagree on its meaning."""
        for name, keys in (
            ("compares", [c.key for c in self.compares]),
            ("writes", [w.key for w in self.writes]),
        ):
            twice = len(set(keys)) != len(keys)
            invariant(not twice, f"a transaction's {name} name a key twice: {sorted(keys)}")


class Committed(msgspec.Struct, frozen=True, gc=False):
    """All writes took effect at this revision.

    Without an effective write it is the current revision.
    """

    revision: int


class CompareFailed(msgspec.Struct, frozen=True):
    """A compare failed and nothing was written.

    `current` has one entry for each compared key, in the order of the compares, as of `revision`;
    None means absent.
    """

    revision: int
    current: tuple[Record | None, ...]


Outcome = Committed | CompareFailed


class Change(msgspec.Struct, frozen=True, gc=False):
    """One key changed at `revision`. `value` is None if the key was deleted."""

    revision: int
    key: str
    value: bytes | None
    created: int


class Page(msgspec.Struct, frozen=True):
    """Records in key order, all as of `revision`.

    `more_from` is the key to go on from, or None at the end.
    """

    revision: int
    records: tuple[Record, ...]
    more_from: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """All changes up to and including `revision` that a watch had not delivered before.

    Without changes it is a bookmark: nothing under the prefix has changed up to `revision`.
    """

    revision: int
    changes: tuple[Change, ...] = ()


class TokenApplied(msgspec.Struct, frozen=True, gc=False):
    """The transaction with this token took effect, at this revision."""

    revision: int


class NotApplied(msgspec.Struct, frozen=True, gc=False):
    """The transaction did not take effect and, after this question, never will."""


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """The token is older than the store's memory. Read the objects themselves."""


Fate = TokenApplied | NotApplied | Forgotten
