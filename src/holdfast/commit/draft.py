"""Reading is comparing: how a decision reads the store, and how its reads become compares.

The authority keeps in SeenRecords what it last saw of each key. It may be stale, and that is
harmless: a decision reads it only through a Draft, every read becomes a compare of the transaction,
and a transaction with a stale compare is refused and brings the current record along. So no
decision can forget to guard what it depends on.

Many requests are decided one after another in one CommitGroup. Each has its own Draft. The next
request sees the writes of an accepted draft; a refused draft leaves only its compares behind, so
that a refusal too is decided on records that were current after the request arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.commit.record_encoding import decode, encode
from holdfast.model import keys
from holdfast.model.audit.audit_records import Mutation, Stamp
from holdfast.model.encoding.unknown_fields import with_unknown
from holdfast.model.errors import RecordsDisagree, RecordUnreadable
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import ABSENT, Compare, Delete, Put, Record, Transaction

# A record that another request of the same group has written; it has no revision yet.
UNCOMMITTED = -1

Anything = TypeVar("Anything")
Item = TypeVar("Item")
Result = TypeVar("Result")
SomeObject = TypeVar("SomeObject", bound=Object)


class NotLoaded(Exception):
    """The view does not have these keys yet. The authority reads them and decides again."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(", ".join(missing))
        self.missing = missing


class CachedRecord(msgspec.Struct, gc=False):
    """A key as it was last seen. `data` is None when it was absent.

    `value` is its struct, or None while it is not decoded. `is_known` says that its bytes hold
    nothing that the struct does not have; it is checked when the record is rewritten.
    """

    modified: int
    created: int
    data: bytes | None
    value: Any = None
    is_known: bool = False


_NOTHING = CachedRecord(modified=ABSENT, created=ABSENT, data=None)


class SeenRecords:
    """What was last seen of each key, oldest first, bounded.

    It keeps the bytes of all records, and the structs only of those that were used lately: a struct
    takes five times the memory of its bytes, which an embedded store keeps anyway and shares with
    us.
    """

    def __init__(self, keys_max: int = 400_000, values_max: int = 20_000) -> None:
        self._seen: dict[str, CachedRecord] = {}
        # The keys whose structs are decoded.
        self._held: dict[str, CachedRecord] = {}
        self._keys_max, self._values_max = keys_max, values_max
        # What was last seen of a key. Each decision calls this a dozen times, so it is the dict's
        # own method.
        self.get: Callable[[str], CachedRecord | None] = self._seen.get

    def value(self, key: str, seen: CachedRecord) -> Any:
        """The struct of a key's cached record, or None when it was absent."""
        if seen.value is None and seen.data is not None:
            seen.value = decode(key, seen.data)
            self._hold(key, seen)
        return seen.value

    def rewritten_bytes(self, key: str, seen: CachedRecord, value: Any, data: bytes) -> bytes:
        """The bytes of a record's new form, with the fields that a newer version has put into the
        old one.
        """
        if seen.data is None or seen.is_known:
            return data
        try:
            # Mostly a record is what this version would write; this check is fast.
            seen.is_known = encode(self.value(key, seen)) == seen.data
        except RecordUnreadable:
            return data
        return data if seen.is_known else with_unknown(type(value), seen.data, data)

    def learn(self, key: str, record: Record | None) -> None:
        """Take in a record from a refused transaction or a watch.

        An older record never replaces a newer one.
        """
        old = self._seen.get(key)
        if record is None:
            self._replace(key, _NOTHING)
        elif old is None or old.modified < record.modified:
            self._replace(key, CachedRecord(record.modified, record.created, record.value))

    def record_write(
        self, key: str, value: Any, data: bytes | None, revision: int, *, is_known: bool = False
    ) -> None:
        """Take in an own committed write, as a struct and as its bytes; both None if deleted."""
        if data is None:
            self._replace(key, _NOTHING)
            return
        old = self._seen.get(key, _NOTHING)
        created = old.created if old.data is not None else revision
        seen = self._seen[key] = CachedRecord(revision, created, data, value, is_known)
        self._hold(key, seen)
        self._bound()

    def suppose_absent(self, key: str) -> None:
        """Assume that an unknown key is absent, until a compare says otherwise."""
        if key not in self._seen:
            self._replace(key, _NOTHING)

    def forget(self, key: str) -> None:
        """Forget a key that may have changed in unknown ways."""
        self._seen.pop(key, None)
        self._held.pop(key, None)

    def _replace(self, key: str, seen: CachedRecord) -> None:
        """Take in a record that is not decoded yet."""
        self._held.pop(key, None)
        self._seen[key] = seen
        self._bound()

    def _bound(self) -> None:
        while len(self._seen) > self._keys_max:
            self.forget(next(iter(self._seen)))

    def _hold(self, key: str, seen: CachedRecord) -> None:
        """Keep a decoded struct. One that is dropped too early is only decoded again."""
        held = self._held
        held[key] = seen
        while len(held) > self._values_max:
            held.pop(next(iter(held))).value = None


