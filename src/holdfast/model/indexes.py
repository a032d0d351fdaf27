"""Sets of whole numbers, written as people and Kubernetes write them: "0-3,7".

A job's status says by this which of its indexes are complete. controller:workload adds to it and
controller:status counts it; the commit refuses, by the same set, to start an index again. Indexes
are started from the lowest on, so that the text has about as many parts as replicas run at once,
however many have ended.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from holdfast.model.errors import Invalid

INDEX_MAX = 1_000_000
RULE = "must be numbers and ranges in ascending order, such as 0-3,7"
_SPAN = re.compile(r"(0|[1-9][0-9]{0,6})(?:-([1-9][0-9]{0,6}))?", re.ASCII)


class Indexes(msgspec.Struct, frozen=True):
    """A set of indexes: its stretches, first and last of each, in order and apart."""

    spans: tuple[tuple[int, int], ...] = ()

    def span_of(self, index: int) -> int:
        """In which of its stretches an index is; -1 for none."""
        at = bisect_right(self.spans, (index, INDEX_MAX + 1)) - 1
        return at if at >= 0 and index <= self.spans[at][1] else -1

    def __contains__(self, index: int) -> bool:
        return self.span_of(index) >= 0

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans:
            yield from range(first, last + 1)

    def __str__(self) -> str:
        return ",".join(
            str(first) if first == last else f"{first}-{last}" for first, last in self.spans
        )

    def plus(self, more: Iterable[int]) -> Indexes:
        """The set with these as well."""
        ones = [(index, index) for index in more]
        if not ones:
            return self
        joined: list[tuple[int, int]] = []
        for first, last in sorted((*self.spans, *ones)):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        return Indexes(tuple(joined))

    def missing(self, end: int) -> Iterator[int]:
        """What it lacks below an end, from the lowest on."""
        at = 0
        for first, last in self.spans:
            yield from range(at, min(first, end))
            at = last + 1
        yield from range(at, end)


def is_index(text: str) -> bool:
    """Whether a text is one index, as it is written here."""
    found = _SPAN.fullmatch(text)
    return found is not None and found[2] is None and int(text) <= INDEX_MAX


def is_within(few: str, many: str) -> bool:
    """Whether all that the one text states is stated by the other; not if that cannot be read."""
    try:
        have, more = parse(few), parse(many)
    except Invalid:
        return False
    # The stretches are apart, so each lies in one stretch of the other or is not within it.
    return all(more.span_of(first) == more.span_of(last) >= 0 for first, last in have.spans)


# Thousands of births of one job ask for the same few texts.
@lru_cache(maxsize=256)
def parse(text: str) -> Indexes:
    """The set that a text states. Raises Invalid."""
    spans: list[tuple[int, int]] = []
    for part in text.split(",") if text else ():
        found = _SPAN.fullmatch(part)
        if found is None:
            raise Invalid(RULE)
        first, last = int(found[1]), int(found[2] or found[1])
        apart = not spans or first > spans[-1][1] + 1
        if not apart or last > INDEX_MAX or (found[2] is not None and last <= first):
            raise Invalid(RULE)
        spans.append((first, last))
    return Indexes(tuple(spans))
