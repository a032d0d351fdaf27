"""All that reads what others wrote, each with what it is fed and what must hold of its answer.

A check returns a word for what became of its input, so that a run can say what it covered; anything
but a declared refusal comes out of it as an exception. `tests/fuzz/test_targets.py` runs each for a
moment, `make fuzz` for minutes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast.model.errors import HoldfastError


def _as_it_is(data: Any, rng: random.Random) -> Any:
    return data


class Target(NamedTuple):
    """One reader.

    inputs: what hypothesis feeds it. steps_max: what one of them may cost, in steps of a
    bare loop (tests/yardstick.py).
    seeds: texts or bytes that it reads, to be changed at random; `of` makes an input of one.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], str]
    steps_max: int = 4_000_000
    seeds: tuple[Any, ...] = ()
    of: Callable[[Any, random.Random], Any] = _as_it_is


def refused(error: HoldfastError, hides: str = "") -> str:
    """The word for a declared refusal, which must be short, safe to print, and hide a secret."""
    assert len(hides) < 40 or hides not in error.message
    assert error.message.isprintable()
    assert 0 < len(error.message) < 20_000
    return "refused"


def all_targets() -> tuple[Target, ...]:
    """Every one there is, by the files that hold them."""
    from tests.fuzz import (
        deciding,
        documents,
        framing,
        patches,
        places,
        requests,
        texts,
        tokens,
    )

    rooms = (documents, texts, tokens, patches, deciding, places, framing, requests)
    return tuple(target for room in rooms for target in room.TARGETS)
