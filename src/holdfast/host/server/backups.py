"""Backups of a plane: the store as of one moment, the audit, and a manifest.

`holdfast backup`, `restore` and `verify` call it. A backup is a directory that is complete under
its name or does not exist. It can be verified without a key: it holds Secrets as the store does,
encrypted. It never holds the certificate authority (`pki`) or the encryption keys: with them, a
stolen backup would give access to everything.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast import __version__
from holdfast.host.audit.segments import FOLDER, parts, verify_segments
from holdfast.host.process.files import private_directory, write_private
from holdfast.model import keys
from holdfast.model.audit.audit_records import Head, head_of
from holdfast.model.encoding import encrypted_records
from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.kinds.secret import Secret
from holdfast.model.registry import kind_of_struct
from holdfast.store.contract import Store
from holdfast.store.folder_sync import sync_folder
from holdfast.store.sqlite import backup as copy_store
from holdfast.store.sqlite import restore as restore_store
from holdfast.store.sqlite import verify as verify_store
from holdfast.store.sqlite.backup import BackupContents, read_prefix
from holdfast.store.sqlite.database_files import make_private

MANIFEST = "manifest.json"
STORE, SNAPSHOT = "store.db", "etcd.snapshot"
# What a directory may hold when a backup is restored into it: what a backup does not contain.
BESIDE = frozenset({"pki", "kubeconfig"})
DAMAGED = "BackupDamaged"
_SECRETS = keys.kind_prefix(kind_of_struct(Secret))
_CHUNK = 1 << 20
_DIGEST_BYTES = 32

Tell = Callable[[str, float], None]


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup holds.

    store: `sqlite` or `etcd`.
    revision: of the store; of etcd, a revision shortly before the snapshot.
    secrets: how many there are; `plain` of them are not encrypted.
    encryption_keys: the names of the keys that are needed to read the others.
    head: how far the audit must reach.
    files: the SHA-256 of every file, by its path in the backup.
    """

    store: str
    made: str
    version: str
    revision: int
    secrets: int
    plain: int
    encryption_keys: tuple[str, ...]
    head: Head
    files: dict[str, str]
    format: int = 1


class VerifiedBackup(msgspec.Struct, frozen=True):
    """A backup that was read completely.

    audit: what is wrong with the chain of audit records in it, one sentence each.
    audit_from, audit_to: the first and last record in it.
    """

    manifest: Manifest
    bytes: int
    audit: tuple[str, ...]
    audit_from: int
    audit_to: int


class SnapshotStore(Store, Protocol):
    """A store that can write a snapshot of itself: etcd."""

    def snapshot(self) -> AsyncIterator[tuple[bytes, int]]: ...


class _Secrets(msgspec.Struct):
    total: int = 0
    plain: int = 0
    keys: set[str] = msgspec.field(default_factory=set)

    def take(self, values: Iterable[bytes]) -> None:
        for value in values:
            self.total += 1
            found = encrypted_records.split_record(value)
            if found is not None:
                self.keys.add(found.header.key)
            else:
                self.plain += 1


# Making a backup ----------------------------------------------------------------------------------


