"""Which rows changed, in order, so that a reader looks again at those since its last look only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# A reader that is further behind than this computes everything anew, which costs no more.
LOG_MAX = 65_536


class ChangeLog:
    """Rows by a position that only grows. Old positions are forgotten."""

    __slots__ = ("_count", "_first", "_rows")

    def __init__(self) -> None:
        self._rows: npt.NDArray[np.intp] = np.zeros(2 * LOG_MAX, np.intp)
        self._count = 0
        self._first = 0

    @property
    def end(self) -> int:
        """The position of the next change."""
        return self._first + self._count

    def note(self, row: int) -> None:
        """This row is different now."""
        if self._count == len(self._rows):
            self._rows[:LOG_MAX] = self._rows[LOG_MAX:]
            self._first += LOG_MAX
            self._count = LOG_MAX
        self._rows[self._count] = row
        self._count += 1

    def since(self, position: int) -> npt.NDArray[np.intp] | None:
        """The rows noted from this position on, some perhaps twice; None if that is forgotten."""
        if position < self._first:
            return None
        return self._rows[position - self._first : self._count]
