"""Which of the feasible nodes is chosen: the one with the highest sum, and a random one of equals.

Ties are broken by a rank of each node, mixed from its number (`lot_of`) and the salt of the round,
which comes from the scheduler's own randomness. So a round can be replayed elsewhere, equal nodes
get equal shares, and placing many at once breaks ties like placing one after another.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.machine import Rng
from holdfast.observe.node_columns import Floats, Lots

SALT_MAX = 2**32
_U64 = np.uint64


def salt_of(rng: Rng) -> int:
    """The salt of one round."""
    return int(rng.random() * SALT_MAX)


def ranks(lots: Lots, salt: int) -> Lots:
    """A rank for each node, different where the lots are; the lowest wins."""
    mixed = lots ^ _U64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed *= _U64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> _U64(33)
    mixed *= _U64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> _U64(33)
    return mixed


def best_row(sums: Floats, lots: Lots, salt: int) -> int | None:
    """The row to choose, or None if no node is feasible."""
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
    """The chosen row and the next best ones, for people to compare."""
    found = [first]
    rest = sums.copy()
    for _ in range(count - 1):
        rest[found[-1]] = -np.inf
        row = int(rest.argmax())
        if rest[row] == -np.inf:
            break
        found.append(row)
    return found
