"""Backups: every altered or missing part is noticed, and none overwrites existing data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.host.audit.segments import FOLDER, path_of
from holdfast.host.server import backups
from holdfast.host.server.backups import Backup, Manifest
from holdfast.model import keys
from holdfast.model.audit.audit_records import Head, Mutation, encode, line_of, make_record
from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.transaction import Put, Transaction
from holdfast.store.encryption import EncryptedStore
from holdfast.store.encryption.keyring import Keyring
from holdfast.store.sqlite import SqliteStore
from tests.unit.store.encryption.test_envelope import HERE, PLAIN, Service

OLD = b'{"metadata":{"name":"db"},"data":{"a":"from-before"}}'


def quiet(what: str, share: float = 0.0) -> None:
    """Ignores progress."""


def plane(folder: Path, *, plain: bool = False, records: int = 3) -> Path:
    """The data of a server that ran: a store with a Secret, and an audit up to the head."""
    folder.mkdir(mode=0o700)
    (folder / FOLDER).mkdir(mode=0o700)
    lines, last = [], Head()
    for number in range(1, records + 1):
        said = encode(Mutation(who="ann", verb="Create"))
        record = make_record(number, number, 0, last.hash, said)
        lines.append(line_of(record) + b"\n")
        last = Head(number=number, hash=record.hash, revision=number)
    path_of(folder / FOLDER, 1).write_bytes(b"".join(lines))

    async def write() -> None:
        inner = await SqliteStore.open(folder / "store.db")
        store = EncryptedStore(inner, await Keyring.open(Service(), plain=plain))
        # What was plain once is in the history, and in no backup.
        await inner.txn(Transaction((), (Put(HERE, OLD),)))
        await store.txn(Transaction((), (Put(HERE, PLAIN),)))
        await store.txn(Transaction((), (Put(keys.audit_head(), encode(last)),)))
        await store.close()

    asyncio.run(write())
    return folder


def backed_up(data: Path, target: Path, *, plain: bool = False) -> Manifest:
    draft = Backup(target, plain=plain, tell=quiet)
    try:
        return draft.from_sqlite(data / "store.db", [data / FOLDER], "2026-01-01T00:00:00Z")
    finally:
        draft.discard()


def test_a_backup_says_what_it_holds_and_is_whole(tmp_path: Path) -> None:
    data = plane(tmp_path / "data")
    manifest = backed_up(data, tmp_path / "copy")
    assert (manifest.secrets, manifest.plain, manifest.encryption_keys) == (1, 0, ("one",))
    found = backups.check(tmp_path / "copy", quiet)
    assert (found.audit, found.audit_from, found.audit_to) == ((), 1, 3)
    assert b"from-before" in (data / "store.db").read_bytes()
    for path in (tmp_path / "copy").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert not path.is_file() or b"from-before" not in path.read_bytes()


def test_plain_secrets_are_in_a_backup_only_if_that_is_said(tmp_path: Path) -> None:
    data = plane(tmp_path / "data", plain=True)
    with pytest.raises(Invalid, match=r"1 of 1 Secrets are not encrypted.*--plain-secrets"):
        backed_up(data, tmp_path / "copy")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["data"]
    assert backed_up(data, tmp_path / "copy", plain=True).plain == 1


@pytest.mark.parametrize("file", ["store.db", "audit/audit-0000000000000001.jsonl"])
def test_every_change_of_a_backup_is_found(tmp_path: Path, file: str) -> None:
    backed_up(plane(tmp_path / "data"), tmp_path / "copy")
    path = tmp_path / "copy" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(Unavailable, match="was altered"):
        backups.check(tmp_path / "copy", quiet)
    path.unlink()
    with pytest.raises(Unavailable, match="is missing"):
        backups.check(tmp_path / "copy", quiet)


def test_an_audit_that_was_cut_before_the_backup_is_found(tmp_path: Path) -> None:
    data = plane(tmp_path / "data")
    path = path_of(data / FOLDER, 1)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    backed_up(data, tmp_path / "copy")
    assert backups.check(tmp_path / "copy", quiet).audit


@pytest.mark.parametrize("there", ["store.db", "audit", "store.db.replaced-7", "notes"])
def test_a_restore_needs_an_empty_directory(tmp_path: Path, there: str) -> None:
    backed_up(plane(tmp_path / "data"), tmp_path / "copy")
    target = tmp_path / "target"
    (target / "pki").mkdir(parents=True, mode=0o700)
    target.chmod(0o700)
    (target / there).touch()
    with pytest.raises(Invalid, match="is not empty"):
        backups.restore(tmp_path / "copy", target, quiet)
    (target / there).unlink()
    backups.restore(tmp_path / "copy", target, quiet)
    with pytest.raises(Invalid, match="is not empty"):
        backups.restore(tmp_path / "copy", target, quiet)


def test_a_damaged_backup_restores_nothing(tmp_path: Path) -> None:
    backed_up(plane(tmp_path / "data"), tmp_path / "copy")
    (tmp_path / "copy" / "manifest.json").write_bytes(b"{")
    for call in (backups.check, lambda it, tell: backups.restore(it, tmp_path / "target", tell)):
        with pytest.raises(HoldfastError, match=r"manifest\.json is damaged"):
            call(tmp_path / "copy", quiet)
    assert not (tmp_path / "target").exists()


def test_a_backup_never_overwrites_another(tmp_path: Path) -> None:
    data = plane(tmp_path / "data")
    backed_up(data, tmp_path / "copy")
    with pytest.raises(Invalid, match="exists already"):
        backed_up(data, tmp_path / "copy")
