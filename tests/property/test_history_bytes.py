"""What the store's history takes: never too little, and what is let go of is enough."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.transaction import Change
from holdfast.observe import history_bytes
from holdfast.observe.history_bytes import CHANGE_BYTES, UNKNOWN_REVISION_BYTES, HistoryBytes

GRAIN = 4_000
# A revision counts from the sum before it: at most the grain, and what went beyond it at once.
ONE_MAX = 2 * UNKNOWN_REVISION_BYTES + 61 * (9_000 + CHANGE_BYTES)
CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9_000), st.booleans()), min_size=1, max_size=60
)


def change(revision: int, size: int) -> Change:
    return Change(revision, "k", b"v" * size if size else None, 0)


class Truth:
    """Every change, one by one."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.revision = 0

    def since(self, revision: int) -> int:
        return sum(size for at, size in self.sizes if at > revision)


def played(changes: list[tuple[int, int, bool]], start: int) -> tuple[HistoryBytes, Truth]:
    counted, truth = HistoryBytes(), Truth()
    counted.skip_to(start)
    truth.revision = start
    for step, size, is_followed in changes:
        truth.revision += step
        if is_followed or not step:
            counted.note(change(truth.revision, size))
            truth.sizes.append((truth.revision, size + 1 + CHANGE_BYTES))
        else:
            counted.skip_to(truth.revision)
            truth.sizes.append((truth.revision, step * UNKNOWN_REVISION_BYTES))
    return counted, truth


@given(changes=CHANGES, start=st.integers(1, 5), sums=st.integers(2, 50))
def test_it_never_says_too_little(
    changes: list[tuple[int, int, bool]], start: int, sums: int
) -> None:
    """Nor, while it keeps all sums, more than a grain and one change too much."""
    with (
        mock.patch.object(history_bytes, "GRAIN_BYTES", GRAIN),
        mock.patch.object(history_bytes, "SUMS_MAX", sums),
    ):
        counted, truth = played(changes, start)
    for revision in range(start, truth.revision + 2):
        exact = truth.since(revision)
        assert counted.since(revision) >= exact or revision >= truth.revision
        if sums == 50 and revision < truth.revision:
            assert counted.since(revision) <= exact + GRAIN + ONE_MAX
    assert counted.since(0) >= truth.since(0)


@given(changes=CHANGES, start=st.integers(1, 5), size=st.integers(0, 100_000))
def test_what_lies_after_the_revision_that_is_kept_is_bounded(
    changes: list[tuple[int, int, bool]], start: int, size: int
) -> None:
    with mock.patch.object(history_bytes, "GRAIN_BYTES", GRAIN):
        counted, truth = played(changes, start)
    kept_from = counted.revision_before(size)
    assert counted.since(kept_from) <= size
    assert truth.since(kept_from) <= size


def test_a_value_that_is_not_counted_would_be_noticed() -> None:
    """The planted bug: revisions are counted, and not what they hold."""

    def careless(self: HistoryBytes, one: Change) -> None:
        self._total += CHANGE_BYTES
        self.revision = one.revision

    # Both sums are too small; the first that is found is enough, and it is no group of errors.
    search = settings(report_multiple_bugs=False)(test_it_never_says_too_little)
    with (
        mock.patch.object(HistoryBytes, "note", careless),
        pytest.raises(AssertionError),
    ):
        search()
