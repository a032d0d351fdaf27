"""Streams of random numbers, one per purpose.

Each stream is derived from the run's seed and the name of its purpose. A new purpose, or one more
draw in an old one, does not shift what the others draw: a seed keeps its meaning while the
simulator grows, and a plan from which one fault is removed stays close to the run it came from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def stream(seed: int, purpose: str) -> Random:
    """The stream for this purpose under this seed.

    Python's own `hash` differs between processes, hence a digest.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest()
    return Random(int.from_bytes(digest, "big"))


# Only `Random.random` is used below it: its sequence is fixed by its documentation for all versions
# of Python, while that of `randrange`, `choice` and `shuffle` is not.


def between(rng: Random, low: int, high: int) -> int:
    """An integer in [low, high]."""
    return low + int(rng.random() * (high - low + 1))


def pick(rng: Random, options: Sequence[T]) -> T:
    """One of the options, which must not be empty."""
    return options[int(rng.random() * len(options))]


def waiting_time(rng: Random, mean: float) -> float:
    """An exponentially distributed time, so that faults come independently of each other."""
    return -math.log(1.0 - rng.random()) * mean
