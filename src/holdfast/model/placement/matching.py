"""Bipartite matching: gives several requests what they need from one set of candidates.

`fit.py` calls this for the devices of a node. Serving requests one after another would miss
solutions: a request for any device may take the only one of the model that the next request needs.
So a later request may take over a candidate along an augmenting path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

# Each try narrows one request to one group. Requests that must stay together are a packing problem,
# for which no fast exact algorithm is known. This many tries are exact for two groups and five such
# requests, four groups and three, or eight groups and two.
TRIES_MAX = 100

Given = tuple[tuple[str, ...], ...]


class MatchRequest(msgspec.Struct, frozen=True):
    """Asks for `count` of the candidates, preferred ones first; `together` means of one group."""

    count: int
    candidates: tuple[str, ...]
    together: bool = False


def _pass_on(wishes: Sequence[MatchRequest], holders: dict[str, int], seeker: int) -> bool:
    """Gets one more candidate for `seeker`; other requests may switch to another one."""
    gave: dict[int, tuple[str, int]] = {seeker: ("", seeker)}
    reached = [seeker]
    for wish in reached:
        for name in wishes[wish].candidates:
            holder = holders.get(name)
            if holder is None:
                holders[name] = wish
                while wish != seeker:
                    name, wish = gave[wish]
                    holders[name] = wish
                return True
            if holder not in gave:
                gave[holder] = name, wish
                reached.append(holder)
    return False


def _matched(wishes: Sequence[MatchRequest]) -> Given | None:
    """Different candidates for each request, regardless of groups; None if impossible."""
    holders: dict[str, int] = {}
    for index, wish in enumerate(wishes):
        free = [name for name in wish.candidates if name not in holders][: wish.count]
        holders.update(dict.fromkeys(free, index))
        for _ in range(wish.count - len(free)):
            if not _pass_on(wishes, holders, index):
                return None
    return tuple(
        tuple(name for name in wish.candidates if holders.get(name) == index)
        for index, wish in enumerate(wishes)
    )


def _narrowed(
    wishes: Sequence[MatchRequest], given: Given, groups: Mapping[str, int]
) -> list[Sequence[MatchRequest]] | None:
    """The requests with the first scattered one limited to one group, for each of its groups.

    None if no request is scattered.
    """
    for index, (wish, names) in enumerate(zip(wishes, given, strict=True)):
        if not wish.together or len({groups[name] for name in names}) <= 1:
            continue
        return [
            [
                *wishes[:index],
                MatchRequest(wish.count, tuple(n for n in wish.candidates if groups[n] == group)),
                *wishes[index + 1 :],
            ]
            for group in sorted({groups[name] for name in wish.candidates})
        ]
    return None


def match(wishes: Sequence[MatchRequest], groups: Mapping[str, int]) -> Given | None:
    """The candidates of each request, none of them twice; None if not all can be satisfied.

    `groups` maps each candidate to its group.
    """
    open_: list[Sequence[MatchRequest]] = [wishes]
    for _ in range(TRIES_MAX):
        if not open_:
            return None
        narrow = open_.pop()
        given = _matched(narrow)
        if given is None:
            continue
        narrower = _narrowed(narrow, given, groups)
        if narrower is None:
            return given
        open_.extend(reversed(narrower))
    return None
