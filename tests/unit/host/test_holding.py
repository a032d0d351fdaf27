"""One process holds an agent's directory, and the directory keeps the name that it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.host.holding import INSTALLATION, LOCK, Holding
from holdfast.model.errors import Conflict, Invalid, Unavailable

ROOT = Path(__file__).resolve().parents[3]
_HOLD = """
import sys
from pathlib import Path
from holdfast.host.holding import Holding
held = Holding(Path(sys.argv[1]), "n1")
print(held.installation, flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_told_who_has_it_and_gets_it_when_that_one_is_killed(
    tmp_path: Path,
) -> None:
    """[C6.7, INV2]"""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        with pytest.raises(Conflict, match=rf"another agent \(process {other.pid}\) runs on"):
            Holding(tmp_path, "n1")
        other.kill()
        other.wait()
    held = Holding(tmp_path, "n1")
    assert held.installation == name
    held.let_go()


def test_each_directory_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    """[C6.7]"""
    names = []
    for folder in ("one", "two", "one"):
        held = Holding(tmp_path / folder, "n1")
        names.append(held.installation)
        held.let_go()
        held.let_go()
    assert names[0] == names[2] != names[1]
    assert (tmp_path / "one" / INSTALLATION).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "one" / LOCK).read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("text", ["x", "A" * 32, "é", "0" * 33])
def test_a_name_that_nobody_gave_is_refused_and_the_lock_let_go(tmp_path: Path, text: str) -> None:
    """[A12]"""
    (tmp_path / INSTALLATION).write_text(text)
    for _ in range(2):
        with pytest.raises((Invalid, Unavailable), match=INSTALLATION):
            Holding(tmp_path, "n1")


def test_a_directory_that_cannot_be_used_is_told_in_a_sentence(tmp_path: Path) -> None:
    """[A12]"""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be used: "):
        Holding(tmp_path / "file" / "below", "n1")
