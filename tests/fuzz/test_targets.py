"""Each reader of what others wrote, for a moment; `make fuzz` does the same for minutes."""

from __future__ import annotations

import pytest

from tests.fuzz.mutating import change
from tests.fuzz.running import Tally, explore
from tests.fuzz.targets import Target, all_targets

SEED = 20_261_116
INPUTS, MUTATED = 40, 256


@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)
def test_nothing_but_a_declared_refusal_comes_of_any_input(target: Target) -> None:
    """And it costs little, and what is read stays what it is when it is read again."""
    tally = Tally()
    explore(target, INPUTS, SEED, tally)
    change(target, 30.0, SEED, tally, inputs_max=MUTATED)
    assert tally.inputs >= (MUTATED if target.seeds else INPUTS // 2)
