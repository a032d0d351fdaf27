"""The keys of one server: data keys that encrypt records, and the service that wraps those.

Each record carries its data key, wrapped by a key that is never in the store: in a file
(`key_file`) or behind a command of the operator's (`kms`). A server makes one data key when it
starts and uses it for all that it writes, so that a write never waits for a key service.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.model.encoding import encrypted_records
from holdfast.model.encoding.encrypted_records import Header
from holdfast.model.errors import Unavailable

DATA_KEY_BYTES = 32
NONCE_BYTES = 12
# A nonce must never repeat under one key. Only the process that made a data key encrypts with it,
# so a counter serves as nonce; others only decrypt. AES-GCM allows far more than this.
RECORDS_PER_KEY_MAX = 1 << 30
# How long a failed service is not asked again: each try may take a whole time-out.
RETRY_S = 5.0


class Wrapped(msgspec.Struct, frozen=True):
    """A data key that only the service can unwrap, and the name of the key that wraps it."""

    key: str
    data: bytes


class KeyService(Protocol):
    """Wraps data keys. Raises Unavailable when it cannot be reached."""

    async def wrap(self, data_key: bytes) -> Wrapped:
        """Wrap data keys with the current key."""
        ...

    async def unwrap(self, wrapped: Sequence[Wrapped]) -> list[bytes | None]:
        """The data keys in the same order; None where the wrapping key is unknown."""
        ...


class Keyring:
    """See the module's docstring. Made by `open`."""

    def __init__(
        self,
        service: KeyService,
        *,
        plain: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service = service
        self._monotonic_s = monotonic_s
        # Whether new records stay plain, since encryption is being switched off.
        self.plain = plain
        # How many records could not be decrypted although their data key is known, since they were
        # altered or moved; and plain records where all should be encrypted.
        self.refused = 0
        self._known: dict[Wrapped, AESGCM | None] = {}
        self._current = Wrapped("", b"")
        self._used = 0
        self._failed: tuple[float, Unavailable] | None = None

    @classmethod
    async def open(cls, service: KeyService, *, plain: bool = False) -> Keyring:
        """A keyring that is ready to encrypt. Raises Unavailable or Invalid."""
        ring = cls(service, plain=plain)
        await ring.refresh()
        return ring

    @property
    def current(self) -> str:
        """The name of the key that new records are encrypted with."""
        return self._current.key

    async def refresh(self) -> None:
        """Read which key is the current one, and retry data keys that could not be unwrapped."""
        self._known = {it: cipher for it, cipher in self._known.items() if cipher is not None}
        data_key = secrets.token_bytes(DATA_KEY_BYTES)
        wrapped = await self.service.wrap(data_key)
        if wrapped.key != self._current.key or self._used >= RECORDS_PER_KEY_MAX:
            self._known[wrapped] = AESGCM(data_key)
            self._current, self._used = wrapped, 0

    async def ready(self) -> None:
        """Prepare to encrypt: make sure that there is a data key that was not used too often."""
        if self._used >= RECORDS_PER_KEY_MAX:
            await self.refresh()

    def encrypt(self, key: str, value: bytes) -> bytes:
        """A record as it is stored under this key."""
        return value if self.plain else self.authenticate(key, value)

    def authenticate(self, key: str, value: bytes) -> bytes:
        """A record in a form that only a writer with the plane's key can make."""
        cipher = self._known[self._current]
        if cipher is None:
            return value
        self._used += 1
        nonce = self._used.to_bytes(NONCE_BYTES, "big")
        uid = _uid(value)
        header = encrypted_records.header_bytes(
            Header(self._current.key, self._current.data, nonce, uid)
        )
        body = cipher.encrypt(nonce, value, encrypted_records.bound_to(header, key))
        return encrypted_records.frame(header, body)

    def is_current(self, value: bytes) -> bool:
        """Whether a stored record is in the form in which it would be written now."""
        if self.plain:
            return not encrypted_records.is_encrypted(value)
        return self.has_current_key(value)

    def has_current_key(self, value: bytes) -> bool:
        """Whether a record is encrypted with the key that is current now."""
        found = encrypted_records.split_record(value)
        return found is not None and found.header.key == self._current.key

    async def learn(self, values: Iterable[bytes]) -> None:
        """Unwrap the data keys of these records, all at once. Raises Unavailable."""
        wanted: dict[Wrapped, None] = {}
        for value in values:
            found = encrypted_records.split_record(value)
            if found is not None:
                wrapped = Wrapped(found.header.key, found.header.wrapped)
                if wrapped not in self._known:
                    wanted[wrapped] = None
        if not wanted:
            return
        if self._failed is not None and self._monotonic_s() < self._failed[0] + RETRY_S:
            raise self._failed[1]
        try:
            opened = await self.service.unwrap(tuple(wanted))
        except Unavailable as error:
            self._failed = self._monotonic_s(), error
            raise
        self._failed = None
        for wrapped, data_key in zip(wanted, opened, strict=True):
            self._known[wrapped] = AESGCM(data_key) if data_key is not None else None

    def decrypt(self, key: str, value: bytes) -> bytes:
        """The plain record; one that cannot be decrypted, or is plain, unchanged."""
        found = encrypted_records.split_record(value)
        if found is None:
            return value
        header = found.header
        cipher = self._known.get(Wrapped(header.key, header.wrapped))
        if cipher is None:
            return value
        try:
            return cipher.decrypt(header.nonce, found.body, found.bound_to(key))
        except (InvalidTag, ValueError):
            self.refused += 1
            return value


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_NAMED = msgspec.json.Decoder(_Named)


def _uid(value: bytes) -> str:
    try:
        return _NAMED.decode(value).metadata.uid
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
