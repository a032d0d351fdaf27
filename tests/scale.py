"""How much of a search a test makes: little in every run, all of it in `make test-long`.

`make test` must end within a quarter of an hour on a slow machine, so campaigns play fewer seeds
there, properties try fewer examples, and of long lists of planted bugs a part is looked for. Each
stays long enough to fail. HOLDFAST_LONG=1, as `make full-long` sets it, makes all of it.

A test that is only worth its time in the long run is marked `long`; tests/conftest.py leaves it out
of others. How to choose: docs/checklists/adding-a-test.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

VARIABLE = "HOLDFAST_LONG"
IS_LONG = bool(os.environ.get(VARIABLE))
# Where a property names how many examples it tries, the default run tries one in this many of them.
EXAMPLES_DIVISOR = 4


def scaled(here: T, long: T) -> T:
    """The one for the default run, or the one for the long run."""
    return long if IS_LONG else here


def examples(count: int) -> int:
    """How many of these examples are tried."""
    return scaled(max(1, count // EXAMPLES_DIVISOR), count)


def some_of(things: Iterable[T], every: int) -> list[Any]:
    """Parameters of a test: one in this many is tried in every run, the others in the long one."""
    return [
        pytest.param(thing, marks=pytest.mark.long) if number % every else thing
        for number, thing in enumerate(things)
    ]
