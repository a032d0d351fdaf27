"""How many bytes of the store's history lie after a revision, as counted by one follower.

The watch hub follows every change and counts it here. The audit (`host/audit/writer_host.py`) asks
how much history is kept for its sake alone: history is compacted no further than the audit is
written, and revisions say little about their size, since one may be a lease and another a megabyte.

Sums are kept at a coarse grain, and never say too little: a revision between two sums counts from
the earlier one, and revisions that were not followed count as much as large ones usually take.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from holdfast.model.transaction import Change

# In addition to key and value: the row, its index on disk, and the pointer in memory.
CHANGE_BYTES = 256
# A bind with its ledgers, its operation and its audit entry takes about 5 KB.
UNKNOWN_REVISION_BYTES = 8 << 10
GRAIN_BYTES = 1 << 20
# With the grain, this covers several times what is ever kept. Beyond it every other sum is dropped.
SUMS_MAX = 8_192


class HistoryBytes:
    """Sums of bytes by revision, in order."""

    def __init__(self) -> None:
        self.revision = 0
        self._total = 0
        # The number of bytes counted since the beginning, at each of these revisions.
        self._revisions, self._sums = [0], [0]

    def note(self, change: Change) -> None:
        """Count the next change of the store."""
        self._total += len(change.key) + len(change.value or b"") + CHANGE_BYTES
        self.revision = max(self.revision, change.revision)
        self._mark()

    def skip_to(self, revision: int) -> None:
        """Record that everything up to this revision was not followed: start, or a lost place."""
        unknown = max(0, revision - self.revision)
        if self.revision:
            self._total += unknown * UNKNOWN_REVISION_BYTES
            self.revision += unknown
            self._mark()
        else:
            self.revision = revision
            self._revisions, self._sums = [revision], [self._total]

    @property
    def counted_since(self) -> int:
        """The revision after which bytes were counted; before it they are estimated."""
        return self._revisions[0]

    def since(self, revision: int) -> int:
        """How many bytes lie after a revision; never too few."""
        if revision >= self.revision:
            return 0
        place = bisect_right(self._revisions, revision) - 1
        if place >= 0:
            return self._total - self._sums[place]
        unknown = self._revisions[0] - revision
        return self._total - self._sums[0] + unknown * UNKNOWN_REVISION_BYTES

    def revision_before(self, size: int) -> int:
        """The earliest revision after which at most `size` bytes lie."""
        place = bisect_left(self._sums, self._total - size)
        if place == len(self._sums):
            return self.revision
        if place > 0 or self._total - size >= self._sums[0]:
            return self._revisions[place]
        left = size - (self._total - self._sums[0])
        return max(0, self._revisions[0] - left // UNKNOWN_REVISION_BYTES)

    def _mark(self) -> None:
        if self._total - self._sums[-1] >= GRAIN_BYTES:
            self._revisions.append(self.revision)
            self._sums.append(self._total)
            if len(self._sums) > SUMS_MAX:
                # The oldest sum stays: what came after it is known, however coarsely.
                del self._revisions[1::2], self._sums[1::2]
