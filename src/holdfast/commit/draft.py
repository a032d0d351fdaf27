"""Reading is comparing: how a decision sees the store and what becomes of what it saw.

The authority keeps a View of what it last saw of each key. The view may be old, and that is
harmless: a decision reads it only through a Draft, every read becomes a compare of the
transaction, and a transaction with an old compare is refused and brings the current record along.
So no decision can forget to guard what it rested on.

Many requests are decided one after another on one Group. Each has its own Draft; an accepted
draft's writes are what the next request sees, a refused draft leaves only its compares behind, so
that a refusal too is decided on records that were current after the request arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.commit.records import decode, encode
from holdfast.model import keys
from holdfast.model.errors import RecordsDisagree
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import ABSENT, Compare, Delete, Put, Record, Transaction, Write

# A record that another request of the same group has written; it has no revision yet.
UNCOMMITTED = -1

Anything = TypeVar("Anything")
Item = TypeVar("Item")
Result = TypeVar("Result")
SomeObject = TypeVar("SomeObject", bound=Object)


class NotLoaded(Exception):
    """The view knows nothing of these keys yet. The authority reads them and decides again."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(", ".join(missing))
        self.missing = missing


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A key as it was last seen. `value` is None when it was absent."""

    modified: int
    created: int
    value: Any


_NOTHING = Seen(modified=ABSENT, created=ABSENT, value=None)


class View:
    """What was last seen of each key, oldest first, bounded."""

    def __init__(self, keys_max: int = 400_000) -> None:
        self._seen: dict[str, Seen] = {}
        self._keys_max = keys_max
        # What was last seen of a key. Decisions ask a dozen times each, so it is the dict's own.
        self.get: Callable[[str], Seen | None] = self._seen.get

    def learn(self, key: str, record: Record | None) -> None:
        """Take in what a refused transaction or a watch brought.

        An older record never replaces a newer.
        """
        old = self._seen.get(key)
        if record is None:
            self._seen[key] = _NOTHING
        elif old is None or old.modified < record.modified:
            value = decode(key, record.value)
            self._seen[key] = Seen(record.modified, record.created, value)
        self._bound()

    def wrote(self, key: str, value: Any, revision: int) -> None:
        """Take in an own committed write."""
        old = self._seen.get(key, _NOTHING)
        created = old.created if old.value is not None else revision
        self._seen[key] = _NOTHING if value is None else Seen(revision, created, value)
        self._bound()

    def forget(self, key: str) -> None:
        """Know nothing of a key any more, when it may have changed in unknown ways."""
        self._seen.pop(key, None)

    def _bound(self) -> None:
        while len(self._seen) > self._keys_max:
            del self._seen[next(iter(self._seen))]


class Group:
    """The requests that are decided together and committed by one transaction."""

    __slots__ = ("compares", "view", "writes")

    def __init__(self, view: View) -> None:
        self.view = view
        self.compares: dict[str, int] = {}
        self.writes: dict[str, Any] = {}

    def transaction(self) -> Transaction:
        """All compares of all requests, and the last write of each key."""
        writes: list[Write] = []
        for key, value in self.writes.items():
            writes.append(Delete(key) if value is None else Put(key, encode(value)))
        return Transaction(
            compares=tuple(Compare(key, modified) for key, modified in self.compares.items()),
            writes=tuple(writes),
        )


def for_each(items: Iterable[Item], look: Callable[[Item], Result]) -> list[Result]:
    """What `look` finds for each item.

    All that is not loaded yet is asked for at once, and not one item after the other: a request
    may name many, and each reading costs a way to the store and back.
    """
    missing: dict[str, None] = {}
    found: list[Result] = []
    for item in items:
        try:
            found.append(look(item))
        except NotLoaded as needed:
            missing.update(dict.fromkeys(needed.missing))
        except RecordsDisagree:
            # After one that could not be looked at to its end, a draft may be half written. Then
            # this says nothing: all of them are looked at again.
            if not missing:
                raise
    if missing:
        raise NotLoaded(tuple(missing))
    return found


class Draft:
    """What one request reads and means to write."""

    __slots__ = ("_group", "_reads", "_seen", "_writes", "_written")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._written = group.writes
        self._seen = group.view.get
        self._reads: dict[str, int] = {}
        self._writes: dict[str, Any] = {}

    def load(self, *wanted: str) -> None:
        """Make sure that all of these keys are known,
        so that they are read from the store together.
        """
        written, seen = self._written, self._seen
        missing = [key for key in wanted if seen(key) is None and key not in written]
        if missing:
            raise NotLoaded(tuple(missing))

    def read(self, key: str) -> Any:
        """The value under a key, or None. Having read it, the decision rests on it."""
        if key in self._writes:
            return self._writes[key]
        if key in self._written:
            return self._written[key]
        seen = self._seen(key)
        if seen is None:
            raise NotLoaded((key,))
        self._reads[key] = seen.modified
        return seen.value

    def revision(self, key: str) -> int:
        """The revision at which the key was last written, ABSENT,
        or UNCOMMITTED in this very group.
        """
        if key in self._writes or key in self._written:
            return UNCOMMITTED
        self.read(key)
        return self._reads[key]

    def base(self, key: str) -> int:
        """The revision that this group found under the key, whatever it has written there since."""
        self.read(key)
        seen = self._seen(key)
        return seen.modified if seen is not None else ABSENT

    def found(self, key: str) -> Any:
        """What this group found under the key, whatever it has written there since."""
        self.read(key)
        seen = self._seen(key)
        return seen.value if seen is not None else None

    def write(self, key: str, value: Any) -> None:
        """Mean to write this. A write always compares, so that nothing is ever written blindly."""
        if key not in self._writes and key not in self._written:
            self.read(key)
        self._writes[key] = value

    def delete(self, key: str) -> None:
        """Mean to delete this."""
        self.write(key, None)

    def object(self, struct: type[SomeObject], namespace: str, name: str) -> SomeObject | None:
        """The object of this kind and name, or None."""
        value: SomeObject | None = self.read(
            keys.object_key(kind_of_struct(struct), namespace, name)
        )
        return value

    def ledger(self, struct: type[Anything], key: str) -> Anything | None:
        """The ledger under this key, or None."""
        value: Anything | None = self.read(key)
        return value

    def accept(self) -> None:
        """Make the writes part of the group."""
        self._keep_reads()
        self._group.writes.update(self._writes)

    def refuse(self) -> None:
        """Leave the writes out, but let the group confirm what the refusal rested on."""
        self._keep_reads()

    def weight(self) -> int:
        """How many compares the group would have with this draft in it; writes are never more."""
        compares = self._group.compares
        return len(compares) + len(self._reads.keys() - compares.keys())

    def is_heavier_than(self, most: int) -> bool:
        """Whether the group would have more compares than this with the draft in it."""
        # Mostly it would not even if it shared no read with the others, which is quickly seen.
        return len(self._group.compares) + len(self._reads) > most and self.weight() > most

    def _keep_reads(self) -> None:
        # The view stands still while a group is decided, so a key that was read before was read
        # at the same revision.
        self._group.compares.update(self._reads)

    @property
    def writes(self) -> dict[str, Any]:
        return self._writes
