"""Prints the servers' tables: one line for each object, aligned columns.

The text has any width on purpose: a table that is cut or wrapped to fit a terminal hides cells, and
piped output must not depend on a terminal at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.cli.exit_codes import plain

GAP = "   "


class ColumnDefinition(msgspec.Struct, frozen=True):
    """One column of a server's table; priority 1 is for the wide form."""

    name: str
    priority: int = 0


class RowMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a row's object, as far as it is printed."""

    name: str = ""
    namespace: str = ""


class RowObject(msgspec.Struct, frozen=True):
    metadata: RowMetadata = RowMetadata()


class TableRow(msgspec.Struct, frozen=True):
    """One object."""

    cells: list[Any]
    object: RowObject = RowObject()


class TableMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ServerTable(msgspec.Struct, frozen=True, rename="camel"):
    """A server's table, as far as it is printed. Events of a watch leave the columns out."""

    metadata: TableMetadata = TableMetadata()
    column_definitions: list[ColumnDefinition] | None = None
    rows: list[TableRow] = []


class TablePrinter:
    """Turns tables into lines. It remembers widths, so that a watch keeps its columns."""

    def __init__(self, *, wide: bool, namespaces: bool) -> None:
        self._wide, self._namespaces = wide, namespaces
        self._columns: list[ColumnDefinition] = []
        self._widths: list[int] = []
        self._is_headed = False

    def lines(self, table: ServerTable) -> list[str]:
        """The lines of a table; the first table that has rows also gets a heading."""
        self._columns = self._columns or table.column_definitions or []
        if not table.rows:
            return []
        cells = [self._cells(row) for row in table.rows]
        if not self._is_headed:
            self._is_headed = True
            names = [it.name.upper() for it in self._columns if self._shows(it)]
            cells.insert(0, ["NAMESPACE", *names] if self._namespaces else names)
        self._widths = widths(cells, self._widths)
        return [align_row(it, self._widths) for it in cells]

    def _shows(self, column: ColumnDefinition) -> bool:
        return column.priority == 0 or self._wide

    def _cells(self, row: TableRow) -> list[str]:
        shown = zip(self._columns, row.cells, strict=False)
        cells = [_text(cell) for column, cell in shown if self._shows(column)]
        return [row.object.metadata.namespace, *cells] if self._namespaces else cells


def rows(heading: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table that the command makes itself."""
    cells = [list(heading), *([_text(cell) for cell in row] for row in body)]
    found = widths(cells, [])
    return [align_row(it, found) for it in cells]


def widths(cells: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    """The width of each column."""
    count = max((len(row) for row in cells), default=0)
    known = [*least, *([0] * (count - len(least)))]
    return [
        max([known[n], *(len(row[n]) for row in cells if n < len(row))]) for n in range(len(known))
    ]


def align_row(row: Sequence[str], found: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(row, found, strict=False)).rstrip()


def _text(cell: Any) -> str:
    if cell is None:
        return "<none>"
    # One object is one line, whatever its cells contain.
    return plain(str(cell), keep="")
