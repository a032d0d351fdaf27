"""Which rows changed, in order, so that a reader looks again at those since its last look only."""

from __future__ import annotations

# A reader that is further behind than this computes everything anew, which costs no more.
LOG_MAX = 65_536


class ChangeLog:
    """Rows by a position that only grows. Old positions are forgotten."""

    __slots__ = ("_first", "_rows")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._first = 0

    @property
    def end(self) -> int:
        """The position of the next change."""
        return self._first + len(self._rows)

    def note(self, row: int) -> None:
        """This row is different now."""
        self._rows.append(row)
        if len(self._rows) > LOG_MAX:
            half = LOG_MAX // 2
            del self._rows[:half]
            self._first += half

    def since(self, position: int) -> list[int] | None:
        """The rows noted from this position on, some perhaps twice; None if that is forgotten."""
        if position < self._first:
            return None
        return self._rows[position - self._first :]
