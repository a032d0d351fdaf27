"""Where a hub that starts begins to read: at the oldest recent revision that the store still has.

`hub.Hub` asks these questions and passes on their answers. The store's log keeps each change since
the last compaction; a list at a past revision and all changes after it bring back both the present
and the way there.
"""

from __future__ import annotations

from typing import Any

from holdfast.model import keys
from holdfast.model.errors import Expired
from holdfast.model.machine import Range
from holdfast.observe.survey import Survey


class Recall:
    """Looks for that revision, not further back than `recent` revisions."""

    def __init__(self, recent: int) -> None:
        self._recent = recent
        self.call = 0
        # The store's revision when the hub was started, and the oldest one known to be readable.
        self.present = self.oldest = 0
        self._survey: Survey | None = None

    def begin(self, call: int) -> None:
        """The question for the store's revision goes out under this number."""
        self.call = call
        self.present = self.oldest = 0
        self._survey = None

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
        if self._survey is None:
            first = max(1, self.present - self._recent)
            if not is_gone:
                self.oldest = first
                return None
            self._survey = Survey(first, first, self.present)
        else:
            self._survey.heard(is_gone=is_gone)
        self.oldest = self._survey.there
        return None if self._survey.is_over else self._survey.probe()


def current_revision(call: int) -> Range:
    """Nothing but the store's revision."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1)


def readable_at(call: int, revision: int) -> Range:
    """Whether a past revision can be read: Expired when it cannot."""
    return Range(call, keys.OBJECTS, f"{keys.OBJECTS}\0", 1, revision)
