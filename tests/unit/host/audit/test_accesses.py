"""Accesses in the audit: recorded before they are granted, once for equal ones, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from holdfast.commit.flow.overload import Overloaded
from holdfast.host.audit import accesses as module
from holdfast.host.audit.accesses import (
    ASSURED_PER_USER,
    EXEC,
    FAILED,
    FAILED_SOURCES_MAX,
    OTHERS,
    PER_TENANT_MAX,
    PER_USER_MAX,
    READ,
    SHORT_PER_USER_MAX,
    WAITING_MAX,
    WINDOW_MS,
    AccessRecorder,
)
from holdfast.model import keys
from holdfast.model.audit.audit_records import Mutation, Stamp
from holdfast.model.errors import Unavailable
from holdfast.model.transaction import Change, Outcome, Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S


class Failing(MemoryStore):
    """A store that can be unavailable."""

    away = False

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        if self.away:
            raise Unavailable("the store is away")
        return await super().txn(transaction, token=token, timeout_s=timeout_s)


class Desk:
    def __init__(self) -> None:
        self.store, self.now_ms, self.closed = Failing(), 0, ""
        self.accesses = AccessRecorder(
            self.store, lambda: self.closed, lambda: self.now_ms, lambda: 1_000 + self.now_ms
        )

    def told(self) -> list[Mutation]:
        """Return all stamps in the store's history."""
        changes: tuple[Change, ...] = self.store.keyspace.changes("", after=0).changes
        stamps = [
            msgspec.json.decode(it.value, type=Stamp)
            for it in changes
            if it.key == keys.audit_stamp() and it.value is not None
        ]
        return [said for stamp in stamps for said in stamp.mutations]

    async def over(self) -> list[Mutation]:
        """Return all records once the window is over."""
        self.now_ms += WINDOW_MS
        self.accesses.end_window()
        await self.accesses.flush()
        return self.told()


def played(play: Callable[[Desk], Awaitable[None]]) -> None:
    async def whole() -> None:
        desk = Desk()
        running = asyncio.create_task(desk.accesses.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await play(desk)
        finally:
            running.cancel()
            await desk.store.close()

    asyncio.run(whole())


def read(name: str = "db", who: str = "ann", namespace: str = "risk") -> Mutation:
    return Mutation(
        who=who,
        verb=READ,
        kind="secrets",
        namespace=namespace,
        name=name,
        source="10.0.0.9",
        credential="certificate ff",
    )


def test_an_access_is_in_the_store_before_it_is_given() -> None:
    async def play(desk: Desk) -> None:
        await desk.accesses.record(read())
        assert desk.told() == [read()]

    played(play)


def test_nothing_is_given_that_cannot_be_written_down() -> None:
    async def play(desk: Desk) -> None:
        desk.store.away = True
        with pytest.raises(Unavailable, match="the store is away"):
            await desk.accesses.record(read())
        desk.closed = "changes are refused: the disk is full"
        with pytest.raises(Unavailable, match="the disk is full"):
            await desk.accesses.record(read("other"))

    played(play)


def test_what_was_noted_while_the_store_was_away_is_written_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)

    async def play(desk: Desk) -> None:
        desk.store.away = True
        desk.accesses.note(read())
        with pytest.raises(Unavailable):
            await desk.accesses.record(read("other"))
        desk.store.away = False
        await desk.accesses.flush()
        assert desk.told() == [read()]

    played(play)


def test_what_is_alike_is_one_record_and_a_count() -> None:
    async def play(desk: Desk) -> None:
        for _ in range(1_000):
            await desk.accesses.record(read())
        assert desk.told() == [read()]
        assert await desk.over() == [read(), msgspec.structs.replace(read(), count=999)]
        await desk.accesses.record(read())
        assert len(desk.told()) == 3

    played(play)


def test_what_failed_once_is_not_given_the_second_time_without_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)

    async def play(desk: Desk) -> None:
        desk.store.away = True
        for _ in range(3):
            with pytest.raises(Unavailable, match="the store is away"):
                await desk.accesses.record(read())
        desk.store.away = False
        await desk.accesses.record(read())
        assert desk.told() == [read()]

    played(play)


def test_a_concurrent_request_for_the_same_waits_for_the_same_record() -> None:
    async def play(desk: Desk) -> None:
        desk.store.away = True
        both = (desk.accesses.record(read()), desk.accesses.record(read()))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert [type(it) for it in outcomes] == [Unavailable, Unavailable]

    played(play)


def exec_of(name: str, who: str = "mallory") -> Mutation:
    return msgspec.structs.replace(read(name, who), verb=EXEC, kind="replicas", reason="sh")


async def flooded(desk: Desk, users: int, each: int) -> int:
    """Let users read names, one after another. Return how many reads were refused."""
    refused = 0
    for number in range(users * each):
        try:
            await desk.accesses.record(read(f"s{number}", who=f"bot-{number % users}"))
        except Overloaded:
            refused += 1
    return refused


