"""Accesses in the audit: before they are given, once for many alike, and never without bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from holdfast.host.audit import accesses as module
from holdfast.host.audit.accesses import (
    EXEC,
    FAILED,
    FAILED_SOURCES_MAX,
    NAMED_PER_TENANT_MAX,
    OTHERS,
    READ,
    UNNAMED_PER_TENANT_MAX,
    WAITING_MAX,
    WINDOW_MS,
    Accesses,
)
from holdfast.model import keys
from holdfast.model.audit import Mutation, Stamp
from holdfast.model.errors import Unavailable
from holdfast.model.transaction import Change, Outcome, Put, Transaction
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S


class Failing(MemoryStore):
    """A store that can be away."""

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
        self.accesses = Accesses(
            self.store, lambda: self.closed, lambda: self.now_ms, lambda: 1_000 + self.now_ms
        )

    def told(self) -> list[Mutation]:
        """All that the history of the stamp says."""
        changes: tuple[Change, ...] = self.store.keyspace.changes("", after=0).changes
        stamps = [
            msgspec.json.decode(it.value, type=Stamp)
            for it in changes
            if it.key == keys.audit_stamp() and it.value is not None
        ]
        return [said for stamp in stamps for said in stamp.mutations]

    async def over(self) -> list[Mutation]:
        """All that was told once the window is over."""
        self.now_ms += WINDOW_MS
        self.accesses._turn()
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


def test_one_tenant_cannot_fill_the_journal_by_reading() -> None:
    """Names that it makes up, users that it makes up: what is told is bounded, what is counted is
    all of it, and others are told in full.
    """

    async def play(desk: Desk) -> None:
        asked = 5_000
        for number in range(asked):
            await desk.accesses.record(read(f"s{number}", who=f"bot-{number % 700}"))
        await desk.accesses.record(read(namespace="other"))
        told = await desk.over()
        own = [it for it in told if it.namespace == "risk"]
        bound = NAMED_PER_TENANT_MAX + UNNAMED_PER_TENANT_MAX + 1
        assert len([it for it in own if not it.count]) == bound
        assert len(own) <= 2 * bound
        assert sum(it.count or 1 for it in own) == asked
        assert own[-1].who == OTHERS
        assert read(namespace="other") in told

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
            desk.accesses.note(read(namespace=f"tenant-{number}"))
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
