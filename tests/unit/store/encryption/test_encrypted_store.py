"""A store around a store: plain above, encrypted below, whatever is missing or moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.host.process.files import write_private
from holdfast.model import keys
from holdfast.model.encoding import encrypted_records
from holdfast.model.errors import Expired, Forbidden, Unavailable
from holdfast.model.transaction import (
    ABSENT,
    NEVER,
    Batch,
    Compare,
    CompareFailed,
    Delete,
    Put,
    Transaction,
)
from holdfast.store.encryption import EncryptedStore
from holdfast.store.encryption import keyring as keyrings
from holdfast.store.encryption.encrypted_store import ReencryptionResult, demand_plain
from holdfast.store.encryption.key_file import KeyFile, encode_keys, new_key, read
from holdfast.store.encryption.keyring import Keyring
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from tests.patience import PATIENCE_S
from tests.unit.store.encryption.test_envelope import HERE, PLAIN, THERE, Service

OTHER = "objects/workloads/risk/web"
Play = Callable[[EncryptedStore, MemoryStore, Service], Awaitable[None]]


def played(play: Play) -> None:
    async def whole() -> None:
        service = Service()
        inner = MemoryStore(bookmark_every_s=0.01)
        await play(EncryptedStore(inner, await Keyring.open(service)), inner, service)
        await inner.close()

    asyncio.run(whole())


def put(key: str, value: bytes = PLAIN) -> Transaction:
    return Transaction((), (Put(key, value),))


async def value_at(store: EncryptedStore | MemoryStore, key: str) -> bytes:
    page = await store.range(key, key + "\0")
    return page.records[0].value


def test_only_secrets_are_encrypted_and_all_ways_out_are_plain() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        watch = store.watch("objects/", after=0)
        await store.txn(Transaction((), (Put(HERE, PLAIN), Put(OTHER, PLAIN))))
        assert encrypted_records.is_encrypted(await value_at(inner, HERE))
        assert await value_at(inner, OTHER) == PLAIN
        assert await value_at(store, HERE) == PLAIN
        refused = await store.txn(Transaction((Compare(HERE, NEVER), Compare("x", 7)), ()))
        assert isinstance(refused, CompareFailed)
        assert refused.current[0] is not None
        assert refused.current[0].value == PLAIN
        batch = await anext(watch)
        while not batch.changes:
            batch = await anext(watch)
        assert [it.value for it in batch.changes] == [PLAIN, PLAIN]

    played(play)


def test_a_server_without_the_key_fails_before_it_serves() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await demand_plain(inner)
        await store.prove()
        await store.prove()
        with pytest.raises(Forbidden, match=r"key 'one'.*--encryption-key-file"):
            await demand_plain(inner)
        service.name = "three"
        stranger = EncryptedStore(inner, await Keyring.open(Service()))
        await stranger.prove()
        other = EncryptedStore(inner, await Keyring.open(Strange()))
        with pytest.raises(Forbidden, match="key 'one'"):
            await other.prove()

    played(play)


async def read_on(watch: AsyncIterator[Batch]) -> None:
    async for _ in watch:
        pass


class Strange(Service):
    """Has none of the keys that others use."""

    async def unwrap(self, wrapped: object) -> list[bytes | None]:
        return [None]


def test_records_of_before_are_encrypted_and_those_of_an_old_key_are_too() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        for number in range(3):
            await inner.txn(put(f"{HERE}{number}"))
        assert await store.reencrypt() == ReencryptionResult(3, 0)
        assert await store.reencrypt() == ReencryptionResult(0, 0)
        service.name = "two"
        await store.ring.refresh()
        assert await store.reencrypt() == ReencryptionResult(3, 0)
        for number in range(3):
            assert b"two" in await value_at(inner, f"{HERE}{number}")
            assert await value_at(store, f"{HERE}{number}") == PLAIN

    played(play)


def test_a_write_beside_the_pass_is_not_overwritten() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await inner.txn(put(HERE))
        page = await inner.range(HERE, HERE + "\0")
        await store.txn(put(HERE, b'{"newer":1}'))
        assert await store.reencrypt_record(
            page.records[0], ReencryptionResult()
        ) == ReencryptionResult(0, 1)
        assert await value_at(store, HERE) == b'{"newer":1}'

    played(play)


def test_what_has_no_key_is_left_as_it_is_and_counted() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await store.txn(put(HERE))
        await inner.txn(put(THERE, await value_at(inner, HERE)))
        service.name = "two"
        await store.ring.refresh()
        assert await store.reencrypt() == ReencryptionResult(1, 1)
        assert encrypted_records.is_encrypted(await value_at(store, THERE))

    played(play)


def test_a_plain_secret_is_unreadable_once_all_are_encrypted() -> None:
    """Who can write to the store and has no key cannot forge a Secret, and no way out gives it."""

    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await store.prove()
        await inner.txn(put(HERE))
        assert await value_at(store, HERE) == PLAIN
        assert await store.reencrypt() == ReencryptionResult(1, 0)
        # Another server may have had no key until now: the next pass finds none that is plain.
        assert await store.reencrypt() == ReencryptionResult(0, 0)
        watch = store.watch("objects/", after=await inner.revision())
        await inner.txn(put(THERE))
        refused = await store.txn(Transaction((Compare(THERE, ABSENT),), ()))
        assert isinstance(refused, CompareFailed)
        assert refused.current[0] is not None
        batch = await anext(watch)
        while not batch.changes:
            batch = await anext(watch)
        ways = (await value_at(store, THERE), refused.current[0].value, batch.changes[0].value)
        for value in ways:
            assert value is not None
            assert value != PLAIN
            assert "in plain text although" in encrypted_records.unreadable_reason(value)
        # A pass must not make it good, and what was encrypted is read as before.
        assert await store.reencrypt() == ReencryptionResult(0, 1)
        assert await value_at(inner, THERE) == PLAIN
        assert await value_at(store, HERE) == PLAIN

    played(play)


def test_other_servers_and_the_next_life_know_that_all_are_encrypted() -> None:
    """Also if who can write to the store removes the record that says so, or puts a plain one."""

    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        kept: list[bool] = []

        async def remember(whole: bool) -> None:
            kept.append(whole)

        other = EncryptedStore(inner, await Keyring.open(service), remember=remember)
        await other.prove()
        await store.reencrypt()
        await inner.txn(put(HERE))
        assert await value_at(other, HERE) != PLAIN
        assert kept == [True]
        whole = keys.encryption_whole()
        for forged in (Delete(whole), Put(whole, b'{"whole":false}')):
            await inner.txn(Transaction((), (forged,)))
            assert await value_at(other, HERE) != PLAIN
            reborn = EncryptedStore(inner, await Keyring.open(service), whole=kept[-1])
            await reborn.prove()
            assert await value_at(reborn, HERE) != PLAIN
        await store.reencrypt()
        await inner.txn(Transaction((), (Delete(HERE),)))
        await store.reencrypt()
        fresh = EncryptedStore(inner, await Keyring.open(service))
        await fresh.prove()
        await inner.txn(put(HERE))
        assert await value_at(fresh, HERE) != PLAIN

    played(play)


def test_a_key_holder_can_accept_plain_secrets_again() -> None:
    """`--no-encryption`, one server after another: those that encrypt still read what it writes."""

    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await store.prove()
        await store.txn(put(HERE))
        await store.reencrypt()
        off = EncryptedStore(inner, await Keyring.open(service, plain=True), whole=True)
        await off.prove()
        assert (await off.reencrypt()).left == 0
        assert await value_at(inner, HERE) == PLAIN
        assert await value_at(store, HERE) == PLAIN
        await demand_plain(inner)
        # And back again.
        await store.prove()
        await store.reencrypt()
        await store.reencrypt()
        await inner.txn(put(THERE))
        assert await value_at(store, THERE) != PLAIN

    played(play)


def test_encryption_can_be_switched_off_again() -> None:
    """After that servers need no key."""

    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await store.prove()
        await store.txn(put(HERE))
        off = EncryptedStore(inner, await Keyring.open(service, plain=True))
        await off.prove()
        assert await off.reencrypt() == ReencryptionResult(2, 0)
        assert await value_at(inner, HERE) == PLAIN
        await demand_plain(inner)

    played(play)


def test_a_key_service_that_is_away_holds_up_no_watch_and_is_caught_up_with() -> None:
    """The one record is unreadable until the service is back; then readers list again."""

    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        now = [0.0]
        ring = Keyring(service, monotonic_s=lambda: now[0])
        await ring.refresh()
        reader = EncryptedStore(inner, ring)
        watch = reader.watch("", after=0)
        service.away = True
        await store.txn(put(HERE))
        await store.txn(put(OTHER))
        seen: dict[str, bytes | None] = {}
        while OTHER not in seen:
            seen |= {it.key: it.value for it in (await anext(watch)).changes}
        assert seen[OTHER] == PLAIN
        assert encrypted_records.is_encrypted(seen[HERE] or b"")
        with pytest.raises(Unavailable):
            await value_at(reader, HERE)
        service.away, now[0] = False, keyrings.RETRY_S
        with pytest.raises(Expired):
            await read_on(watch)
        assert await value_at(reader, HERE) == PLAIN

    played(play)


def test_a_cancelled_wait_for_a_key_loses_no_batch() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        slow = Slow()
        reader = EncryptedStore(inner, await Keyring.open(slow))
        watch = reader.watch("", after=0)
        await store.txn(put(HERE))
        waiting = asyncio.ensure_future(anext(watch))
        await slow.asked_for.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        slow.answers.set()
        async with asyncio.timeout(PATIENCE_S):
            batch = await anext(watch)
        assert [it.value for it in batch.changes] == [PLAIN]

    played(play)


class Slow(Service):
    def __init__(self) -> None:
        super().__init__()
        self.asked_for, self.answers = asyncio.Event(), asyncio.Event()

    async def unwrap(self, wrapped: object) -> list[bytes | None]:
        self.asked_for.set()
        await self.answers.wait()
        return await super().unwrap(wrapped)  # type: ignore[arg-type]


def test_nothing_of_a_plain_secret_is_left_in_the_file_once_it_is_encrypted(
    tmp_path: Path,
) -> None:
    """History that is forgotten is overwritten, small values and large ones."""
    path = tmp_path / "keys"
    write_private(path, encode_keys([new_key("one")]))
    secrets = {f"{HERE}{size}": b'{"canary":"%b"}' % (b"kept" * size) for size in (10, 9_000)}

    async def whole() -> None:
        inner = await SqliteStore.open(tmp_path / "store.db")
        for key, value in secrets.items():
            await inner.txn(put(key, value))
        store = EncryptedStore(inner, await Keyring.open(KeyFile(path)))
        assert await store.reencrypt() == ReencryptionResult(2, 0)
        await store.compact(await store.revision())
        # The rows are swept along with later writes, and the log is copied at the end.
        for _ in range(20):
            await store.txn(put(OTHER))
        await store.close()

    asyncio.run(whole())
    assert len(read(path)) == 1
    left = b"".join(it.read_bytes() for it in tmp_path.glob("store.db*"))
    assert b"kept" not in left


def test_the_proof_is_made_once_by_servers_that_start_together() -> None:
    async def play(store: EncryptedStore, inner: MemoryStore, service: Service) -> None:
        await asyncio.gather(*(store.prove() for _ in range(5)))
        page = await inner.range(keys.ENCRYPTION, keys.after_prefix(keys.ENCRYPTION))
        assert [it.created for it in page.records] == [page.records[0].modified]
        assert page.records[0].created > ABSENT

    played(play)
