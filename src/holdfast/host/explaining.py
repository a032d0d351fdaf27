"""Gathering what an explanation rests on, from the store, this server's memory and its archive.

`host/api/explanations.py` calls it for a request. Everything of the store is read as of one
revision. What agents and components said is what this server heard itself: another one may have
heard more, which is why clients ask all of them.
"""

from __future__ import annotations

import asyncio

from holdfast.explain.answer import Explanation
from holdfast.explain.decisions import decision_of
from holdfast.explain.facts import (
    SIBLINGS_MAX,
    Facts,
    ranges,
    siblings_of,
    siblings_range,
    stored,
)
from holdfast.explain.replica import explain
from holdfast.host import clock
from holdfast.host.api.call import TIMEOUT_S, Services
from holdfast.host.decisions import Decisions
from holdfast.model import keys
from holdfast.model.errors import HoldfastError, Missing, Unavailable
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Heard, HeardOf
from holdfast.model.identity import ADMINS, Identity
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import Record
from holdfast.store.contract import Store

# Of the decisions of a tenant so many cases are looked through, the newest first.
CASES_READ, PAGES_MAX = 64, 8
# Whoever may ask about a replica need not be one who may ask about all nodes: the server does.
_ASKER = Identity("explanations", groups=(ADMINS,))
_WORKS = (Stage.READY, Stage.SERVING)


async def explained(services: Services, namespace: str, name: str) -> Explanation:
    """Why a replica is not further. Raises Missing, and what the store raises."""
    store = services.store
    key = keys.object_key(kind_of_struct(Replica), namespace, name)
    page = await store.range(key, key + "\0", limit=1)
    if not page.records:
        raise Missing(f"replicas {name!r} not found")
    revision, records = page.revision, list(page.records)
    replica: Replica = stored(revision, records).get(key)
    binding = replica.status.binding
    node: Node | None = None
    if binding is not None:
        where = keys.object_key(kind_of_struct(Node), "", binding.node)
        records += await _read(store, (where, where + "\0"), revision)
        node = stored(revision, records).get(where)
    for wanted in ranges(replica, node):
        records += await _read(store, wanted, revision)
    unknown: dict[str, str] = {}
    heard = await _heard(services, unknown)
    siblings = await _siblings(store, replica, revision)
    decision = await _decision(services.decisions, replica, unknown)

    def work() -> Explanation:
        facts = Facts(
            replica,
            stored(revision, records),
            heard.timing if heard is not None else FenceTiming(),
            siblings=siblings,
            heard=(heard,) if heard is not None else (),
            pulses=(services.pulses.shown(),) if services.pulses is not None else (),
            decision=decision,
            unknown=unknown,
        )
        return explain(facts, clock.now())

    # All nodes of a large plane are read for one that waits: others are served meanwhile.
    return await asyncio.to_thread(work)


async def _read(store: Store, wanted: tuple[str, str], revision: int) -> list[Record]:
    """All records of a range as of a revision."""
    place, end = wanted
    found: list[Record] = []
    while True:
        page = await store.range(place, end, at=revision)
        found += page.records
        if page.more_from is None:
            return found
        place = page.more_from


async def _siblings(store: Store, replica: Replica, revision: int) -> tuple[Replica, ...] | None:
    """The replicas of its workload, where they are needed and not too many."""
    status = replica.status
    if status.state is not State.RUNNING or status.stage not in _WORKS:
        return None
    begin, end = siblings_range(replica)
    page = await store.range(begin, end, limit=SIBLINGS_MAX, at=revision)
    if page.more_from is not None:
        return None
    return siblings_of(stored(revision, page.records), replica)


async def _heard(services: Services, unknown: dict[str, str]) -> Heard | None:
    if services.renewals is None:
        unknown["heartbeats"] = "this server listens to no agents"
        return None
    try:
        answer: Heard | Refusal = await services.renewals.ask(_ASKER, HeardOf(), TIMEOUT_S)
    except HoldfastError as error:
        unknown["heartbeats"] = error.message
        return None
    if isinstance(answer, Heard):
        return answer
    unknown["heartbeats"] = answer.message
    return None


async def _decision(
    kept: Decisions | None, replica: Replica, unknown: dict[str, str]
) -> Decision | None:
    """The last decision about a replica that has no place, as far as it is looked for."""
    if replica.status.state is not State.PENDING:
        return None
    if kept is None:
        unknown["decisions"] = "this server keeps none"
        return None
    at: tuple[int, int] | None = None
    try:
        for _ in range(PAGES_MAX):
            cases = await kept.page(replica.namespace, at, CASES_READ)
            for found in cases:
                if replica.metadata.uid in found.case.uids:
                    number = found.case.uids.index(replica.metadata.uid)
                    return decision_of(found.round, found.case, number, found.first + number)
            if len(cases) < CASES_READ:
                break
            last = cases[-1]
            at = last.row, last.first + len(last.case.replicas)
    except Unavailable as error:
        unknown["decisions"] = error.message
    return None
