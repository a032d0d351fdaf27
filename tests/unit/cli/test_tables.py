"""Tables as lines of text."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.cli.tables import ServerTable, TablePrinter, rows

COLUMNS = [
    {"name": "Name", "priority": 0},
    {"name": "State", "priority": 0},
    {"name": "Note", "priority": 1},
]


def table(*cells: list[Any], columns: bool = True) -> ServerTable:
    document = {
        "columnDefinitions": COLUMNS if columns else None,
        "rows": [
            {"cells": row, "object": {"metadata": {"name": row[0], "namespace": "shop"}}}
            for row in cells
        ],
    }
    return msgspec.convert(document, ServerTable)


def test_columns_are_as_wide_as_what_is_in_them_and_no_line_has_an_end_of_blanks() -> None:
    printer = TablePrinter(wide=False, namespaces=False)
    assert printer.lines(table(["a-long-name", "Ready", "x"], ["b", None, ""])) == [
        "NAME          STATE",
        "a-long-name   Ready",
        "b             <none>",
    ]


def test_wide_shows_all_columns_and_several_namespaces_are_named() -> None:
    printer = TablePrinter(wide=True, namespaces=True)
    assert printer.lines(table(["a", "Ready", "x"])) == [
        "NAMESPACE   NAME   STATE   NOTE",
        "shop        a      Ready   x",
    ]


def test_a_watch_goes_on_in_the_same_columns_with_one_heading() -> None:
    printer = TablePrinter(wide=False, namespaces=False)
    assert printer.lines(table()) == []
    assert printer.lines(table(["a", "Ready", ""], columns=False)) == [
        "NAME   STATE",
        "a      Ready",
    ]
    assert printer.lines(table(["a", "Off", ""], columns=False)) == ["a      Off"]


def test_one_object_is_one_line_whatever_is_in_it() -> None:
    assert rows(("NAME",), [("a\nb\x1b[2J",)]) == ["NAME", "a\ufffdb\ufffd[2J"]
