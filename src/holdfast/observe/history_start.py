"""Where a hub that starts begins to read: at the oldest recent revision that the store still has.

`hub.Hub` asks these questions and passes on their answers. The store's log keeps each change since
the last compaction; a list at a past revision and all changes after it bring back both the present
and the way there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.errors import Expired, invariant
from holdfast.model.machine import Range

# Where the history of a store begins: for a scribe that has lost its place in it, and for a hub
# that starts.
#
# `writer.AuditWriter` and `recall.Recall` ask these questions and pass on their answers. No store says
# what its oldest revision is, only of one revision whether it is forgotten, so it is found by
# halving.

# So many halvings find one revision among all that there can be.
PROBES_MAX = 64


class HistorySearch(msgspec.Struct):
    """Looking for the oldest revision that is not forgotten: between these two."""

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
        invariant(self.tries <= PROBES_MAX, "the oldest revision was never found")
        return self._middle

    def heard(self, *, is_gone: bool) -> None:
        """What was said of the revision that was asked for."""
        if is_gone:
            self.gone = self._middle
        else:
            self.there = self._middle

    @property
    def _middle(self) -> int:
        return (self.gone + self.there) // 2


def everything(call: int) -> Range:
    """The stamp and the head, as of one revision."""
    return Range(call, keys.AUDIT, keys.after_prefix(keys.AUDIT), 10)


def stamp_at(call: int, revision: int) -> Range:
    """The stamp as of a past revision, or Expired."""
    key = keys.audit_stamp()
    return Range(call, key, f"{key}\0", 1, revision)


class Recall:
    """Looks for that revision, not further back than `recent` revisions."""

    def __init__(self, recent: int) -> None:
        self._recent = recent
        self.call = 0
        # The store's revision when the hub was started, and the oldest one known to be readable.
        self.present = self.oldest = 0
        self._search: HistorySearch | None = None

    def begin(self, call: int) -> None:
        """The question for the store's revision goes out under this number."""
        self.call = call
        self.present = self.oldest = 0
        self._search = None

    def heard(self, answer: Any) -> int | None:
        """Take in the answer to the last question: the revision to ask for next, or None when
        `oldest` is found.
        """
        if not self.present:
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
            self._search.heard(is_gone=is_gone)
        self.oldest = self._search.there
        return None if self._search.is_over else self._search.probe()


def current_revision(call: int) -> Range:
    """Nothing but the store's revision."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1)


def readable_at(call: int, revision: int) -> Range:
    """Whether a past revision can be read: Expired when it cannot."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1, revision)
