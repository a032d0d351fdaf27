"""Where a watch hub starts to read: at the oldest recent revision that the store still has.

`watch_hub.WatchHub` sends these requests and passes on the answers. The store's log keeps each
change since the last compaction. A list at a past revision and all changes after it give both the
present and the recent changes.
"""

from __future__ import annotations

import msgspec

from holdfast.model import keys
from holdfast.model.errors import Expired, invariant
from holdfast.model.machine import Range
from holdfast.model.transaction import Page

# The oldest revision that a store still has: for an audit writer that has lost its place in the
# history, and for a watch hub that starts.
#
# `audit_writer/writer.py` and `HistoryStart` send these requests and pass on the answers. A store
# does not say what its oldest revision is, only whether one is compacted, so the search bisects.

# The number of halvings that find one revision among all possible ones.
PROBES_MAX = 64


class HistorySearch(msgspec.Struct):
    """A search for the oldest revision that is not compacted: after `gone`, up to `there`."""

    after: int
    gone: int
    there: int = 0
    tries: int = 0

    @property
    def is_over(self) -> bool:
        return self.there - self.gone <= 1

    def probe(self) -> int:
        """The revision to ask for next."""
        self.tries += 1
        invariant(self.tries <= PROBES_MAX, "the oldest revision was not found by bisection")
        return self._middle

    def narrow(self, *, is_gone: bool) -> None:
        """Process the answer for the revision that was asked for."""
        if is_gone:
            self.gone = self._middle
        else:
            self.there = self._middle

    @property
    def _middle(self) -> int:
        return (self.gone + self.there) // 2


def read_stamp_and_head(call: int) -> Range:
    """Read the stamp and the head, as of one revision."""
    return Range(call, keys.AUDIT, keys.after_prefix(keys.AUDIT), 10)


def read_stamp_at(call: int, revision: int) -> Range:
    """Read the stamp as of a past revision; answered with Expired if that is compacted."""
    key = keys.audit_stamp()
    return Range(call, key, f"{key}\0", 1, revision)


class HistoryStart:
    """Searches for that revision, not further back than `recent` revisions."""

    def __init__(self, recent: int) -> None:
        self._recent = recent
        self.call = 0
        # The store's revision when the hub was started, and the oldest one known to be readable.
        self.present = self.oldest = 0
        self._search: HistorySearch | None = None

    def begin(self, call: int) -> None:
        """Start: the request for the store's revision is sent under this call number."""
        self.call = call
        self.present = self.oldest = 0
        self._search = None

    def take_answer(self, answer: Page | Expired) -> int | None:
        """Process the answer to the last request. Returns the revision to ask for next, or None
        when `oldest` is found.
        """
        if isinstance(answer, Page) and not self.present:
            self.present = self.oldest = answer.revision
            # No store can be read at a revision before the first.
            first = max(1, self.present - self._recent)
            return first if first < self.present else None
        is_gone = isinstance(answer, Expired)
        if self._search is None:
            first = max(1, self.present - self._recent)
            if not is_gone:
                self.oldest = first
                return None
            self._search = HistorySearch(first, first, self.present)
        else:
            self._search.narrow(is_gone=is_gone)
        self.oldest = self._search.there
        return None if self._search.is_over else self._search.probe()


def read_revision(call: int) -> Range:
    """Read only the store's revision."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1)


def probe_revision(call: int, revision: int) -> Range:
    """Test whether a past revision can be read: answered with Expired when it cannot."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1, revision)