class Backup:
    """One backup in progress: a draft beside its final name until it is complete."""

    def __init__(self, target: Path, *, plain: bool, tell: Tell) -> None:
        """`plain`: whether the backup may hold Secrets that are not encrypted."""
        if target.exists():
            raise Invalid(f"{target} exists already: name a new directory for the backup")
        self._target, self._plain, self._tell = target, plain, tell
        self._draft = target.with_name(target.name + ".part")
        if self._draft.exists():
            shutil.rmtree(self._draft)
        private_directory(self._draft)

    def discard(self) -> None:
        """Remove what a failed backup left."""
        shutil.rmtree(self._draft, ignore_errors=True)

    def from_sqlite(self, store: Path, audits: Sequence[Path], made: str) -> Manifest:
        """Copy the embedded store while it is in use."""
        self._tell("Copying the store", 0.0)
        copied = copy_store(store, self._draft / STORE)
        self._tell("Checking Secrets", 0.0)
        secrets = _Secrets()
        end = keys.after_prefix(_SECRETS)
        secrets.take(value for _, value in read_prefix(copied.path, _SECRETS, end))
        head = keys.audit_head()
        heads = [head_of(value) for _, value in read_prefix(copied.path, head, head + "\0")]
        return self._finish("sqlite", copied.revision, secrets, heads, audits, made)

    async def from_etcd(self, store: SnapshotStore, audits: Sequence[Path], made: str) -> Manifest:
        """Take a snapshot of etcd. Its facts are read just before."""
        secrets, revision = _Secrets(), 0
        start: str | None = _SECRETS
        while start is not None:
            page = await store.range(start, keys.after_prefix(_SECRETS))
            secrets.take(it.value for it in page.records)
            start, revision = page.more_from, page.revision
        key = keys.audit_head()
        page = await store.range(key, key + "\0")
        path = self._draft / SNAPSHOT
        make_private(path)
        done = 0
        with path.open("wb") as file:
            async for blob, left in store.snapshot():
                file.write(blob)
                done += len(blob)
                self._tell("Copying etcd", done / max(1, done + left))
        _check_snapshot(path)
        heads = [head_of(it.value) for it in page.records]
        return self._finish("etcd", revision, secrets, heads, audits, made)

    def _finish(
        self,
        sort: str,
        revision: int,
        secrets: _Secrets,
        heads: Sequence[Head],
        audits: Sequence[Path],
        made: str,
    ) -> Manifest:
        if secrets.plain and not self._plain:
            raise Invalid(
                f"{secrets.plain} of {secrets.total} Secrets are not encrypted and would be "
                "readable in the backup: give the servers a key (--encryption-key-file) and wait "
                "until they report that all are encrypted, or add --plain-secrets"
            )
        # After the store: a record is in the files before the store's head names it.
        folder = private_directory(self._draft / FOLDER)
        for part in parts(audits):
            self._tell("Copying the audit", 0.0)
            write_private(folder / part.path.name, part.path.read_bytes())
        names = sorted(it for it in self._draft.rglob("*") if it.is_file())
        manifest = Manifest(
            store=sort,
            made=made,
            version=__version__,
            revision=revision,
            secrets=secrets.total,
            plain=secrets.plain,
            encryption_keys=tuple(sorted(secrets.keys)),
            head=heads[0] if heads else Head(),
            files={str(it.relative_to(self._draft)): self._hashed(it) for it in names},
        )
        write_private(self._draft / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
        self._draft.rename(self._target)
        sync_folder(self._target.parent)
        return manifest

    def _hashed(self, path: Path) -> str:
        return file_hash(path, lambda share: self._tell("Verifying", share))


def file_hash(path: Path, tell: Callable[[float], None] = lambda share: None) -> str:
    """Return the SHA-256 of a file."""
    digest, size, done = hashlib.sha256(), max(1, path.stat().st_size), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(done / size)
    return digest.hexdigest()


def _check_snapshot(path: Path) -> None:
    """Check the SHA-256 that etcd appends to its snapshot."""
    left, digest = path.stat().st_size - _DIGEST_BYTES, hashlib.sha256()
    with path.open("rb") as file:
        while left > 0:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                break
            digest.update(chunk)
            left -= len(chunk)
        if left != 0 or file.read() != digest.digest():
            raise Unavailable(f"{path} is damaged: it is not a snapshot of etcd", code=DAMAGED)


# Verifying a backup -------------------------------------------------------------------------------


def manifest_of(backup: Path) -> Manifest:
    """Return the manifest of a backup. Raises Invalid if there is none."""
    try:
        return msgspec.json.decode((backup / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise Invalid(f"{backup} is not a backup: {MANIFEST}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"{backup / MANIFEST} is damaged: {error}", code=DAMAGED) from None


def check(backup: Path, tell: Tell) -> VerifiedBackup:
    """Read a backup completely. Raises Unavailable if it is damaged. Needs no key."""
    manifest = manifest_of(backup)
    size = 0
    for name, expected in manifest.files.items():
        path = backup / name
        if not path.is_file():
            raise Unavailable(f"{path} is missing from the backup", code=DAMAGED)
        if file_hash(path, partial(tell, f"Reading {name}")) != expected:
            raise Unavailable(f"{path} was altered since the backup was made", code=DAMAGED)
        size += path.stat().st_size
    _check_store(backup, manifest, tell)
    tell("Checking the audit", 0.0)
    audit = verify_segments([backup / FOLDER], manifest.head)
    return VerifiedBackup(manifest, size, tuple(audit.findings), audit.first, audit.last)


def _check_store(backup: Path, manifest: Manifest, tell: Tell) -> None:
    tell("Checking the store", 0.0)
    if manifest.store == "etcd":
        _check_snapshot(backup / SNAPSHOT)
        return
    found: BackupContents = verify_store(backup / STORE)
    if found.revision != manifest.revision:
        raise Unavailable(
            f"{backup / STORE} is at revision {found.revision}, but the manifest says "
            f"{manifest.revision}",
            code=DAMAGED,
        )


# Restoring a backup -------------------------------------------------------------------------------


def restore(backup: Path, data: Path, tell: Tell) -> VerifiedBackup:
    """Restore a backup as the data of a stopped server. Raises Invalid or Unavailable.

    For etcd only the audit is restored here: its members restore the snapshot themselves.
    """
    there = (
        sorted(it.name for it in data.iterdir() if it.name not in BESIDE) if data.exists() else []
    )
    if there:
        raise Invalid(
            f"{data} is not empty ({', '.join(there[:5])}): name a directory with nothing but "
            "`pki` in it, or move its contents away"
        )
    found = check(backup, tell)
    private_directory(data)
    tell("Restoring the audit", 0.0)
    folder = private_directory(data / FOLDER)
    for part in parts([backup / FOLDER]):
        write_private(folder / part.path.name, part.path.read_bytes())
    if found.manifest.store != "etcd":
        # Last: a server starts on a directory only if it has a store.
        tell("Restoring the store", 0.0)
        restore_store(backup / STORE, data / STORE)
    return found
