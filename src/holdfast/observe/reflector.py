"""What a cache knows of one kind: the objects, the revision reached, and the events it missed.

A stream delivers revisions in order. An event of revision r means that everything before r has been
delivered; a bookmark of revision r includes r itself. When a stream breaks, it may have delivered
only part of a revision that changed many objects. The next stream repeats that revision, and events
that are already known are skipped.

Lists arrive in two ways. A stream that cannot be resumed starts with a list (`begin`), which
replaces what was known. A resync (`begin_resync`) lists beside a running stream and finds what that
stream lost. Either brings the snapshot forward in one step. A list that is older than what is
known, or that is incomplete, is rejected as a whole: no object ever goes back to an older state, or
disappears and comes back.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import unreachable
from holdfast.model.meta import Object
from holdfast.observe.indexer import Indexer, Key, key_of
from holdfast.observe.watch_events import Departed, Opaque, Present, Reached, WatchEvent


class ObjectChange(msgspec.Struct, frozen=True):
    """One object differs from what this cache knew: it is new, changed or gone.

    An object that was replaced by another one of the same name makes two changes: gone, then new.
    `plane` is the other plane in which it changed; empty for the own one.
    """

    plural: str
    before: Object | None
    after: Object | None
    plane: str = ""

    @property
    def object(self) -> Object:
        """The current object, or its last state if it is gone."""
        found = self.after if self.after is not None else self.before
        if found is None:
            unreachable(f"a change of {self.plural} has neither a before nor an after")
        return found


class _Listing:
    """A list that is being received. Objects that are already known are not stored twice."""

    __slots__ = ("ahead", "departed", "known", "not_before", "opaque")

    def __init__(self, not_before: int) -> None:
        # A list older than this comes from a server that is behind, and would bring back the past.
        self.not_before = not_before
        self.known: set[Key] = set()
        self.ahead: dict[Key, tuple[Object, int]] = {}
        # Objects that the stream beside it removed meanwhile. The list must not bring them back.
        self.departed: dict[Key, int] = {}
        # Objects that exist and cannot be decoded.
        self.opaque: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self.known) + len(self.ahead)

    def take(self, event: WatchEvent, indexer: Indexer) -> bool | None:
        """Add one event. Returns True at the end of a list that is complete and recent enough.

        Returns False when the list is unusable, for example when an event arrives that is only sent
        after the end of a list: then the end was lost.
        """
        if isinstance(event, Opaque):
            # The object exists, so it is not gone. Nothing more is known.
            key = (event.namespace, event.name)
            self.known.add(key)
            self.opaque[key] = event.why
            return None
        if isinstance(event, Present):
            key = key_of(event.object)
            if indexer.revisions.get(key, -1) >= event.revision:
                self.known.add(key)
                self.ahead.pop(key, None)
            elif key not in self.ahead or self.ahead[key][1] < event.revision:
                self.known.discard(key)
                self.ahead[key] = (event.object, event.revision)
            return None
        if not isinstance(event, Reached) or not event.ends_list:
            return False
        is_whole = event.listed is None or event.listed == len(self)
        return is_whole and event.revision >= self.not_before


class Reflector:
    """See the module's docstring. Methods that bring the snapshot forward append to `changes`."""

    def __init__(self, plural: str) -> None:
        self.plural = plural
        self.indexer = Indexer()
        self.is_listed = False
        self.must_list = True
        # The stream has delivered everything up to this revision, and at least part of `_current`.
        self.stream_revision = self._current = 0
        # The last resync covered everything up to this revision. The stream may get there later.
        self.resync_revision = 0
        # The number of events that were never delivered.
        self.missed = 0
        # Objects that exist and cannot be decoded, and why. Their last known state is shown.
        self.opaque: dict[Key, str] = {}
        self._listing: _Listing | None = None
        self._resync: _Listing | None = None
        # What the resync brought before the stream did: key to revision, and whether the object
        # exists. What remains when the stream has passed the resync was lost.
        self._unconfirmed: dict[Key, tuple[int, bool]] = {}

    @property
    def revision(self) -> int:
        """The snapshot shows everything up to this revision."""
        return max(self.stream_revision, self.resync_revision)

    @property
    def shown(self) -> int:
        """The snapshot shows nothing newer than this revision."""
        return max(self.stream_revision, self._current, self.resync_revision)

    @property
    def is_listing(self) -> bool:
        """Whether the stream has not reached the end of its initial list yet."""
        return self._listing is not None

    @property
    def is_behind_resync(self) -> bool:
        """Whether the stream has yet to deliver what the resync already showed."""
        return self.stream_revision < self.resync_revision

    # The stream ----------------------------------------------------------------------------------

    def begin(self) -> int | None:
        """Start a new stream. Returns the revision to resume after, or None to list first."""
        if not self.must_list:
            self._listing = None
            return self.stream_revision
        self._listing = _Listing(max(self._current, self.resync_revision))
        return None

    def take(self, event: WatchEvent, changes: list[ObjectChange]) -> bool:
        """Add one event of the stream. False means its list is unusable: open another stream."""
        if self._listing is not None:
            return self._take_listed(self._listing, event, changes)
        revision = event.revision
        if revision <= self.stream_revision:
            return True
        if isinstance(event, Reached):
            self.stream_revision = self._current = revision
        elif isinstance(event, Opaque):
            self.stream_revision, self._current = revision - 1, revision
            self._take_opaque(event, changes)
        else:
            self.stream_revision, self._current = revision - 1, revision
            self._take_change(event, changes)
        if self._unconfirmed and self.stream_revision >= self.resync_revision:
            self.missed += len(self._unconfirmed)
            self._unconfirmed.clear()
        return True

    def _take_change(
        self, event: Present[Object] | Departed[Object], changes: list[ObjectChange]
    ) -> None:
        key = key_of(event.object)
        revision = event.revision
        if revision <= self.resync_revision:
            expected = self._unconfirmed.get(key)
            if expected is not None and _confirms(event, *expected):
                del self._unconfirmed[key]
        elif isinstance(event, Departed):
            if self._resync is not None:
                self._resync.departed[key] = revision
            self._put(key, None, revision, changes)
        elif self.indexer.revisions.get(key, -1) < revision:
            self._put(key, event.object, revision, changes)

    def _take_opaque(self, event: Opaque, changes: list[ObjectChange]) -> None:
        """Keep the last known state of an object that cannot be decoded, until it is gone."""
        key = (event.namespace, event.name)
        self._unconfirmed.pop(key, None)
        if event.departed:
            if self._resync is not None:
                self._resync.departed[key] = event.revision
            self.opaque.pop(key, None)
            if event.revision > self.resync_revision:
                self._put(key, None, event.revision, changes)
        else:
            self.opaque[key] = event.why

    def _take_listed(
        self, listing: _Listing, event: WatchEvent, changes: list[ObjectChange]
    ) -> bool:
        is_useful = listing.take(event, self.indexer)
        if is_useful is None:
            return True
        self._listing = None
        if not is_useful:
            return False
        for _, revision, is_there in self._bring_forward(listing, event.revision, changes):
            # The revision of a change is known, that of a deletion is not.
            went_by = revision if is_there else event.revision
            self.missed += went_by <= self.stream_revision
        self.missed += sum(at <= self.stream_revision for at, _ in self._unconfirmed.values())
        self._unconfirmed.clear()
        self.stream_revision = self._current = self.resync_revision = event.revision
        self.is_listed, self.must_list = True, False
        return True

    # The resync ----------------------------------------------------------------------------------

    def begin_resync(self) -> None:
        """Start a list beside the stream."""
        self._resync = _Listing(max(self._current, self.resync_revision))

    def drop_resync(self) -> None:
        self._resync = None

    def take_resync(self, event: WatchEvent, changes: list[ObjectChange]) -> bool | None:
        """Add one event of the resync. True when it is complete, False when it is unusable."""
        resync = self._resync
        if resync is None:
            unreachable(f"no resync of {self.plural} is running")
        is_useful = resync.take(event, self.indexer)
        if is_useful is not None:
            self._resync = None
        if not is_useful:
            return is_useful
        found = self._bring_forward(resync, event.revision, changes)
        self.resync_revision = event.revision
        if self.stream_revision >= event.revision:
            self.missed += len(found)
        else:
            # What an earlier resync brought is still to be confirmed.
            self._unconfirmed.update((key, (at, is_there)) for key, at, is_there in found)
        return True

    # Both ----------------------------------------------------------------------------------------

    def _bring_forward(
        self, listing: _Listing, revision: int, changes: list[ObjectChange]
    ) -> list[tuple[Key, int, bool]]:
        """Apply the list. Returns what changed by it: key, revision, whether the object exists.

        What changed after the list stays as the stream delivered it.
        """
        found: list[tuple[Key, int, bool]] = []
        self.opaque = listing.opaque
        gone = [
            key
            for key, at in self.indexer.revisions.items()
            if at <= revision and key not in listing.known and key not in listing.ahead
        ]
        for key in gone:
            self._put(key, None, revision, changes)
            found.append((key, revision, False))
        for key, (obj, at) in listing.ahead.items():
            is_past = (
                self.indexer.revisions.get(key, -1) >= at or listing.departed.get(key, -1) > at
            )
            if not is_past:
                self._put(key, obj, at, changes)
                found.append((key, at, True))
        return found

    def _put(
        self, key: Key, after: Object | None, revision: int, changes: list[ObjectChange]
    ) -> None:
        before = self.indexer.put(key, after, revision)
        if self.opaque:
            self.opaque.pop(key, None)
        if before is None and after is None:
            return
        if before is not None and after is not None and before.metadata.uid != after.metadata.uid:
            changes.append(ObjectChange(self.plural, before, None))
            before = None
        changes.append(ObjectChange(self.plural, before, after))


def _confirms(event: Present[Object] | Departed[Object], at: int, is_there: bool) -> bool:
    """Whether the stream delivers what a resync showed before."""
    if is_there:
        return isinstance(event, Present) and event.revision == at
    return isinstance(event, Departed) and event.revision <= at
