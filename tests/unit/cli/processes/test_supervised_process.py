"""Logs of parts: bounded, and honest about the present life."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.cli.processes.supervised_process import BYTES_MAX, TAIL_BYTES, ChildLog


def write(log: ChildLog, text: str) -> int:
    """What a part does that was just started; its descriptor."""
    descriptor = log.open()
    os.write(descriptor, text.encode())
    return descriptor


def test_only_the_present_life_is_quoted(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "a.log")
    os.close(write(log, "old output\n"))
    os.close(write(log, "one\n\ntwo\n"))
    assert log.output() == "one\n\ntwo\n"
    assert log.last_lines(5) == ["one", "two"]
    assert "old output" in log.path.read_text()


def test_a_long_log_is_cut_while_its_part_goes_on_writing(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "a.log")
    descriptor = write(log, "x" * BYTES_MAX + "y\n")
    log.bound()
    assert log.path.stat().st_size == 0
    assert (tmp_path / "a.log.1").stat().st_size == BYTES_MAX + 2
    os.write(descriptor, b"later\n")
    os.close(descriptor)
    assert log.path.read_bytes() == b"later\n"
    assert log.last_lines(1) == ["later"]
    log.bound()
    assert log.path.read_bytes() == b"later\n"


def test_a_quote_is_short_and_cannot_command_the_terminal(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "a.log")
    os.close(write(log, "a" * 10 * TAIL_BYTES + "\x1b[2J\n"))
    assert len(log.output()) == TAIL_BYTES
    assert "\x1b" not in log.output()


def test_a_log_is_for_its_owner_alone_and_may_be_removed(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "a.log")
    os.close(write(log, "x\n"))
    assert log.path.stat().st_mode & 0o077 == 0
    log.path.unlink()
    log.bound()
    assert "cannot read" in log.output()
