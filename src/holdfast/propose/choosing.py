"""Which of the nodes that do is taken: the one with the highest sum, and by lot among equals.

The lot is a rank of each row, mixed from the row and the salt of the round, which comes from the
scheduler's own randomness. So a round can be repeated, equal nodes get their share, and placing
many at once draws the same lots as placing one after another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.model.machine import Rng
from holdfast.observe.columns import Floats

SALT_MAX = 2**32
_U32 = np.uint32


def salt_of(rng: Rng) -> int:
    """The lot of one round."""
    return int(rng.random() * SALT_MAX)


def ranks(rows: npt.NDArray[np.intp], salt: int) -> npt.NDArray[np.uint32]:
    """A number for each row, all of them different; the lowest wins."""
    mixed = rows.astype(_U32) * _U32(0x9E3779B1)
    mixed ^= _U32(salt)
    mixed *= _U32(0x85EBCA6B)
    mixed ^= mixed >> _U32(13)
    mixed *= _U32(0xC2B2AE35)
    mixed ^= mixed >> _U32(16)
    return mixed


def best_row(sums: Floats, salt: int) -> int | None:
    """The row to take, or None where none does."""
    if not len(sums):
        return None
    most = sums.max()
    if most == -np.inf:
        return None
    equals = np.flatnonzero(sums == most)
    if len(equals) == 1:
        return int(equals[0])
    return int(equals[ranks(equals, salt).argmin()])


def next_rows(sums: Floats, first: int, count: int) -> list[int]:
    """The row that was chosen and the next best ones, for people to compare."""
    found = [first]
    rest = sums.copy()
    for _ in range(count - 1):
        rest[found[-1]] = -np.inf
        row = int(rest.argmax())
        if rest[row] == -np.inf:
            break
        found.append(row)
    return found
