"""Finding where the history of a store begins."""

from __future__ import annotations

import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.observe.history_start import PROBES_MAX, HistorySearch

LAST = 2**62


@pytest.mark.parametrize("oldest", [2, 3, 500, 999, 1_000])
def test_the_oldest_revision_that_is_there_is_found_wherever_it_is(oldest: int) -> None:
    search = HistorySearch(1, 1, 1_000)
    while not search.is_over:
        search.narrow(is_gone=search.probe() < oldest)
    assert (search.gone, search.there) == (oldest - 1, oldest)


def test_the_bound_on_probes_suffices_for_any_history() -> None:
    search = HistorySearch(0, 0, LAST)
    while not search.is_over:
        search.probe()
        search.narrow(is_gone=True)
    assert search.there == LAST
    assert search.tries <= PROBES_MAX


def test_a_store_whose_answers_lead_nowhere_is_not_asked_for_ever() -> None:
    search = HistorySearch(0, 0, LAST)
    for _ in range(PROBES_MAX):
        search.probe()
    with pytest.raises(InvariantBroken):
        search.probe()
