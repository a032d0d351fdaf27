"""Many inputs quickly: good ones, changed at random.

Hypothesis chooses with care and makes failures small, a few hundred inputs a second. Most mistakes
of a reader lie close to what it takes, and there quantity finds them: here each input is one that
was read before, with something put in, left out, doubled or repeated. One with an outcome that is
rare for its reader is changed further.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tests.fuzz.nasty import TEXTS
from tests.fuzz.running import Tally, tried
from tests.fuzz.targets import Target

LENGTH_MAX = 20_000
POOL_MAX = 400
# The clock is read after this many inputs.
AT_ONCE = 64
# An outcome rarer than one in this many is worth more inputs near it.
RARE = 4
_PIECES: dict[type, tuple[Any, ...]] = {
    str: (*TEXTS, "a" * 70, "0" * 20, "\ud800"),
    bytes: (
        *(text.encode() for text in TEXTS),
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\u0000",
        b"[" * 40,
        b'{"a":' * 40,
        b"null",
        b"1e400",
        b"9007199254740993",
        b"&a ",
        b"*a",
        b"!!x ",
    ),
}


class Failed(AssertionError):
    """Says by which input, so that it can be tried again."""


def mutated(rng: random.Random, seeds: tuple[Any, ...], pool: list[Any]) -> Any:
    """One of the seeds or of the pool, changed in one to four places."""
    data = rng.choice(pool if pool and rng.randrange(2) else seeds)
    pieces = _PIECES[type(data)]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        start = rng.randint(0, len(data))
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 4, 16, 200)))
        match rng.randrange(6):
            case 0 | 1:
                middle = rng.choice(pieces)
            case 2:
                middle = data[:0]
            case 3:
                middle = data[start:end] * 2
            case 4:
                middle = data[start : start + 3] * rng.choice((8, 60, 900))
            case _:
                other = rng.choice(seeds)
                at = rng.randint(0, len(other))
                middle = other[at : at + rng.choice((1, 4, 30))]
        data = data[:start] + middle + data[end:]
    return data[:LENGTH_MAX]


def change(
    target: Target, seconds: float, seed: int, tally: Tally, inputs_max: int = 1 << 62
) -> None:
    """Change the target's seeds for so long. Raises Failed at the first input that breaks it."""
    rng = random.Random(seed)
    pool: list[Any] = []
    until, last = time.monotonic() + seconds, tally.inputs + inputs_max
    while target.seeds and tally.inputs < last and time.monotonic() < until:
        for _ in range(AT_ONCE):
            data = mutated(rng, target.seeds, pool)
            example = target.of(data, rng)
            try:
                outcome = tried(target, example, tally)
            except Exception as error:
                raise Failed(f"by {example!r:.3000}") from error
            if tally.outcomes[outcome] * RARE <= tally.inputs:
                if len(pool) < POOL_MAX:
                    pool.append(data)
                else:
                    pool[rng.randrange(POOL_MAX)] = data
