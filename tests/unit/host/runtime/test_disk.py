"""What counts as too much on the disk: bytes, files without end, and trees nobody can walk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.runtime import disk

KIB = 1024


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.mark.parametrize("where", ["work/a", "work/deep/er/a", "tmp/a", "layer/upper/etc/a"])
def test_what_the_work_wrote_anywhere_is_counted(tmp_path: Path, where: str) -> None:
    """[H1]"""
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    assert not disk.is_exceeded(tmp_path, 100 * KIB)
    path.write_bytes(b"x" * 200 * KIB)
    assert disk.is_exceeded(tmp_path, 100 * KIB)
    assert not disk.is_exceeded(tmp_path, 400 * KIB)


def test_logs_and_what_links_lead_to_are_not_counted(tmp_path: Path, work: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"x" * 200 * KIB)
    (work / "link").symlink_to(tmp_path / "stdout")
    assert not disk.is_exceeded(tmp_path, 100 * KIB)


def test_a_tree_that_cannot_be_measured_is_too_much(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files, or deeper than any path may be long. [H1]"""
    for number in range(20):
        (work / str(number)).touch()
    monkeypatch.setattr(disk, "ENTRIES_MAX", 10)
    assert disk.is_exceeded(tmp_path, 10**12)
    monkeypatch.undo()
    assert not disk.is_exceeded(tmp_path, 10**12)
    at = os.open(work, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert disk.is_exceeded(tmp_path, 10**12)
    fd = os.open(tmp_path, os.O_RDONLY)
    disk.give_back(fd)
    os.close(fd)
    assert not work.exists()
