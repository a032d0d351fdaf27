"""Planted bugs of all worlds: each still finds the text that it replaces.

Most of them are searched for only in the long run. A change of the product's source that one of
them no longer fits must show at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sim.mutants import Mutant
from holdfast.sim.run import find

_HERE = Path(__file__).parent
# Far fewer than there are; none at all would mean that they are looked for in the wrong place.
_LEAST = 200


def _planted_bugs() -> Iterator[Mutant]:
    """All mutants in the tuples of the modules beside the tests."""
    for path in sorted(_HERE.rglob("*.py")):
        if not path.name.startswith("test_"):
            name = ".".join(path.relative_to(_HERE.parents[1]).with_suffix("").parts)
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, tuple):
                    yield from (it for it in value if isinstance(it, Mutant))


_ALL = {(it.scenario, it.name): it for it in _planted_bugs()}


def test_the_planted_bugs_of_all_worlds_are_looked_at() -> None:
    """[N6]"""
    assert len(_ALL) >= _LEAST


@pytest.mark.parametrize("mutant", _ALL.values(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_still_fits_the_product(mutant: Mutant) -> None:
    """Planting fails when the text to replace does not occur exactly once. [N6]"""
    find(mutant.scenario)
    with mutant.planted():
        pass
