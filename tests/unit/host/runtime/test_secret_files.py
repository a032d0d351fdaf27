"""What files from Secrets take of the memory that all tenants share, and to look after them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import secret_files
from holdfast.host.runtime.secret_files import SecretFiles
from holdfast.model.errors import Unavailable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to other users")
PAGE = os.sysconf("SC_PAGE_SIZE")
OWNER = (1_000, 1_000)
FIRST, SECOND = Attempt("a", 0), Attempt("b", 0)


def put(kept: SecretFiles, of: Attempt, name: str, content: bytes = b"") -> Path:
    path = kept.path("team", of, name)
    kept.write(path, content, 0o600, OWNER)
    return path


def test_empty_files_and_those_of_earlier_agents_count_for_their_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes an inode of the kernel's memory, and time to look after."""
    monkeypatch.setattr(secret_files, "TENANT_BYTES_MAX", 4 * PAGE)
    put(SecretFiles(tmp_path), FIRST, "earlier", b"x")
    kept = SecretFiles(tmp_path)
    for name in ("one", "two", "three"):
        put(kept, SECOND, name)
    with pytest.raises(Unavailable, match="would exceed"):
        put(kept, SECOND, "four")
    other = kept.path("other", FIRST, "one")
    kept.write(other, b"", 0o600, OWNER)
    kept.remove(FIRST)
    put(kept, SECOND, "four")
    with pytest.raises(Unavailable, match="would exceed"):
        put(kept, SECOND, "five")


def test_a_file_is_written_without_a_look_at_all_others_of_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tenants' starts wait for it: thousands of files of one must not cost the others."""
    kept = SecretFiles(tmp_path)
    put(kept, FIRST, "one")
    looked: list[Path] = []
    real = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: (looked.append(path), real(path))[1])
    for number in range(20):
        put(kept, SECOND, str(number))
    assert not looked


def test_work_that_keeps_replaced_files_open_keeps_no_memory_by_it(tmp_path: Path) -> None:
    """Tokens are replaced for as long as work runs: each old one that it has open would stay, and
    counts in no share. One that was replaced just now can be read to its end.
    """
    kept = SecretFiles(tmp_path)
    path = put(kept, FIRST, "token", b"0" * PAGE)
    opened = [path.open("rb")]
    for number in (b"1", b"2", b"3"):
        assert kept.replace(path, number * PAGE)
        opened.append(path.open("rb"))
    try:
        assert [os.fstat(it.fileno()).st_size for it in opened] == [0, 0, PAGE, PAGE]
        assert [it.read(1) for it in opened[2:]] == [b"2", b"3"]
        about = path.stat()
        assert (about.st_uid, about.st_mode & 0o777) == (OWNER[0], 0o600)
    finally:
        for file in opened:
            file.close()


def test_a_token_that_comes_after_the_end_of_its_work_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SecretFiles(tmp_path)
    path = put(kept, FIRST, "token", b"first")
    real = Path.lstat

    def late(of: Path) -> os.stat_result:
        found = real(of)
        kept.remove(FIRST)
        return found

    monkeypatch.setattr(Path, "lstat", late)
    with pytest.raises(FileNotFoundError):
        kept.replace(path, b"second")
    assert not list(tmp_path.glob("*/*"))
