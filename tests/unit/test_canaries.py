"""The search for canaries: what it finds, what it leaves alone, and that it fails a session."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.canaries import MARK, canary, leaks

ROOT = Path(__file__).parents[2]
PLANTED = "s3cr3t-of-a-token"
CHUNK = b"\x00" * (8 << 20)


@pytest.fixture
def apart() -> Iterator[Path]:
    """Not below the directory of this session, which must not hold what is written here."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "content",
    [
        canary("x").encode(),
        base64.b64encode(canary("x").encode()),
        base64.b64encode(b"p=" + canary("x").encode()),
        base64.b64encode(b"p" + canary("x").encode()),
        f"token {PLANTED}.".encode(),
        hashlib.sha256(PLANTED.encode()).hexdigest().encode(),
        CHUNK + MARK.encode(),
        CHUNK[:-20] + MARK.encode(),
    ],
    ids=("plain", "base64", "base64 + 2", "base64 + 1", "planted", "hash", "far", "cut in two"),
)
def test_a_secret_is_found_in_any_form_and_place(apart: Path, content: bytes) -> None:
    for name in ("server.log", "decisions.db-wal", "audit/audit-1.jsonl"):
        path = apart / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"before " + content + b" after")
    assert len(list(leaks(apart, [PLANTED]))) == 3


@pytest.mark.parametrize(
    "name", ["store.db", "store.db-wal", "etcd/member/snap/db", "n1/uid/0/work/own", "n1.token"]
)
def test_a_reader_that_may_hold_secrets_is_left_alone(apart: Path, name: str) -> None:
    path = apart / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(canary("x"))
    (apart / "plain.log").write_text("canary-birds are yellow")
    assert list(leaks(apart)) == []


LEAKING = """
from tests.canaries import canary, plant


def test_leaks(tmp_path):
    (tmp_path / "server.log").write_text(canary("x") + " and " + plant("t0ps3cr3t"))
"""


def test_a_planted_leak_fails_a_session_in_which_all_tests_pass(apart: Path) -> None:
    folder = apart / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_leaks.py").write_text(LEAKING)
    words = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", f"--basetemp={apart / 'all'}"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(folder / "test_leaks.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in ran.stdout
    assert ran.returncode == 1, ran.stdout
    assert f"server.log: {MARK}" in ran.stdout
    assert "server.log: t0ps…, which was planted" in ran.stdout
