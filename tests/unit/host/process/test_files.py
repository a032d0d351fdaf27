"""Files and directories that hold keys and Secrets are closed to other users."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.process.files import private_directory
from holdfast.model.errors import Invalid
from holdfast.store.sqlite.backup import backup, restore
from holdfast.store.sqlite.engine import SqliteEngine


@pytest.fixture(autouse=True)
def lax_umask() -> Iterator[None]:
    """The usual umask: files are readable by all unless they ask for more."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_is_made_closed_or_closed_while_it_is_empty(tmp_path: Path) -> None:
    assert mode(private_directory(tmp_path / "new")) == 0o700
    (tmp_path / "premade").mkdir()
    assert mode(private_directory(tmp_path / "premade")) == 0o700


def test_a_directory_in_use_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    """Closing it could lock its other users out; the message says what to do."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "notes").touch()
    with pytest.raises(Invalid, match=r"open to other users \(mode 755\).*chmod 700"):
        private_directory(shared)
    assert mode(shared) == 0o755
    shared.chmod(0o700)
    assert private_directory(shared) == shared


def test_a_store_its_log_and_its_backups_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    engine = SqliteEngine.open(path)
    assert {mode(file) for file in tmp_path.iterdir()} == {0o600}
    backup(path, tmp_path / "copy.db")
    engine.close()
    assert {mode(file) for file in tmp_path.iterdir()} == {0o600}
    restore(tmp_path / "copy.db", path, replace=True)
    assert {mode(file) for file in tmp_path.iterdir()} == {0o600}


def test_a_store_that_was_open_to_others_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteEngine.open(path).close()
    path.chmod(0o644)
    SqliteEngine.open(path).close()
    assert mode(path) == 0o600
