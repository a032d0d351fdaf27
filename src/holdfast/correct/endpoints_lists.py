"""Which list each address is in, where a workload has more of them than one list holds.

`endpoints.py` calls this for every look. Whoever is in a list stays in it, so that one who comes or
goes changes one list of a thousand addresses and not all behind it; newcomers take the first place
that is free. What is asked for again on the same picture comes out the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.model.kinds.endpoints import Endpoint, Endpoints
from holdfast.model.validation.records import ENDPOINTS_MAX


def shared_out(
    known: Mapping[int, Endpoints], entries: Sequence[Endpoint]
) -> dict[int, tuple[Endpoint, ...]]:
    """The addresses of each list by its number, in the order in which they were given.

    Lists that are there come out, too, if need be empty.
    """
    numbers = sorted(known)
    if len(entries) <= ENDPOINTS_MAX and numbers in ([], [0]):
        return {0: tuple(entries)} if entries or numbers else {}
    homes: dict[str, int] = {}
    for number in numbers:
        for entry in known[number].endpoints:
            homes.setdefault(entry.replica, number)
    lists: dict[int, list[Endpoint]] = {number: [] for number in numbers}
    taken = dict.fromkeys(numbers, 0)
    for entry in entries:
        if entry.replica in homes:
            taken[homes[entry.replica]] += 1
    free = 0
    for entry in entries:
        if entry.replica not in homes:
            while taken.get(free, 0) >= ENDPOINTS_MAX:
                free += 1
            taken[free] = taken.get(free, 0) + 1
            homes[entry.replica] = free
        lists.setdefault(homes[entry.replica], []).append(entry)
    return {number: tuple(lists[number]) for number in sorted(lists)}
