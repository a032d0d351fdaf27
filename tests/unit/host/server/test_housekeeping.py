"""Which records are removed when, and that the authority agrees."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.host.server.housekeeping import (
    FORGET_AT_ONCE,
    LATE_MS,
    SWEEP_ROUNDS,
    ExpiredRecords,
    tidy_for_ever,
)
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import SERVERS_MAX, server_scope
from holdfast.model.requests import (
    AcquireLease,
    Create,
    ForgetOperations,
    ReleaseLease,
    Remove,
    RenewLease,
    RetireLease,
    Term,
)
from holdfast.model.time import Instant
from holdfast.store.memory import MemoryStore
from tests.plane import ADMIN, NODES, SCHEDULER, START_WALL_MS, Plane, accepted

SERVER = who.server("s1")
DAY_MS, MINUTE_MS = 24 * 3_600_000, 60_000
KEPT_MS = 600_000


def deleted(plane: Plane, count: int) -> None:
    """Deletes this many objects, each of which leaves an operation behind."""
    plane.tenant()
    for at in range(count):
        metadata = ObjectMeta(name=f"s-{at:03}", namespace="acme")
        accepted(plane.ask(ADMIN, Create(Secret(metadata))))
        gone = Remove("secrets", "acme", metadata.name, operation=f"gone-{at}")
        accepted(plane.ask(ADMIN, gone))


def records(plane: Plane, prefix: str) -> Any:
    return plane.store.range(prefix, keys.after_prefix(prefix)).records


def test_operations_are_forgotten_after_their_time_a_few_at_once() -> None:
    """What must still be remembered stays."""
    plane = Plane()
    deleted(plane, FORGET_AT_ONCE + 5)
    plane.elapsed_ms += KEPT_MS
    deleted_late = Remove("tenants", "", "acme", operation="late")
    accepted(plane.ask(ADMIN, deleted_late))
    tidying, wall_ms = ExpiredRecords(), START_WALL_MS + plane.elapsed_ms
    there = records(plane, keys.OPERATIONS)
    assert tidying.operations(there, wall_ms) == []
    plane.elapsed_ms += LATE_MS + 1
    asked = tidying.operations(there, START_WALL_MS + plane.elapsed_ms)
    assert [len(it.operations) for it in asked] == [FORGET_AT_ONCE, 5]
    for request in asked:
        accepted(plane.ask(SERVER, request))
    assert [it.key for it in records(plane, keys.OPERATIONS)] == ["operations/admin/late"]


def test_all_operations_are_looked_through_in_few_rounds_however_many_there_are() -> None:
    """With a fixed number in each round they would pile up without bound. [INV3]"""
    tidying = ExpiredRecords()
    pages = 60
    for _ in range(2):
        for number in range(1, pages):
            tidying.swept(f"operations/{number}")
        tidying.swept(None)
        assert pages / tidying.pages_per_round <= SWEEP_ROUNDS
    tidying.swept(None)
    assert tidying.pages_per_round == 1


def test_leases_are_retired_once_they_stood_still_for_a_day_as_far_as_we_saw() -> None:
    """Our own clock decides first; the authority's date comes in addition. [I4]"""
    plane, tidying = Plane(), ExpiredRecords()
    term = plane.term(SCHEDULER)
    alive = plane.term(NODES)
    prefix = "objects/leases/"
    start_ms = 5_000_000
    assert tidying.leases(records(plane, prefix), start_ms) == []
    assert tidying.leases(records(plane, prefix), start_ms + DAY_MS) == []
    plane.elapsed_ms += DAY_MS + LATE_MS
    accepted(plane.ask(NODES, RenewLease(alive)))
    asked = tidying.leases(records(plane, prefix), start_ms + DAY_MS + LATE_MS)
    assert asked == [RetireLease(term.scope, term.epoch, 0)]
    accepted(plane.ask(SERVER, asked[0]))
    assert len(records(plane, prefix)) == 1
    assert ExpiredRecords().leases(records(plane, prefix), start_ms + 10 * DAY_MS) == []


def _server_leases(plane: Plane, *names: str) -> dict[str, Term]:
    found = {}
    for name in names:
        server = who.server(name)
        lease = accepted(plane.ask(server, AcquireLease(server_scope(name), 15_000)))
        found[name] = Term(lease.spec.scope, lease.spec.epoch)
    return found


def test_a_server_that_is_gone_is_not_forgotten_by_itself_and_one_that_stopped_is() -> None:
    """Status names it until an operator removes it."""
    plane, tidying = Plane(), ExpiredRecords()
    terms = _server_leases(plane, "gone", "stopped")
    accepted(plane.ask(who.server("stopped"), ReleaseLease(terms["stopped"])))
    leases = records(plane, "objects/leases/")
    assert tidying.leases(leases, 1) == []
    asked = tidying.leases(leases, 400 * DAY_MS)
    assert [it.scope for it in asked] == [server_scope("stopped")]


def test_where_there_are_too_many_servers_those_that_are_gone_for_longest_make_room() -> None:
    """No more of them than necessary."""
    plane, tidying = Plane(), ExpiredRecords()
    _server_leases(plane, *(f"old{number}" for number in range(20)))
    tidying.leases(records(plane, "objects/leases/"), 1)
    _server_leases(plane, *(f"new{number}" for number in range(SERVERS_MAX // 2 - 20)))
    leases = records(plane, "objects/leases/")
    assert tidying.leases(leases, MINUTE_MS) == []
    assert tidying.leases(leases, 20 * MINUTE_MS) == []
    _server_leases(plane, "one", "two")
    leases = records(plane, "objects/leases/")
    assert tidying.leases(leases, 5 * MINUTE_MS) == []
    asked = tidying.leases(leases, 20 * MINUTE_MS)
    assert len(asked) == 2
    assert all(it.scope.startswith(server_scope("old")) for it in asked)


def test_the_servers_own_lease_is_left_alone() -> None:
    plane, tidying = Plane(), ExpiredRecords()
    plane.term(SERVER, "authority")
    for ms in (1, 10 * DAY_MS):
        assert tidying.leases(records(plane, "objects/leases/"), ms) == []


def test_only_the_server_whose_task_it_is_asks() -> None:
    """Page after page, and again from the first."""
    plane = Plane()
    deleted(plane, 3)

    later = Instant(0, START_WALL_MS + KEPT_MS + LATE_MS + 1)

    async def story(is_ours: bool) -> list[Any]:
        asked: list[Any] = []

        async def ask(request: Any) -> Any:
            asked.append(request)

        store = MemoryStore(plane.store)
        work = tidy_for_ever(store, lambda: is_ours, ask, every_s=0, now=lambda: later)
        task = asyncio.create_task(work)
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        return asked

    assert asyncio.run(story(False)) == []
    first, second, *_ = asyncio.run(story(True))
    assert first == second == ForgetOperations(tuple(f"admin/gone-{at}" for at in range(3)))
