"""Real processes, files and faults: killed under load, a full disk, syncs that fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.contract import KEY_END
from holdfast.store.sqlite import SqliteStore, verify

WRITER = Path(__file__).with_name("store_writer.py")
ROOT = Path(__file__).parents[2]


class Acknowledged:
    """What the writer got as answers: the newest revision, and each key's newest value."""

    def __init__(self) -> None:
        self.revision = 0
        self.values: dict[str, tuple[int, str]] = {}
        self.count = 0

    def take(self, line: bytes) -> None:
        revision, key, value = line.decode().split()
        self.count += 1
        self.revision = max(self.revision, int(revision))
        self.values[key] = max(self.values.get(key, (0, "")), (int(revision), value))


def start(path: Path, life: int, *, value_bytes: int = 1, before: tuple[str, ...] = ()) -> Writer:
    command = [*before, sys.executable, str(WRITER), str(path), str(life), str(value_bytes)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


Writer = subprocess.Popen[bytes]


def lines(writer: Writer) -> Iterator[bytes]:
    """The complete lines; a killed writer's last one may be cut."""
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.endswith(b"\n") and line != b"open\n":
            yield line


def check(path: Path, acknowledged: Acknowledged) -> None:
    """Nothing acknowledged is missing, nothing is there by half, no revision went back."""
    verify(path)

    async def read() -> None:
        store = await SqliteStore.open(path)
        page = await store.range("", KEY_END)
        assert page.revision >= acknowledged.revision
        records = {r.key: r for r in page.records}
        for key, (revision, value) in acknowledged.values.items():
            left, right = records[f"left/{key}"], records[f"right/{key}"]
            assert (left.value, left.modified) == (right.value, right.modified)
            assert left.modified >= revision
            if left.modified == revision:
                assert left.value.rstrip(b".").decode() == value
        await store.close()

    asyncio.run(read())


def test_a_process_killed_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Again and again on one file, at any moment [INV10, INV11, C7.4]."""
    path = tmp_path / "store.db"
    acknowledged = Acknowledged()
    for life in range(6):
        writer = start(path, life, value_bytes=1_500)
        for number, line in enumerate(lines(writer)):
            acknowledged.take(line)
            if number == 300 + 217 * life:
                writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        _, errors = writer.communicate()
        assert errors == b""
        check(path, acknowledged)
    assert acknowledged.count > 4_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
    )
    if mounting.returncode != 0:
        pytest.skip(f"cannot mount here: {mounting.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_stops_the_store_and_a_larger_one_starts_it_again(small_disk: Path) -> None:
    """It says why, loses nothing acknowledged, and goes on once there is room [INV11]."""
    path = small_disk / "store.db"
    acknowledged = Acknowledged()
    writer = start(path, 1, value_bytes=1_500)
    for line in lines(writer):
        acknowledged.take(line)
    _, errors = writer.communicate()
    assert writer.wait() == 3
    reason = errors.decode()
    assert f"The store {path} has stopped" in reason
    assert "full" in reason or "No space left" in reason
    assert acknowledged.count > 50
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    check(path, acknowledged)
    writer = start(path, 2, value_bytes=1_500)
    for number, line in enumerate(lines(writer)):
        acknowledged.take(line)
        if number == 200:
            writer.kill()
    writer.communicate()
    check(path, acknowledged)


@pytest.mark.root
@pytest.mark.parametrize("when", [15, 40, 41, 200])
def test_a_sync_that_fails_in_the_kernel_stops_the_store(tmp_path: Path, when: int) -> None:
    """EIO from fdatasync, once: the store stops at once and says why [INV11]."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    path = tmp_path / "store.db"
    # The first ones belong to opening; they shall succeed.
    strace = ("strace", "-f", "-qq", "-o", str(tmp_path / "strace"), "-e", "trace=fsync,fdatasync")
    inject = ("-e", f"inject=fsync,fdatasync:error=EIO:when={when}")
    acknowledged = Acknowledged()
    writer = start(path, 1, value_bytes=1_500, before=(*strace, *inject))
    for line in lines(writer):
        acknowledged.take(line)
    _, errors = writer.communicate()
    if b"ptrace" in errors or b"Operation not permitted" in errors:
        pytest.skip(f"strace does not work here: {errors.decode().strip()}")
    assert writer.wait() == 3
    assert f"The store {path} has stopped" in errors.decode()
    assert "Input/output error" in errors.decode()
    calls = (tmp_path / "strace").read_text().splitlines()
    failed = [number for number, call in enumerate(calls) if "INJECTED" in call]
    assert len(failed) == 1
    # A failed sync is never tried again: the kernel would say yes.
    assert not [call for call in calls[failed[0] + 1 :] if "sync(" in call]
    check(path, acknowledged)


def test_a_file_in_use_by_a_server_is_backed_up_by_another_process(tmp_path: Path) -> None:
    """The command line needs no help of the server [INV11]."""
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    writer = start(path, 1, value_bytes=100)
    seen = Acknowledged()
    backing_up: subprocess.Popen[bytes] | None = None
    promised = Acknowledged()
    for number, line in enumerate(lines(writer)):
        seen.take(line)
        if number == 200:
            promised.revision, promised.values = seen.revision, dict(seen.values)
            code = (
                "import sys, pathlib; from holdfast.store.sqlite import backup;"
                "backup(*map(pathlib.Path, sys.argv[1:]))"
            )
            backing_up = subprocess.Popen(
                [sys.executable, "-c", code, str(path), str(copy)],
                env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            )
        elif number > 200 and backing_up is not None and backing_up.poll() is not None:
            writer.kill()
    writer.communicate()
    assert backing_up is not None
    assert backing_up.returncode == 0
    check(copy, promised)
    check(path, seen)
