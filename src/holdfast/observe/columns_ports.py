"""Fixed ports that are taken or not offered, by row. Few work asks for one: no column is kept."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.ledger import NodeLedger


class PortRows:
    """How often each port is taken on each row, and how often by what is only assumed."""

    __slots__ = ("_lent", "_sharing", "_taken")

    def __init__(self) -> None:
        self._taken: dict[str, dict[int, int]] = {}
        self._lent: dict[str, dict[int, int]] = {}
        # The nodes that do not offer every port.
        self._sharing: dict[int, NodeLedger] = {}

    def place(self, row: int, empty: NodeLedger | None) -> None:
        """The node of this row is this, or there is none."""
        if empty is not None and empty.port_share is not None:
            self._sharing[row] = empty
        else:
            self._sharing.pop(row, None)

    def not_offered(self, port: str) -> list[int]:
        """The rows whose nodes never give this port."""
        return [row for row, empty in self._sharing.items() if not empty.offers(port)]

    def change(self, row: int, ports: Iterable[str], sign: int) -> None:
        """Somebody took these ports, or with -1 gave them back."""
        _count(self._taken, row, ports, sign)

    def lend(self, row: int, ports: Iterable[str], sign: int) -> None:
        """It is only assumed that somebody did."""
        _count(self._lent, row, ports, sign)

    def clear(self, row: int) -> None:
        """Forget what is taken on this row."""
        for table in (self._taken, self._lent):
            for port in [port for port, rows in table.items() if row in rows]:
                _count(table, row, (port,), -table[port][row])

    def taken(self, port: str, *, settled: bool) -> list[int]:
        """The rows where a port is taken; `settled` leaves out what is only assumed."""
        rows = self._taken.get(port, {})
        if not settled:
            return list(rows)
        lent = self._lent.get(port, {})
        return [row for row, count in rows.items() if count > lent.get(row, 0)]


def _count(table: dict[str, dict[int, int]], row: int, ports: Iterable[str], sign: int) -> None:
    for port in ports:
        rows = table.setdefault(port, {})
        rows[row] = rows.get(row, 0) + sign
        if not rows[row]:
            del rows[row]
            if not rows:
                del table[port]
