"""Statements over many rows at once.

Each statement gives up the interpreter's lock and may wait milliseconds to get it back beside a
busy event loop. So rows are not inserted or deleted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast.model.errors import invariant

T = TypeVar("T")

# So many at most with one statement.
ROWS_MAX = 64


def insert(
    execute: Callable[..., Any],
    table: str,
    columns: int,
    rows: list[tuple[Any, ...]],
    clause: str = "",
) -> None:
    one = f"({', '.join('?' * columns)})"
    for count, some in powers_of_two(rows):
        execute(
            f"INSERT INTO {table} VALUES {', '.join([one] * count)} {clause}",
            [field for row in some for field in row],
        )


def powers_of_two(items: list[T]) -> Iterator[tuple[int, list[T]]]:
    """Cut a list into pieces of few different lengths, so that few statements are prepared."""
    place = 0
    while place < len(items):
        count = min(ROWS_MAX, 1 << (len(items) - place).bit_length() - 1)
        yield count, items[place : place + count]
        place += count


def integer(value: object) -> int:
    invariant(isinstance(value, int), f"expected an integer, SQLite gave {value!r}")
    return value  # type: ignore[return-value]
