"""A store around a store that keeps some of its records encrypted.

It fulfils the same contract, and the same suite checks it. Secrets are encrypted just before they
reach the inner store and decrypted as soon as they come from it, so that decisions, which are pure,
never need a key; and every disk, log, history, backup and etcd member has ciphertext only.

A record that cannot be decrypted is passed on unchanged. Its decoder finds it unreadable, which
costs that one record and nothing else (ADR 0085).

A plane that had Secrets before it had a key has plain ones, which are read as they are until all
are encrypted. From then on a plain one comes from a writer without the key, and is unreadable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from holdfast.model import keys
from holdfast.model.encoding import encrypted_records
from holdfast.model.errors import Expired, Forbidden, Unavailable
from holdfast.model.kinds.secret import Secret
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import (
    ABSENT,
    Batch,
    Change,
    Compare,
    CompareFailed,
    Delete,
    Fate,
    Outcome,
    Page,
    Put,
    Record,
    Transaction,
    Write,
)
from holdfast.store.contract import RANGE_LIMIT_MAX, Store, check
from holdfast.store.encryption.keyring import Keyring

# What is encrypted: all Secrets, and the record that proves to a server that it has the right key.
PREFIXES = (keys.kind_prefix(kind_of_struct(Secret)), keys.ENCRYPTION)
# How many records are decrypted at once; a large page must not block the event loop.
SLICE = 200
REENCRYPT_PAGE = 500
_PROOF = b"{}"
_WHOLE, _NOT_WHOLE = b'{"whole":true}', b'{"whole":false}'


class ReencryptionResult(msgspec.Struct, frozen=True):
    """How many records were rewritten in their new form, and how many could not be."""

    changed: int = 0
    left: int = 0


class EncryptedStore:
    """See the module's docstring."""

    def __init__(
        self,
        inner: Store,
        ring: Keyring,
        prefixes: tuple[str, ...] = PREFIXES,
        *,
        whole: bool = False,
        remember: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        """`whole`: whether this server knows from earlier that all Secrets are encrypted.
        `remember` keeps it outside the store: a writer to the store could remove it there.
        """
        self.inner, self.ring = inner, ring
        self._prefixes = prefixes
        self._whole, self._remember = whole and not ring.plain, remember
        # Whether the present pass has met a plain record.
        self._plain_seen = False

    async def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        page = await self.inner.range(start, end, limit=limit, at=at)
        concerned = [it.value for it in page.records if it.key.startswith(self._prefixes)]
        if not concerned:
            return page
        await self.prepare(concerned)
        opened: list[Record] = []
        for begin in range(0, len(page.records), SLICE):
            if begin:
                await asyncio.sleep(0)
            opened += [self.decrypt_record(it) for it in page.records[begin : begin + SLICE]]
        return msgspec.structs.replace(page, records=tuple(opened))

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        check(transaction)
        if any(write.key.startswith(self._prefixes) for write in transaction.writes):
            await self.ring.ready()
            writes = tuple(self.encrypt_write(write) for write in transaction.writes)
            transaction = Transaction(transaction.compares, writes)
        outcome = await self.inner.txn(transaction, token=token, timeout_s=timeout_s)
        if not isinstance(outcome, CompareFailed):
            return outcome
        concerned = [it.value for it in outcome.current if it and it.key.startswith(self._prefixes)]
        if not concerned:
            return outcome
        await self.prepare(concerned)
        current = tuple(it and self.decrypt_record(it) for it in outcome.current)
        return CompareFailed(outcome.revision, current)

    def new_token(self) -> str:
        return self.inner.new_token()

    async def fate(self, token: str) -> Fate:
        return await self.inner.fate(token)

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        return DecryptingWatch(self, self.inner.watch(prefix, after=after))

    async def compact(self, revision: int) -> None:
        await self.inner.compact(revision)

    async def revision(self) -> int:
        return await self.inner.revision()

    async def close(self) -> None:
        await self.inner.close()

    # Between plain and encrypted ------------------------------------------------------------------

    async def prepare(self, values: list[bytes]) -> None:
        """Prepare to decrypt these: get their keys, and learn whether plain ones are accepted."""
        await self.ring.learn(values)
        if not all(map(encrypted_records.is_encrypted, values)):
            await self._ascertain()

    def decrypt_record(self, record: Record) -> Record:
        """The record as its reader sees it; the same if its prefix is not encrypted."""
        if not record.key.startswith(self._prefixes):
            return record
        value = self.decrypt_value(record.key, record.value)
        return Record(record.key, value, record.created, record.modified)

    def decrypt_value(self, key: str, value: bytes) -> bytes:
        """The plain value, or one marked as distrusted if it should be encrypted and is not."""
        if not self._whole or encrypted_records.is_encrypted(value):
            return self.ring.decrypt(key, value)
        self.ring.refused += 1
        return encrypted_records.mark_distrusted(value)

    def encrypt_write(self, write: Write) -> Write:
        """The write as the inner store keeps it."""
        if not isinstance(write, Put) or not write.key.startswith(self._prefixes):
            return write
        return Put(write.key, self.ring.encrypt(write.key, write.value))

    def concerned_values(self, batch: Batch) -> list[bytes]:
        """The values of a batch that are encrypted, or should be."""
        return [
            it.value
            for it in batch.changes
            if it.value is not None and it.key.startswith(self._prefixes)
        ]

    def opened_batch(self, batch: Batch) -> Batch:
        changes = [
            it
            if it.value is None or not it.key.startswith(self._prefixes)
            else Change(it.revision, it.key, self.decrypt_value(it.key, it.value), it.created)
            for it in batch.changes
        ]
        return Batch(batch.revision, tuple(changes))

    # Whether all of it is encrypted -------------------------------------------------------------

    async def _ascertain(self) -> tuple[Record | None, bytes]:
        """Read the store's record about it; returns the record, and its content if it is valid.

        Only a record that was written with the plane's key is valid: without the key no writer can
        make plain records acceptable again.
        """
        key = keys.encryption_whole()
        page = await self.inner.range(key, key + "\0", limit=1)
        if not page.records:
            return None, b""
        found = page.records[0]
        await self.ring.learn((found.value,))
        said = self.ring.decrypt(key, found.value)
        if not encrypted_records.is_encrypted(found.value) or said not in (_WHOLE, _NOT_WHOLE):
            return found, b""
        await self._settle(said == _WHOLE and not self.ring.plain)
        return found, said

    async def _settle(self, whole: bool) -> None:
        if whole != self._whole:
            self._whole = whole
            if self._remember is not None:
                await self._remember(whole)

    async def _declare(self, wanted: bytes) -> None:
        """Write that record with the current key. A concurrent writer's version is as good."""
        key = keys.encryption_whole()
        found, said = await self._ascertain()
        if said == wanted and found is not None and self.ring.has_current_key(found.value):
            return
        compare = Compare(key, found.modified if found is not None else ABSENT)
        put = Put(key, self.ring.authenticate(key, wanted))
        if not isinstance(await self.inner.txn(Transaction((compare,), (put,))), CompareFailed):
            await self._settle(wanted == _WHOLE)

    # What is in the store already ---------------------------------------------------------------

    async def prove(self) -> None:
        """Check that this server has the key of the plane; the first server sets it.

        Raises Forbidden with a message for people.
        """
        key = keys.encryption_proof()
        await self._ascertain()
        for _ in range(2):
            page = await self.range(key, key + "\0", limit=1)
            if page.records:
                if page.records[0].value != _PROOF:
                    raise Forbidden(_without_key(page.records[0].value))
                return
            if self.ring.plain:
                return
            first = Transaction((Compare(key, ABSENT),), (Put(key, _PROOF),))
            await self.txn(first)

    async def reencrypt(self) -> ReencryptionResult:
        """Rewrite every record in the form in which it would be written now.

        A record that is written concurrently is left to the next pass.
        """
        done, self._plain_seen = ReencryptionResult(), False
        if self.ring.plain:
            # Before the first plain one is written: other servers still require encrypted ones.
            await self._declare(_NOT_WHOLE)
        for prefix in self._prefixes:
            start: str | None = prefix
            while start is not None:
                end = keys.after_prefix(prefix)
                page = await self.inner.range(start, end, limit=REENCRYPT_PAGE)
                for record in page.records:
                    done = await self.reencrypt_record(record, done)
                start = page.more_from
        if not self.ring.plain and not self._plain_seen:
            # While there were plain ones, a server without the key may still have been writing.
            await self._declare(_WHOLE)
        return done

    async def reencrypt_record(
        self, record: Record, done: ReencryptionResult
    ) -> ReencryptionResult:
        if self.ring.is_current(record.value) or record.key == keys.encryption_whole():
            return done
        if not encrypted_records.is_encrypted(record.value):
            self._plain_seen = True
            if self._whole:
                # Not written by a server. Encrypting it would make it valid.
                return ReencryptionResult(done.changed, done.left + 1)
        await self.ring.learn((record.value,))
        plain = self.ring.decrypt(record.key, record.value)
        write: Write = Put(record.key, self.ring.encrypt(record.key, plain))
        if self.ring.plain and record.key == keys.encryption_proof():
            if done.left:
                return done
            # Nothing is encrypted any more, so servers need no key from now on.
            write = Delete(record.key)
        elif encrypted_records.is_encrypted(plain):
            # Its key is not available; a reader gets an error that says so.
            return ReencryptionResult(done.changed, done.left + 1)
        compare = Compare(record.key, record.modified)
        outcome = await self.inner.txn(Transaction((compare,), (write,)))
        if isinstance(outcome, CompareFailed):
            return ReencryptionResult(done.changed, done.left + 1)
        return ReencryptionResult(done.changed + 1, done.left)


class DecryptingWatch:
    """Decrypts batches. A cancelled `anext` loses nothing: the batch waits for the next one."""

    def __init__(self, store: EncryptedStore, inner: AsyncIterator[Batch]) -> None:
        self._store, self._inner = store, inner
        self._held: Batch | None = None
        # Passed on encrypted, because the key service was not available at that time.
        self._owed: list[bytes] = []

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._held is None:
            self._held = await anext(self._inner)
        batch = self._held
        closed = self._store.concerned_values(batch)
        if closed or self._owed:
            # One record must not delay all others. The reader takes it for unreadable, and lists
            # again as soon as the service answers.
            try:
                await self._store.prepare([*self._owed, *closed])
            except Unavailable:
                self._owed += closed
            else:
                if self._owed:
                    raise Expired("records that could not be decrypted now can be: list again")
        self._held = None
        return self._store.opened_batch(batch) if closed else batch


async def demand_plain(store: Store) -> None:
    """Raise Forbidden if the plane is encrypted, for a server without a key."""
    key = keys.encryption_proof()
    page = await store.range(key, key + "\0", limit=1)
    for record in page.records:
        raise Forbidden(_without_key(record.value))


def _without_key(value: bytes) -> str:
    found = encrypted_records.split_record(value)
    name = f"key {found.header.key[:80]!r}" if found is not None else "a key"
    return (
        f"the Secrets of this plane are encrypted with {name}, which this server does not have; "
        "give it the key file or the key service of the other servers (--encryption-key-file, "
        "--encryption-kms)"
    )
