"""Deciding again what a scheduler decided, from what this server kept and what the store remembers.

`host/api/decisions.py` calls it for an administrator. The objects are read as of the revisions that
the record names, which the store can do for as long as they are not compacted: Expired says that
they are.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.host.decisions import Decisions
from holdfast.model import keys
from holdfast.model.errors import Missing
from holdfast.model.registry import kind_of_plural
from holdfast.model.wire import readable
from holdfast.propose.rounds import Round
from holdfast.store.contract import Store


async def objects_at(store: Store, plural: str, revision: int) -> list[Any]:
    """All objects of a kind as of a revision. Raises Expired."""
    kind = kind_of_plural(plural)
    place = keys.kind_prefix(kind)
    end = keys.after_prefix(place)
    found: list[Any] = []
    while True:
        page = await store.range(place, end, at=revision)
        seen = (readable(kind.struct, record.value) for record in page.records)
        found += [obj for obj in seen if obj is not None]
        if page.more_from is None:
            return found
        place = page.more_from


async def earlier_rounds(decisions: Decisions, decided: Round) -> dict[int, Round]:
    """The rounds whose placements it assumed, as far as they are kept."""
    found: dict[int, Round] = {}
    before, _, _ = decided.name.rpartition("-")
    for left in decided.assumed:
        kept = await decisions.round(f"{before}-{left.sequence}")
        if kept is not None:
            found[left.sequence] = kept
    return found


async def decided_again(store: Store, decisions: Decisions, name: str) -> list[Any]:
    """What comes out otherwise now of a round; nothing, if all is as it should be."""
    # Only whoever asks this needs the scheduler's functions, and the numbers that they need.
    from holdfast.explain.again import decide_again
    from holdfast.host.plugins import added_filters, added_scorers

    decided = await decisions.round(name)
    if decided is None:
        raise Missing(f"decisions of round {name!r} are not kept here")
    earlier = await earlier_rounds(decisions, decided)
    objects = {
        plural: await objects_at(store, plural, revision)
        for plural, revision in decided.seen.items()
        if revision
    }
    return await asyncio.to_thread(
        decide_again,
        decided,
        objects,
        earlier,
        filters=added_filters(),
        scorers=added_scorers(),
    )
