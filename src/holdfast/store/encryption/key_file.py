"""Keys in a file: one line for each, its name and 32 bytes in base64. The first one is current.

All servers of a plane have the same file, which is kept apart from backups. The other keys decrypt
older records, and must be known to all servers before one of them becomes current.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.model.errors import Invalid, Unavailable
from holdfast.store.encryption.keyring import DATA_KEY_BYTES, NONCE_BYTES, Wrapped

KEYS_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,62}", re.ASCII)
_OTHERS = 0o077


class Key(msgspec.Struct, frozen=True):
    """A key with its name. It is never printed."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key({self.name})"


def new_key(name: str) -> Key:
    if not _NAME.fullmatch(name):
        raise Invalid(f"key name: {name[:80]!r} must be letters, digits, dots, - and _, at most 63")
    return Key(name, secrets.token_bytes(DATA_KEY_BYTES))


def encode_keys(keys: Sequence[Key]) -> bytes:
    """The content of a key file."""
    lines = [f"{key.name} {base64.b64encode(key.secret).decode()}\n" for key in keys]
    return "".join(lines).encode()


def read(path: Path) -> tuple[Key, ...]:
    """The keys in a file. Raises Invalid, without quoting the contents."""
    try:
        found = path.stat()
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise Invalid(f"the key file {path} cannot be read: {why}") from None
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        raise Invalid(f"the key file {path} is accessible to other users: run `chmod 600 {path}`")
    keys = tuple(_parsed(path, number, line) for number, line in enumerate(lines, 1) if line)
    names = [key.name for key in keys]
    if not 1 <= len(keys) <= KEYS_MAX or len(set(names)) != len(names):
        raise Invalid(
            f"the key file {path} must hold from 1 to {KEYS_MAX} keys with different names"
        )
    return keys


def _parsed(path: Path, number: int, line: str) -> Key:
    name, _, text = line.partition(" ")
    try:
        secret = base64.b64decode(text, validate=True)
    except binascii.Error:
        secret = b""
    if not _NAME.fullmatch(name) or len(secret) != DATA_KEY_BYTES:
        raise Invalid(
            f"line {number} of the key file {path} must be a name, a space, and "
            f"{DATA_KEY_BYTES} bytes in base64"
        )
    return Key(name, secret)


class KeyFile:
    """The service that wraps data keys with keys of a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()
        self._reread()

    async def wrap(self, data_key: bytes) -> Wrapped:
        self._reread()
        current = self._keys[0]
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = AESGCM(current.secret).encrypt(nonce, data_key, _bound(current.name))
        return Wrapped(current.name, nonce + sealed)

    async def unwrap(self, wrapped: Sequence[Wrapped]) -> list[bytes | None]:
        self._reread()
        by_name = {key.name: key for key in self._keys}
        return [_opened(by_name.get(it.key), it) for it in wrapped]

    def _reread(self) -> None:
        try:
            found = os.stat(self._path)
        except OSError as error:
            if self._keys:
                # The keys that were read stay valid until there is another file.
                return
            raise Invalid(f"the key file {self._path} cannot be read: {error.strerror}") from None
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen == self._seen:
            return
        try:
            self._keys = read(self._path)
        except Invalid as error:
            if not self._keys:
                raise
            # The operator gets a warning, and the server keeps the keys that it has.
            raise Unavailable(error.message) from None
        self._seen = seen


def _opened(key: Key | None, wrapped: Wrapped) -> bytes | None:
    if key is None:
        return None
    nonce, sealed = wrapped.data[:NONCE_BYTES], wrapped.data[NONCE_BYTES:]
    try:
        return AESGCM(key.secret).decrypt(nonce, sealed, _bound(key.name))
    except (InvalidTag, ValueError):
        # Another key of the same name.
        return None


def _bound(name: str) -> bytes:
    return b"holdfast data key\x00" + name.encode()
