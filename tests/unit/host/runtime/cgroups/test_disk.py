"""What counts as too much on the disk: bytes, files, and trees that cannot be walked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.host.runtime.cgroups import disk

KIB = 1024


def is_exceeded(folder: Path, most: int, *processes: int) -> bool:
    return disk.use(folder, processes, most).is_beyond(most)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.mark.parametrize("where", ["work/a", "work/deep/er/a", "tmp/a", "layer/upper/etc/a"])
def test_what_the_work_wrote_anywhere_is_counted(tmp_path: Path, where: str) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True)
    assert not is_exceeded(tmp_path, 100 * KIB)
    path.write_bytes(b"x" * 200 * KIB)
    assert is_exceeded(tmp_path, 100 * KIB)
    assert not is_exceeded(tmp_path, 400 * KIB)


def test_logs_and_what_links_lead_to_are_not_counted(tmp_path: Path, work: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"x" * 200 * KIB)
    (work / "link").symlink_to(tmp_path / "stdout")
    assert not is_exceeded(tmp_path, 100 * KIB)


def test_a_tree_that_cannot_be_measured_is_too_much(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files, or deeper than any path may be long."""
    for number in range(20):
        (work / str(number)).touch()
    monkeypatch.setattr(disk, "ENTRIES_MAX", 10)
    assert is_exceeded(tmp_path, 10**12)
    monkeypatch.undo()
    assert not is_exceeded(tmp_path, 10**12)
    at = os.open(work, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert is_exceeded(tmp_path, 10**12)
    fd = os.open(tmp_path, os.O_RDONLY)
    disk.give_back(fd)
    os.close(fd)
    assert not work.exists()


HOLDS = {
    "open": "f = open('{path}', 'wb'); f.write(b'x' * {size}); f.flush(); os.unlink('{path}')",
    "without a name": (
        "f = os.open('{folder}', os.O_TMPFILE | os.O_WRONLY); os.write(f, b'x' * {size})"
    ),
    "mapped": (
        "f = os.open('{path}', os.O_RDWR | os.O_CREAT); os.write(f, b'x' * {size});"
        " kept = mmap.mmap(f, {size}); os.close(f); os.unlink('{path}');"
        # `mmap` has a descriptor of its own.
        " os.closerange(3, 64)"
    ),
}


@pytest.mark.parametrize("how", HOLDS)
def test_a_file_without_a_name_counts_while_a_process_keeps_it(
    tmp_path: Path, work: Path, how: str
) -> None:
    """Work that unlinks what it writes would else fill the disk unseen."""
    if how == "mapped" and os.geteuid() != 0:
        pytest.skip("only root may look at what another process has mapped")
    size = 400 * KIB
    script = HOLDS[how].format(path=work / "full", folder=work, size=size)
    script = f"import mmap, os, sys\n{script}\nprint('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        assert not list(work.iterdir())
        assert is_exceeded(tmp_path, 300 * KIB, holder.pid)
        # Once, though a child has it as well; a process that is gone has nothing.
        assert not is_exceeded(tmp_path, 600 * KIB, holder.pid, holder.pid)
        assert not is_exceeded(tmp_path, 300 * KIB, os.getpid())
    assert not is_exceeded(tmp_path, 300 * KIB, holder.pid)


IN_A_THREAD = """
import ctypes, mmap, os, platform, sys, threading
libc, written = ctypes.CDLL(None), threading.Event()
def keep():
    {before}
    f = os.open('{path}', os.O_RDWR | os.O_CREAT)
    os.write(f, b'x' * {size})
    os.unlink('{path}')
    {after}
    written.set()
    sys.stdin.read()
threading.Thread(target=keep).start()
written.wait()
print('ready', flush=True)
{then}
"""
# CLONE_FILES: descriptors of its own.
APART = {"before": "libc.unshare(0x400)", "after": "", "then": ""}
# The process runs on without its first thread, whose files and memory /proc shows as none.
FIRST_ENDS = {
    "before": "",
    "after": "",
    "then": "libc.syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)",
}
MAPPED = {"after": "kept = mmap.mmap(f, {size}); os.closerange(3, 64)"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at all threads of others")
@pytest.mark.parametrize("how", [APART, FIRST_ENDS, FIRST_ENDS | MAPPED])
def test_no_thread_keeps_a_file_without_a_name_unseen(
    tmp_path: Path, work: Path, how: dict[str, str]
) -> None:
    """Nor does it count for each of the threads that share it."""
    size = 400 * KIB
    parts = {name: text.replace("{size}", str(size)) for name, text in how.items()}
    script = IN_A_THREAD.format(path=work / "full", size=size, **parts)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        first = Path(f"/proc/{holder.pid}/task/{holder.pid}/stat")
        while parts["then"] and first.read_text().rpartition(") ")[2][0] != "Z":
            pass
        assert is_exceeded(tmp_path, 300 * KIB, holder.pid)
        assert not is_exceeded(tmp_path, 600 * KIB, holder.pid)


def test_connections_are_no_files_of_a_disk(tmp_path: Path, work: Path) -> None:
    """Else a tenant that opens many to another one's server makes that the one with most files,
    and has it ended when there are few left.
    """
    before = disk.use(tmp_path, [os.getpid()]).entries
    pipes = [fd for _ in range(100) for fd in os.pipe()]
    try:
        assert disk.use(tmp_path, [os.getpid()]).entries == before
        with tempfile.TemporaryFile(dir=work):
            assert disk.use(tmp_path, [os.getpid()]).entries == before + 1
    finally:
        for fd in pipes:
            os.close(fd)


def test_more_descriptors_than_can_be_looked_at_are_too_much(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "ENTRIES_MAX", 1)
    assert is_exceeded(tmp_path, 10**12, os.getpid())


def test_a_disk_is_low_by_bytes_or_by_files_and_by_a_share_if_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(size: int, left: int, files: int, files_left: int) -> disk.DiskShortage:
        about = os.statvfs_result((1, 1, size, left, left, files, files_left, files_left, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: about)
        return disk.lack(tmp_path)

    gib = 1 << 30
    assert of(100 * gib, gib, 1_000, 60) is disk.DiskShortage.NOTHING
    assert of(100 * gib, gib - 1, 1_000, 60) is disk.DiskShortage.BYTES
    assert of(1_000, 50, 0, 0) is disk.DiskShortage.NOTHING
    assert of(1_000, 49, 0, 0) is disk.DiskShortage.BYTES
    assert of(1_000, 500, 1_000, 49) is disk.DiskShortage.FILES
    monkeypatch.undo()
    assert disk.lack(tmp_path / "none") is disk.DiskShortage.NOTHING


def test_who_keeps_to_what_is_set_aside_is_not_why_the_disk_is_low() -> None:
    small, large = disk.Use(10, 5_000), disk.Use(100, 3)
    assert (
        large.excess(disk.DiskShortage.BYTES, 100) == 0 < small.excess(disk.DiskShortage.BYTES, 0)
    )
    assert large.excess(disk.DiskShortage.FILES, 0) < 0 < small.excess(disk.DiskShortage.FILES, 10)