def test_a_command_is_reported_in_full_whatever_its_user_and_its_tenant_read_before() -> None:
    """An insider who reads much cannot run a command that is recorded without its details."""

    async def play(desk: Desk) -> None:
        await flooded(desk, users=1, each=2 * PER_USER_MAX)
        await desk.accesses.record(exec_of("payments-0", who="bot-0"))
        assert exec_of("payments-0", who="bot-0") in desk.told()
        await flooded(desk, users=20, each=60)
        await desk.accesses.record(exec_of("payments-1"))
        assert exec_of("payments-1") in desk.told()

    played(play)


def test_a_user_beyond_its_share_is_refused_and_never_recorded_in_less_detail() -> None:
    async def play(desk: Desk) -> None:
        assert await flooded(desk, users=1, each=PER_USER_MAX + 50) == 50
        with pytest.raises(Overloaded, match=r"Read by bot-0 in risk .* retry after 61 s") as no:
            await desk.accesses.record(read("target", who="bot-0"))
        assert no.value.retry_after_s == 61
        # What it was given before, others in the tenant, and the next minute are not concerned.
        await desk.accesses.record(read("s0", who="bot-0"))
        await desk.accesses.record(read("target"))
        told = await desk.over()
        assert all(it.name and it.credential and it.source for it in told)
        await desk.accesses.record(read("target", who="bot-0"))

    played(play)


def test_one_tenant_cannot_fill_the_journal_by_reading() -> None:
    """With invented names and users the records are bounded, all granted accesses are recorded, its
    own users still have a few each, and other tenants are not affected.
    """

    async def play(desk: Desk) -> None:
        users, each = 100, 50
        refused = await flooded(desk, users, each)
        await desk.accesses.record(read(who="ann"))
        await desk.accesses.record(read(namespace="other", who="bot-0"))
        told = await desk.over()
        own = [it for it in told if it.namespace == "risk"]
        assert len(own) <= PER_TENANT_MAX + ASSURED_PER_USER * (users + 1)
        assert len(own) == users * each - refused + 1
        assert read(namespace="other", who="bot-0") in told

    played(play)


def test_what_cannot_be_refused_is_bounded_and_keeps_user_address_and_credential() -> None:
    """A node that reads without end."""

    async def play(desk: Desk) -> None:
        asked = 5 * PER_USER_MAX
        node = "system:node:n1"
        for number in range(asked):
            desk.accesses.note(read(f"s{number}", who=node))
        told = await desk.over()
        assert sum(it.count or 1 for it in told) == asked
        assert len(told) <= PER_USER_MAX + SHORT_PER_USER_MAX + 2
        assert all((it.who, it.source) == (node, "10.0.0.9") for it in told)
        assert all(it.credential == "certificate ff" for it in told)
        # Addresses that it makes up end in one record with its name.
        for number in range(asked):
            it = msgspec.structs.replace(read(f"s{number}", who=node), source=f"10.0.9.{number}")
            desk.accesses.note(it)
        assert len(await desk.over()) <= 2 * (PER_USER_MAX + SHORT_PER_USER_MAX + 2)
        assert all(it.who == node for it in desk.told())

    played(play)


def test_failed_authentications_are_counted_by_address() -> None:
    async def play(desk: Desk) -> None:
        asked = 3_000
        for number in range(asked):
            desk.accesses.failed(f"10.0.{number % 200}.1", f"token risk/{number}\n")
        told = [it for it in await desk.over() if it.verb == FAILED]
        assert sum(it.count or 1 for it in told) == asked
        assert len({it.source for it in told}) == FAILED_SOURCES_MAX + 1
        assert OTHERS in {it.source for it in told}
        assert len(told) <= 2 * (FAILED_SOURCES_MAX + 1)
        assert told[0].credential == "token risk/0?"

    played(play)


def test_what_waits_is_bounded_and_what_is_lost_is_counted() -> None:
    async def whole() -> None:
        desk = Desk()
        for number in range(WAITING_MAX + 10):
            desk.accesses.note(read(who=f"node-{number}", namespace=f"tenant-{number}"))
        assert desk.accesses.lost == 10
        await desk.accesses.flush()
        assert len(desk.told()) == WAITING_MAX
        await desk.store.close()

    asyncio.run(whole())


def test_a_server_that_is_too_old_for_the_plane_writes_nothing() -> None:
    async def play(desk: Desk) -> None:
        newer = Transaction((), (Put(keys.plane_format(), b'{"format":99}'),))
        await desk.store.txn(newer)
        with pytest.raises(Unavailable, match="format 99"):
            await desk.accesses.record(Mutation(who="ann", verb=EXEC))
        assert desk.told() == []

    played(play)