class CommitGroup:
    """The requests that are decided together and committed by one transaction."""

    __slots__ = ("_data", "_foreign", "compares", "mutations", "view", "writes")

    def __init__(self, view: SeenRecords) -> None:
        self.view = view
        self.compares: dict[str, int] = {}
        self.writes: dict[str, Any] = {}
        # The audit entry of each accepted request.
        self.mutations: list[Mutation] = []
        # The bytes of the writes, once they are encoded.
        self._data: dict[str, bytes] = {}
        # The keys of writes that hold fields of a newer version.
        self._foreign: set[str] = set()

    def transaction(self, wall_ms: int = 0) -> Transaction:
        """All compares of all requests, the last write of each key, and the audit stamp.

        The stamp compares nothing: each transaction records only its own changes, and the store's
        history keeps the stamps that it overwrites.
        """
        data = self._data = {
            key: self._encoded(key, value)
            for key, value in self.writes.items()
            if value is not None
        }
        writes = [Put(key, data[key]) if key in data else Delete(key) for key in self.writes]
        if self.mutations:
            stamp = Stamp(wall_ms, tuple(self.mutations))
            writes.append(Put(keys.audit_stamp(), encode(stamp)))
        return Transaction(
            compares=tuple(Compare(key, modified) for key, modified in self.compares.items()),
            writes=tuple(writes),
        )

    def _encoded(self, key: str, value: Any) -> bytes:
        data = encode(value)
        seen = self.view.get(key)
        if seen is None or seen.is_known or seen.data is None:
            return data
        kept = self.view.rewritten_bytes(key, seen, value, data)
        if kept is not data:
            self._foreign.add(key)
        return kept

    def record_commit(self, revision: int) -> None:
        """Update the view with what the transaction has written."""
        foreign = self._foreign
        for key, value in self.writes.items():
            data = self._data.get(key)
            self.view.record_write(key, value, data, revision, is_known=key not in foreign)


def for_each(items: Iterable[Item], look: Callable[[Item], Result]) -> list[Result]:
    """The result of `look` for each item.

    All missing records are requested at once, not one item after the other: a request may name
    many, and each read costs a round trip to the store.
    """
    missing: dict[str, None] = {}
    found: list[Result] = []
    for item in items:
        try:
            found.append(look(item))
        except NotLoaded as needed:
            missing.update(dict.fromkeys(needed.missing))
        except RecordsDisagree:
            # After an item that was interrupted, a draft may be half written. Then this proves
            # nothing: all items are looked at again.
            if not missing:
                raise
    if missing:
        raise NotLoaded(tuple(missing))
    return found


