"""Finding where the history of a store begins."""

from __future__ import annotations

import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.observe.history_start import PROBES_MAX, Survey

LAST = 2**62


@pytest.mark.parametrize("oldest", [2, 3, 500, 999, 1_000])
def test_the_oldest_revision_that_is_there_is_found_wherever_it_is(oldest: int) -> None:
    """[B5]"""
    survey = Survey(1, 1, 1_000)
    while not survey.is_over:
        survey.heard(is_gone=survey.probe() < oldest)
    assert (survey.gone, survey.there) == (oldest - 1, oldest)


def test_so_many_questions_are_enough_for_any_history() -> None:
    survey = Survey(0, 0, LAST)
    while not survey.is_over:
        survey.probe()
        survey.heard(is_gone=True)
    assert survey.there == LAST
    assert survey.tries <= PROBES_MAX


def test_a_store_whose_answers_lead_nowhere_is_not_asked_for_ever() -> None:
    survey = Survey(0, 0, LAST)
    for _ in range(PROBES_MAX):
        survey.probe()
    with pytest.raises(InvariantBroken):
        survey.probe()
