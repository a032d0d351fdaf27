"""What a cache was told of one kind: the objects, how far the telling got, and what it left out.

A stream tells of revisions in order, so a piece of news of revision r says that everything before r
has been told; a bookmark says so of r itself. Of a revision that changed many objects a part may
have been told when a stream breaks; the next stream repeats it and what is known is left out.

Lists come on two ways. A stream that cannot go on begins with one (`begin`); it replaces what was
known. An audit (`begin_audit`) lists beside a stream that goes on, and finds what that one lost.
Either brings the picture forward in one step. A list that is older than what is known, or of which
pieces are missing, is refused as a whole: no object ever goes back, or vanishes and comes again.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import unreachable
from holdfast.model.meta import Object
from holdfast.observe.indexer import Key, Shelf, key_of
from holdfast.observe.watch_events import Departed, News, Opaque, Present, Reached


class Change(msgspec.Struct, frozen=True):
    """One object is different from what this cache knew: new, changed or gone.

    An object that was replaced by another one of its name makes two: gone, then new.
    """

    plural: str
    before: Object | None
    after: Object | None

    @property
    def object(self) -> Object:
        """How it is, or how it was at last."""
        found = self.after if self.after is not None else self.before
        if found is None:
            unreachable(f"a change of {self.plural} is about no object")
        return found


class _Listing:
    """A list that is being told. Objects that are known already are not kept twice."""

    __slots__ = ("ahead", "departed", "known", "not_before", "opaque")

    def __init__(self, not_before: int) -> None:
        # A list older than this comes from a server that is behind, and would lead back.
        self.not_before = not_before
        self.known: set[Key] = set()
        self.ahead: dict[Key, tuple[Object, int]] = {}
        # What a stream beside it told to be gone meanwhile, which the list may not bring back.
        self.departed: dict[Key, int] = {}
        # What is there and cannot be read.
        self.opaque: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self.known) + len(self.ahead)

    def take(self, news: News, shelf: Shelf) -> bool | None:
        """Take in a piece; True at the end of a list that is whole and not of the past.

        False when it is of no use, as when something comes that is never told before the end: then
        the end was lost.
        """
        if isinstance(news, Opaque):
            # It is there, so it is not gone; nothing more is known.
            key = (news.namespace, news.name)
            self.known.add(key)
            self.opaque[key] = news.why
            return None
        if isinstance(news, Present):
            key = key_of(news.object)
            if shelf.revisions.get(key, -1) >= news.revision:
                self.known.add(key)
                self.ahead.pop(key, None)
            elif key not in self.ahead or self.ahead[key][1] < news.revision:
                self.known.discard(key)
                self.ahead[key] = (news.object, news.revision)
            return None
        if not isinstance(news, Reached) or not news.ends_list:
            return False
        is_whole = news.listed is None or news.listed == len(self)
        return is_whole and news.revision >= self.not_before


class Story:
    """See the module's docstring. Methods that bring the picture forward add to `changes`."""

    def __init__(self, plural: str) -> None:
        self.plural = plural
        self.shelf = Shelf()
        self.is_listed = False
        self.must_list = True
        # The stream has told everything up to this revision, and of `_current` at least a part.
        self.told = self._current = 0
        # The last audit told everything up to this revision; the stream may get there later.
        self.audited = 0
        # Each one is an event that was never told.
        self.missed = 0
        # Objects that are there and cannot be read, and why. What was known of them is shown.
        self.opaque: dict[Key, str] = {}
        self._listing: _Listing | None = None
        self._audit: _Listing | None = None
        # What the audit brought before the stream told it: key to the revision, and whether it is
        # there. Whatever remains when the stream has passed the audit was lost.
        self._unconfirmed: dict[Key, tuple[int, bool]] = {}

    @property
    def revision(self) -> int:
        """The picture shows everything up to this revision."""
        return max(self.told, self.audited)

    @property
    def shown(self) -> int:
        """The picture shows nothing that is newer than this revision."""
        return max(self.told, self._current, self.audited)

    @property
    def is_listing(self) -> bool:
        """Whether the stream has not come to the end of its first list yet."""
        return self._listing is not None

    @property
    def is_behind_audit(self) -> bool:
        """Whether the stream has still to tell what the audit showed already."""
        return self.told < self.audited

    # The stream ----------------------------------------------------------------------------------

    def begin(self) -> int | None:
        """A new stream begins: after this revision, or with a list."""
        if not self.must_list:
            self._listing = None
            return self.told
        self._listing = _Listing(max(self._current, self.audited))
        return None

    def take(self, news: News, changes: list[Change]) -> bool:
        """Take in a piece of the stream. False when its list is of no use: open another stream."""
        if self._listing is not None:
            return self._take_listed(self._listing, news, changes)
        revision = news.revision
        if revision <= self.told:
            return True
        if isinstance(news, Reached):
            self.told = self._current = revision
        elif isinstance(news, Opaque):
            self.told, self._current = revision - 1, revision
            self._take_opaque(news, changes)
        else:
            self.told, self._current = revision - 1, revision
            self._take_change(news, changes)
        if self._unconfirmed and self.told >= self.audited:
            self.missed += len(self._unconfirmed)
            self._unconfirmed.clear()
        return True

    def _take_change(self, news: Present[Object] | Departed[Object], changes: list[Change]) -> None:
        key = key_of(news.object)
        revision = news.revision
        if revision <= self.audited:
            expected = self._unconfirmed.get(key)
            if expected is not None and _confirms(news, *expected):
                del self._unconfirmed[key]
        elif isinstance(news, Departed):
            if self._audit is not None:
                self._audit.departed[key] = revision
            self._put(key, None, revision, changes)
        elif self.shelf.revisions.get(key, -1) < revision:
            self._put(key, news.object, revision, changes)

    def _take_opaque(self, news: Opaque, changes: list[Change]) -> None:
        """Keep what is known of an object that cannot be read, until it is gone."""
        key = (news.namespace, news.name)
        self._unconfirmed.pop(key, None)
        if news.departed:
            if self._audit is not None:
                self._audit.departed[key] = news.revision
            self.opaque.pop(key, None)
            if news.revision > self.audited:
                self._put(key, None, news.revision, changes)
        else:
            self.opaque[key] = news.why

    def _take_listed(self, listing: _Listing, news: News, changes: list[Change]) -> bool:
        is_useful = listing.take(news, self.shelf)
        if is_useful is None:
            return True
        self._listing = None
        if not is_useful:
            return False
        for _, revision, is_there in self._bring_forward(listing, news.revision, changes):
            # When the object changed is known, when it went is not.
            went_by = revision if is_there else news.revision
            self.missed += went_by <= self.told
        self.missed += sum(at <= self.told for at, _ in self._unconfirmed.values())
        self._unconfirmed.clear()
        self.told = self._current = self.audited = news.revision
        self.is_listed, self.must_list = True, False
        return True

    # The audit -----------------------------------------------------------------------------------

    def begin_audit(self) -> None:
        """A list beside the stream begins."""
        self._audit = _Listing(max(self._current, self.audited))

    def drop_audit(self) -> None:
        self._audit = None

    def take_audit(self, news: News, changes: list[Change]) -> bool | None:
        """Take in a piece of the audit. True when it is over, False when it was of no use."""
        audit = self._audit
        if audit is None:
            unreachable(f"nobody audits {self.plural}")
        is_useful = audit.take(news, self.shelf)
        if is_useful is not None:
            self._audit = None
        if not is_useful:
            return is_useful
        found = self._bring_forward(audit, news.revision, changes)
        self.audited = news.revision
        if self.told >= news.revision:
            self.missed += len(found)
        else:
            # What an earlier audit brought is still to be confirmed.
            self._unconfirmed.update((key, (at, is_there)) for key, at, is_there in found)
        return True

    # Both ----------------------------------------------------------------------------------------

    def _bring_forward(
        self, listing: _Listing, revision: int, changes: list[Change]
    ) -> list[tuple[Key, int, bool]]:
        """Show what the list shows; of what that was news: key, revision, whether it is there.

        What changed after the list is as the stream told it.
        """
        found: list[tuple[Key, int, bool]] = []
        self.opaque = listing.opaque
        gone = [
            key
            for key, at in self.shelf.revisions.items()
            if at <= revision and key not in listing.known and key not in listing.ahead
        ]
        for key in gone:
            self._put(key, None, revision, changes)
            found.append((key, revision, False))
        for key, (obj, at) in listing.ahead.items():
            is_past = self.shelf.revisions.get(key, -1) >= at or listing.departed.get(key, -1) > at
            if not is_past:
                self._put(key, obj, at, changes)
                found.append((key, at, True))
        return found

    def _put(self, key: Key, after: Object | None, revision: int, changes: list[Change]) -> None:
        before = self.shelf.put(key, after, revision)
        if self.opaque:
            self.opaque.pop(key, None)
        if before is None and after is None:
            return
        if before is not None and after is not None and before.metadata.uid != after.metadata.uid:
            changes.append(Change(self.plural, before, None))
            before = None
        changes.append(Change(self.plural, before, after))


def _confirms(news: Present[Object] | Departed[Object], at: int, is_there: bool) -> bool:
    """Whether the stream tells what an audit has shown before it."""
    if is_there:
        return isinstance(news, Present) and news.revision == at
    return isinstance(news, Departed) and news.revision <= at
