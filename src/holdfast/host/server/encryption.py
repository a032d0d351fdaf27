"""Encryption at rest in a server: finds the keys and rewrites old records with the current one.

`server_process` wraps the store on the disk in the store that this opens. ADR 0100 has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from holdfast.host.process.files import private_directory, write_private
from holdfast.host.process.metrics import Metrics
from holdfast.host.server.settings import ETCD, MEMORY, ServerSettings
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.store.contract import Store
from holdfast.store.encryption import EncryptedStore
from holdfast.store.encryption.encrypted_store import demand_plain
from holdfast.store.encryption.key_file import KeyFile, encode_keys, new_key
from holdfast.store.encryption.keyring import Keyring, KeyService
from holdfast.store.encryption.kms import ExecKms

FILE = "encryption.keys"
# In a server's data: marks that all Secrets of the plane were encrypted at the last pass.
WHOLE_FILE = "secrets-encrypted"
FIRST_KEY = "key-1"
# How often a server looks for a new current key; running a command costs more than reading a file.
LOOK_S, LOOK_KMS_S = 10.0, 600.0
# Another server may have written with the previous key, so all records are checked again.
AGAIN_S = 600.0
_log = logging.getLogger(__name__)

Say = Callable[[str], None]


async def open_encrypted(store: Store, settings: ServerSettings, say: Say) -> Store:
    """Return the store as all layers above see it. Raises Forbidden, Invalid or Unavailable."""
    service = await _service(store, settings)
    if service is None:
        await demand_plain(store)
        if not settings.store.startswith(MEMORY):
            say(
                "Secrets are stored in plain text. Give all servers the same "
                "--encryption-key-file to encrypt them."
            )
        return store
    ring = await Keyring.open(service, plain=settings.encryption.off)
    mark = settings.data / WHOLE_FILE

    async def remember(whole: bool) -> None:
        await asyncio.to_thread(_mark, mark, whole=whole)

    if ring.plain:
        await remember(False)
    made = EncryptedStore(store, ring, whole=mark.exists(), remember=remember)
    await made.prove()
    return made


def _mark(path: Path, *, whole: bool) -> None:
    if whole:
        private_directory(path.parent)
        write_private(path, b"Plain Secrets in the store are not trusted (docs/security.md).\n")
    else:
        path.unlink(missing_ok=True)


async def _service(store: Store, settings: ServerSettings) -> KeyService | None:
    """Return the key service, or None where there is none and none is wanted."""
    wanted = settings.encryption
    if wanted.kms:
        return ExecKms(wanted.kms)
    if wanted.key_file is not None:
        if not wanted.key_file.exists():
            raise Invalid(
                f"--encryption-key-file: {wanted.key_file} does not exist; create it with "
                f"`holdfast encryption add-key {wanted.key_file}`"
            )
        return KeyFile(wanted.key_file)
    path = settings.pki_directory / FILE
    if not path.exists():
        # With several servers, each would create a key that the others do not have.
        if wanted.off or settings.store.startswith((MEMORY, ETCD)):
            return None
        await demand_plain(store)
        await asyncio.to_thread(_make, path)
    return KeyFile(path)


def _make(path: Path) -> None:
    private_directory(path.parent)
    write_private(path, encode_keys([new_key(FIRST_KEY)]))


class Reencryption:
    """Rewrites stored records with the current key, also when it changes while the server runs."""

    def __init__(self, store: EncryptedStore, is_ours: Callable[[], bool], say: Say) -> None:
        self._store, self._is_ours, self._say = store, is_ours, say
        self._look_s = LOOK_KMS_S if isinstance(store.ring.service, ExecKms) else LOOK_S
        # Records that this server could not rewrite in its last pass.
        self.left = 0

    async def run(self) -> None:
        """Run until cancelled."""
        done, done_s = "", 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._store.ring.refresh()
                current = self._store.ring.current
                is_due = current != done or self.left or loop.time() > done_s + AGAIN_S
                if is_due and self._is_ours():
                    await self.once()
                    done, done_s = current, loop.time()
            except HoldfastError as error:
                # The next pass does it; until then everything can be read as before.
                _log.warning("Secrets were not re-encrypted in this pass: %s", error.message)
            await asyncio.sleep(self._look_s)

    async def once(self) -> None:
        """Make one pass over all records. Raises HoldfastError."""
        found = await self._store.reencrypt()
        self.left = found.left
        ring = self._store.ring
        form = "stored in plain text" if ring.plain else f"encrypted with key {ring.current!r}"
        if found.changed:
            self._say(f"{found.changed} records are {form} now.")
        if found.left:
            self._say(
                f"{found.left} Secrets cannot be brought to that form: their key is missing here, "
                "or they were written to the store without it. `holdfast repair list` names them."
            )

    def count(self, metrics: Metrics) -> None:
        """Add these metrics to the server's."""
        metrics.gauge(
            "encryption_records_left",
            "Secrets that cannot be rewritten with the current key; alarm above 0.",
            lambda: self.left,
        )
        metrics.gauge(
            "encryption_records_refused",
            "Times that a record was altered, moved or written without the key; alarm above 0.",
            lambda: self._store.ring.refused,
        )
