"""One process holds an agent's directory, and the directory keeps its id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.host.process import directory_lock
from holdfast.host.process.directory_lock import INSTALLATION, LOCK, PLACE, DirectoryLock
from holdfast.model.errors import Conflict, Invalid, Unavailable

ROOT = Path(__file__).resolve().parents[4]
_HOLD = """
import sys
from pathlib import Path
from holdfast.host.process.directory_lock import DirectoryLock
held = DirectoryLock(Path(sys.argv[1]), "n1")
print(held.installation, flush=True)
sys.stdin.read()
"""


def test_a_second_process_sees_who_has_it_and_gets_it_when_that_one_is_killed(
    tmp_path: Path,
) -> None:
    """[INV2]"""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        with pytest.raises(Conflict, match=rf"another agent \(process {other.pid}\) uses"):
            DirectoryLock(tmp_path, "n1")
        other.kill()
        other.wait()
    held = DirectoryLock(tmp_path, "n1")
    assert held.installation == name
    held.release()


def test_each_directory_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    names = []
    for folder in ("one", "two", "one"):
        held = DirectoryLock(tmp_path / folder, "n1")
        names.append(held.installation)
        held.release()
        held.release()
    assert names[0] == names[2] != names[1]
    assert (tmp_path / "one" / INSTALLATION).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "one" / LOCK).read_text() == f"{os.getpid()}\n"


def name_of(folder: Path) -> str:
    held = DirectoryLock(folder, "n1")
    held.release()
    return held.installation


def test_a_copied_directory_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent cannot know whether the work of the original has stopped. [INV2]"""
    first = tmp_path / "first"
    name = name_of(first)
    shutil.copytree(first, tmp_path / "copy")
    copied = name_of(tmp_path / "copy")
    assert copied != name
    assert name_of(tmp_path / "copy") == copied
    # One that is moved on its file system is the same one.
    first.rename(tmp_path / "moved")
    assert name_of(tmp_path / "moved") == name
    # A disk image in another machine has the same numbers of files.
    (tmp_path / "machine-id").write_text("another machine")
    monkeypatch.setattr(directory_lock, "MACHINE_ID", tmp_path / "machine-id")
    assert name_of(tmp_path / "moved") not in (name, copied)


def test_a_name_without_a_place_is_kept_and_its_place_written_down(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    (tmp_path / INSTALLATION).write_text("0" * 32 + "\n")
    assert name_of(tmp_path) == "0" * 32
    assert (tmp_path / PLACE).read_text()
    assert name_of(tmp_path) == "0" * 32


def test_an_earlier_version_still_finds_the_name_alone(tmp_path: Path) -> None:
    """Agents go back first in a rollback: one that refused its directory would not start."""
    name = name_of(tmp_path / "first")
    assert (tmp_path / "first" / INSTALLATION).read_text() == f"{name}\n"
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    assert (tmp_path / "copy" / INSTALLATION).read_text() == f"{name}\n"
    copied = name_of(tmp_path / "copy")
    assert (tmp_path / "copy" / INSTALLATION).read_text() == f"{copied}\n"


def test_a_copy_whose_new_name_could_not_be_completed_is_still_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent dies between the two files: the id of the original never comes back. [INV2]"""
    name = name_of(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    write = directory_lock.write_private

    def dies(path: Path, data: bytes) -> None:
        if path.name == PLACE:
            raise OSError(28, "no space left on device")
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(directory_lock, "write_private", dies)
        with pytest.raises(Unavailable):
            DirectoryLock(tmp_path / "copy", "n1")
    assert name_of(tmp_path / "copy") != name


@pytest.mark.parametrize("text", ["x", "A" * 32, "é", "0" * 33])
def test_an_ungiven_name_is_refused_and_the_lock_released(tmp_path: Path, text: str) -> None:
    (tmp_path / INSTALLATION).write_text(text)
    for _ in range(2):
        with pytest.raises((Invalid, Unavailable), match=INSTALLATION):
            DirectoryLock(tmp_path, "n1")


def test_a_directory_that_cannot_be_used_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be used: "):
        DirectoryLock(tmp_path / "file" / "below", "n1")
