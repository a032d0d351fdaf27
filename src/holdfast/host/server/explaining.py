"""Collects the evidence for an explanation from the store, this server's memory and its archive.

`host/api/plane/explanations.py` calls it for a request. Everything from the store is read at one
revision. Reports of agents and components are those that this server received; another server may
have received more, so clients ask all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.explain.answer import Explanation
from holdfast.explain.decision_object import decision_of
from holdfast.explain.evidence import (
    SIBLINGS_MAX,
    ReplicaFacts,
    decode_records,
    ranges_to_read,
    siblings_of,
    siblings_range,
)
from holdfast.host.api.call import TIMEOUT_S, ApiServices
from holdfast.host.process import clock
from holdfast.host.server.decision_archive import Decisions
from holdfast.model import keys
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import HoldfastError, Missing, Unavailable
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_plural, kind_of_struct
from holdfast.model.transaction import Record
from holdfast.propose.decision_rounds import DecisionRound
from holdfast.store.contract import Store

# This many cases of a tenant's decisions are searched, the newest first.
CASES_READ, PAGES_MAX = 64, 8
# A caller that may ask about a replica may not be allowed to read all nodes, so the server reads.
_ASKER = Identity("explanations", groups=(ADMINS,))
_WORKS = (Stage.READY, Stage.SERVING)


async def explanation_of(services: ApiServices, namespace: str, name: str) -> Explanation:
    """Explain why a replica is in its state. Raises Missing, and what the store raises."""
    store = services.store
    key = keys.object_key(kind_of_struct(Replica), namespace, name)
    page = await store.range(key, key + "\0", limit=1)
    if not page.records:
        raise Missing(f"replicas {name!r} not found")
    revision, records = page.revision, list(page.records)
    replica: Replica = decode_records(revision, records).get(key)
    binding = replica.status.binding
    node: Node | None = None
    if binding is not None:
        where = keys.object_key(kind_of_struct(Node), "", binding.node)
        records += await _read(store, (where, where + "\0"), revision)
        node = decode_records(revision, records).get(where)
    for wanted in ranges_to_read(replica, node):
        records += await _read(store, wanted, revision)
    unknown: dict[str, str] = {}
    heard = await _heard(services, unknown)
    siblings = await _siblings(store, replica, revision)
    decision = await _decision(services.decisions, replica, unknown)

    def work() -> Explanation:
        # Imported on use: only decisions need the scheduler and its numeric library.
        from holdfast.explain.explain_replica import explain
        from holdfast.host.component.plugins import added_filters, added_scorers
        from holdfast.propose.feasibility.verdict_cache import VerdictCache

        facts = ReplicaFacts(
            replica,
            decode_records(revision, records),
            heard.timing if heard is not None else FenceTiming(),
            siblings=siblings,
            heard=(heard,) if heard is not None else (),
            pulses=(services.pulses.recent_pulses(),) if services.pulses is not None else (),
            decision=decision,
            unknown=unknown,
        )
        verdict_cache = VerdictCache(added_filters(), added_scorers())
        return explain(facts, clock.now(), verdict_cache)

    # For a pending replica this decodes all nodes and replicas, so it runs in a thread.
    return await asyncio.to_thread(work)


async def _read(store: Store, wanted: tuple[str, str], revision: int) -> list[Record]:
    """Return all records of a range at a revision."""
    place, end = wanted
    found: list[Record] = []
    while True:
        page = await store.range(place, end, at=revision)
        found += page.records
        if page.more_from is None:
            return found
        place = page.more_from


async def _siblings(store: Store, replica: Replica, revision: int) -> tuple[Replica, ...] | None:
    """Return the replicas of its workload, if they are needed and not too many."""
    status = replica.status
    if status.state is not State.RUNNING or status.stage not in _WORKS:
        return None
    begin, end = siblings_range(replica)
    page = await store.range(begin, end, limit=SIBLINGS_MAX, at=revision)
    if page.more_from is not None:
        return None
    return siblings_of(decode_records(revision, page.records), replica)


async def _heard(services: ApiServices, unknown: dict[str, str]) -> HeartbeatReport | None:
    if services.renewals is None:
        unknown["heartbeats"] = "this server receives no heartbeats"
        return None
    try:
        answer: HeartbeatReport | Refusal = await services.renewals.ask(
            _ASKER, HeartbeatQuery(), TIMEOUT_S
        )
    except HoldfastError as error:
        unknown["heartbeats"] = error.message
        return None
    if isinstance(answer, HeartbeatReport):
        return answer
    unknown["heartbeats"] = answer.message
    return None


async def _decision(
    kept: Decisions | None, replica: Replica, unknown: dict[str, str]
) -> Decision | None:
    """Return the last decision about a pending replica, within the searched part."""
    if replica.status.state is not State.PENDING:
        return None
    if kept is None:
        unknown["decisions"] = "this server keeps no decisions"
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


# Replays a scheduler's decision from this server's archive and the store's history.
#
# `host/api/plane/decision_routes.py` calls it for an administrator. The objects are read at the
# revisions that the record names. Expired means that the store has compacted them.


async def objects_at(store: Store, plural: str, revision: int) -> list[Any]:
    """Return all objects of a kind at a revision. Raises Expired."""
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


async def earlier_rounds(decisions: Decisions, decided: DecisionRound) -> dict[int, DecisionRound]:
    """Return the archived rounds whose placements this round assumed."""
    found: dict[int, DecisionRound] = {}
    before, _, _ = decided.name.rpartition("-")
    for left in decided.assumed:
        kept = await decisions.round(f"{before}-{left.sequence}")
        if kept is not None:
            found[left.sequence] = kept
    return found


async def replay_round(store: Store, decisions: Decisions, name: str) -> list[Any]:
    """Decide a round again. Return the differences; an empty list means none."""
    # Imported on use: only a replay needs the scheduler and its numeric library.
    from holdfast.explain.replay import decide_again
    from holdfast.host.component.plugins import added_filters, added_scorers

    decided = await decisions.round(name)
    if decided is None:
        raise Missing(f"decisions of round {name!r} are not in this server's archive")
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