class Draft:
    """The reads and intended writes of one request."""

    __slots__ = ("_group", "_reads", "_seen", "_writes", "_written")

    def __init__(self, group: CommitGroup) -> None:
        self._group = group
        self._written = group.writes
        self._seen = group.view.get
        self._reads: dict[str, int] = {}
        self._writes: dict[str, Any] = {}

    def load(self, *wanted: str) -> None:
        """Make sure that all of these keys are loaded, so that they are read from the store
        together.
        """
        written, seen = self._written, self._seen
        missing = [key for key in wanted if seen(key) is None and key not in written]
        if missing:
            raise NotLoaded(tuple(missing))

    def suppose_absent(self, *keys_: str) -> None:
        """Assume that these keys are absent, as they almost always are, without reading them.

        An assumption is part of the view like anything else, stale or not. It is compared, and if
        it is wrong the refusal brings the record, which is what the read would have cost.
        """
        for key in keys_:
            self._group.view.suppose_absent(key)

    def read(self, key: str) -> Any:
        """The value under a key, or None. The decision depends on it from then on."""
        if key in self._writes:
            return self._writes[key]
        if key in self._written:
            return self._written[key]
        seen = self._seen(key)
        if seen is None:
            raise NotLoaded((key,))
        self._reads[key] = seen.modified
        value = seen.value
        return value if value is not None else self._group.view.value(key, seen)

    def revision(self, key: str) -> int:
        """The revision at which the key was last written, ABSENT, or UNCOMMITTED if this group
        wrote it.
        """
        if key in self._writes or key in self._written:
            return UNCOMMITTED
        self.read(key)
        return self._reads[key]

    def compare(self, key: str) -> int:
        """Compare a key as it is, without reading its value: its revision, or ABSENT.

        UNCOMMITTED if this group has written it: then the store never had this value. Only for code
        that handles records that may be unreadable.
        """
        if key in self._writes or key in self._written:
            return UNCOMMITTED
        seen = self._seen(key)
        if seen is None:
            raise NotLoaded((key,))
        self._reads[key] = seen.modified
        return seen.modified

    def revision_read(self, key: str) -> int | None:
        """The revision of a key that this decision has read so far; None if it has not read it."""
        if key in self._writes or key in self._written:
            return UNCOMMITTED
        return self._reads.get(key)

    def base(self, key: str) -> int:
        """The revision that this group found under the key, whatever it has written there since."""
        self.read(key)
        seen = self._seen(key)
        return seen.modified if seen is not None else ABSENT

    def found(self, key: str) -> Any:
        """The value that this group found under the key, whatever it has written there since."""
        self.read(key)
        seen = self._seen(key)
        return self._group.view.value(key, seen) if seen is not None else None

    def before(self, key: str) -> Any:
        """The value of a key before this request wrote it; None if there was none."""
        if key in self._written:
            return self._written[key]
        seen = self._seen(key)
        try:
            return self._group.view.value(key, seen) if seen is not None else None
        except RecordUnreadable:
            # Only a repair overwrites an unreadable record.
            return None

    def write(self, key: str, value: Any) -> None:
        """Add a write. A write always compares, so nothing is ever written blindly."""
        if key not in self._writes and key not in self._written and key not in self._reads:
            self.read(key)
        self._writes[key] = value

    def delete(self, key: str) -> None:
        """Add a deletion."""
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
        """Drop the writes, but let the group confirm what the refusal depends on."""
        self._keep_reads()

    def weight(self) -> int:
        """How many compares the group would have with this draft in it; writes are never more."""
        compares = self._group.compares
        return len(compares) + len(self._reads.keys() - compares.keys())

    def is_heavier_than(self, most: int) -> bool:
        """Whether the group would have more compares than this with the draft in it."""
        # Mostly it would not even if it shared no read with the others; this check is fast.
        return len(self._group.compares) + len(self._reads) > most and self.weight() > most

    def _keep_reads(self) -> None:
        # The view does not change while a group is decided, so a key that was read before was read
        # at the same revision.
        self._group.compares.update(self._reads)

    @property
    def writes(self) -> dict[str, Any]:
        return self._writes

    @property
    def reads(self) -> dict[str, int]:
        """Everything that this decision depends on, with the revisions."""
        return self._reads
