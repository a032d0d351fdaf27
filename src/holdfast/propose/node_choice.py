"""Which of the nodes that do is taken: the one with the highest sum, and by lot among equals.

The lot is a rank of each node, mixed from its number (`lot_of`) and the salt of the round, which
comes from the scheduler's own randomness. So a round can be repeated, also by somebody else, equal
nodes get their share, and placing many at once draws the same lots as placing one after another.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.machine import Rng
from holdfast.observe.node_columns import Floats, Lots

SALT_MAX = 2**32
_U64 = np.uint64


def salt_of(rng: Rng) -> int:
    """The lot of one round."""
    return int(rng.random() * SALT_MAX)


def ranks(lots: Lots, salt: int) -> Lots:
    """A number for each, different where the lots are; the lowest wins."""
    mixed = lots ^ _U64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed *= _U64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> _U64(33)
    mixed *= _U64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> _U64(33)
    return mixed


def best_row(sums: Floats, lots: Lots, salt: int) -> int | None:
    """The row to take, or None where none does."""
    if not len(sums):
        return None
    most = sums.max()
    if most == -np.inf:
        return None
    equals = np.flatnonzero(sums == most)
    if len(equals) == 1:
        return int(equals[0])
    return int(equals[ranks(lots[equals], salt).argmin()])


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
