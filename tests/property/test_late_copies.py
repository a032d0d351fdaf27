"""No request takes effect twice, however late its copies come and whatever happened in between.

`late_copies` says how copies arrive and are decided, `late_copy_cases` which requests there are and
what others do meanwhile. At most one copy may change the store, and once one was accepted, none:
the others are refused, or answered as what was done before.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, permutations

import pytest

from holdfast.model.requests import REQUESTS
from tests.property.late_copies import (
    COPIES,
    Begun,
    Case,
    First,
    Walk,
    begin,
    few_firsts,
    firsts,
)
from tests.property.late_copy_cases import CASES
from tests.scale import scaled

# Beside the order in which a case names its steps, this many others are walked.
OTHER_ORDERS = scaled(1, 23)
# Of a case with many steps, the others are drawn from this many.
DRAWN_FROM = 5_000
IS_THOROUGH = scaled(False, True)


def walks(begun: Begun) -> Iterator[Walk]:
    """All walks of a case: of its steps as they are named, and in some of their other orders."""
    steps = begun.case.steps
    named = firsts(len(steps)) if IS_THOROUGH else few_firsts(len(steps))
    yield from (Walk(begun, steps, first, is_thorough=IS_THOROUGH) for first in named)
    others = list(islice(permutations(steps), 1, DRAWN_FROM))
    random.Random(begun.case.name).shuffle(others)
    for order in others[:OTHER_ORDERS]:
        # A copy at the very beginning is followed by others after each step.
        chosen = firsts(len(steps)) if IS_THOROUGH else [First("alone", 0, 0)]
        yield from (Walk(begun, order, first, is_thorough=IS_THOROUGH) for first in chosen)


@pytest.mark.parametrize("case", CASES, ids=lambda it: it.name)
def test_of_all_copies_of_a_request_one_takes_effect(case: Case) -> None:
    """Also when several are decided in one group, and by servers that were paused for long before
    they wrote. [E5, INV2, INV3, INV7]"""
    begun, effects, accepted = begin(case), 0, 0
    assert type(begun.request) is case.request
    for walk in walks(begun):
        walk.play()
        # Otherwise a batch would be the same as one copy after another.
        assert walk.first.way != "batch" or walk.together == COPIES
        effects, accepted = effects + walk.effects, accepted + walk.is_accepted
    assert accepted, "a case in which nothing happens says nothing"
    assert effects or case.finds_it_so


def test_every_type_of_request_has_a_case() -> None:
    """A new one must say what keeps it from taking effect twice. [INV3]"""
    assert {it.request for it in CASES} == {*REQUESTS}
