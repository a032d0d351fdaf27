"""Sets of whole numbers, written as people and Kubernetes write them: "0-3,7".

A job's status lists its complete indexes in this form. controller:workload adds to the set and
controller:status counts it; the commit refuses to start an index of the set again. Indexes start
from the lowest, so the text has about as many parts as replicas run at once, however many have
ended.
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
    """A set of indexes as sorted, disjoint spans: the first and last index of each."""

    spans: tuple[tuple[int, int], ...] = ()

    def span_of(self, index: int) -> int:
        """The position of the span that holds an index; -1 for none."""
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
        """The union with these indexes."""
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
        """The indexes below `end` that are not in the set, in ascending order."""
        at = 0
        for first, last in self.spans:
            yield from range(at, min(first, end))
            at = last + 1
        yield from range(at, end)


def is_index(text: str) -> bool:
    """Whether a text is a single index."""
    found = _SPAN.fullmatch(text)
    return found is not None and found[2] is None and int(text) <= INDEX_MAX


def is_within(few: str, many: str) -> bool:
    """Whether `many` includes all indexes of `few`; False if either cannot be parsed."""
    try:
        have, more = parse(few), parse(many)
    except Invalid:
        return False
    # The spans are disjoint, so a span lies in one span of the other set or is not included.
    return all(more.span_of(first) == more.span_of(last) >= 0 for first, last in have.spans)


# Creating thousands of replicas of one job parses the same few texts.
@lru_cache(maxsize=256)
def parse(text: str) -> Indexes:
    """Parses a set. Raises Invalid."""
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
