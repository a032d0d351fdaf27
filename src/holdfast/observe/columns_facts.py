"""Labels of nodes and the images on them, as columns that are made when somebody first asks.

A node has many labels and work asks for few of them. So a column exists for each key that some work
asked for: the number of the node's value, or -1 where it has none. Sets of bits were the
alternative; a key such as the host's name has as many values as there are nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

# Keys, and images, of which a column is kept. More are made anew when they are asked for.
COLUMNS_MAX = 512

NONE = -1

T = TypeVar("T")


class Labels:
    """The values that one key has on all rows."""

    __slots__ = ("column", "numbers", "values")

    def __init__(self, rows: int) -> None:
        self.column = np.full(rows, NONE, np.int64)
        self.values: list[str] = []
        self.numbers: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.column[row] = NONE
            return
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        self.column[row] = number


class FactColumns:
    """See the module's docstring."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._labels: list[Mapping[str, str]] = []
        self._images: list[tuple[str, ...]] = []
        self._by_key: dict[str, Labels] = {}
        self._by_image: dict[str, npt.NDArray[np.bool_]] = {}

    def place(self, row: int, labels: Mapping[str, str], images: tuple[str, ...]) -> None:
        """The node of this row has these now."""
        while len(self._labels) <= row:
            self._labels.append({})
            self._images.append(())
        self._labels[row], self._images[row] = labels, images
        for key, column in self._by_key.items():
            column.put(row, labels.get(key))
        for image, there in self._by_image.items():
            there[row] = image in images

    def label(self, key: str) -> Labels:
        """The column of a label."""
        found = self._by_key.get(key)
        if found is None:
            found = Labels(self._rows)
            for row, labels in enumerate(self._labels):
                found.put(row, labels.get(key))
            _keep(self._by_key, key, found)
        return found

    def image(self, image: str) -> npt.NDArray[np.bool_]:
        """Where an image is already."""
        found = self._by_image.get(image)
        if found is None:
            found = np.zeros(self._rows, np.bool_)
            for row, images in enumerate(self._images):
                found[row] = image in images
            _keep(self._by_image, image, found)
        return found

    def grow(self, rows: int) -> None:
        """Make room for more rows. Columns are made anew when somebody asks."""
        self._rows = rows
        self._by_key.clear()
        self._by_image.clear()


def _keep(table: dict[str, T], key: str, value: T) -> None:
    if len(table) >= COLUMNS_MAX:
        del table[next(iter(table))]
    table[key] = value
