"""Where the history of a store begins: for a scribe that has lost its place in it, and for a hub
that starts.

`scribe.Scribe` and `recall.Recall` ask these questions and pass on their answers. No store says
what its oldest revision is, only of one revision whether it is forgotten, so it is found by
halving.
"""

from __future__ import annotations

import msgspec

from holdfast.model import keys
from holdfast.model.errors import invariant
from holdfast.model.machine import Range

# So many halvings find one revision among all that there can be.
PROBES_MAX = 64


class Survey(msgspec.Struct):
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
