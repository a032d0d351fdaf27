"""What work said can be read after its directory is gone, within bounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.attempts import AttemptFolders
from holdfast.host.runtime.logs import ended
from holdfast.host.runtime.logs.ended import EndedLogs
from holdfast.host.runtime.logs.reading import LogQuery, LogReader

LINE = b"2026-11-16T00:00:01.000000000Z stdout F said\n"


class House:
    def __init__(self, folder: Path) -> None:
        self.attempts = AttemptFolders(folder)
        self.attempts.prepare()
        self.logs = EndedLogs(self.attempts)

    def work(self, uid: str, numbers: int = 1, size: int = 1) -> None:
        for number in range(numbers):
            self.attempts.make(Attempt(uid, number), 0o700)
            folder = self.attempts.root / uid / str(number)
            (folder / "stdout").write_bytes(LINE * size)
            (folder / "stderr.1").write_bytes(b"")
            (folder / "work").mkdir()
            (folder / "work" / "secret").write_text("hush")

    def end(self, uid: str) -> None:
        self.logs.keep(uid)
        self.attempts.clear(uid)

    def kept(self) -> list[str]:
        return sorted(os.listdir(self.attempts.root / ended.FOLDER))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "replicas")


def test_logs_are_read_when_the_rest_is_gone(house: House) -> None:
    """The work's own files are not kept, and what is kept is not taken for work."""
    house.work("one", numbers=2)
    house.end("one")
    assert house.attempts.uids() == []
    assert house.attempts.numbers("one") == []
    assert house.logs.numbers("one") == [1, 0]
    with house.logs.of(Attempt("one", 1)) as folder:
        reader = LogReader(folder, LogQuery())
    assert reader.batch() == b"said\n"
    reader.close()
    names = {path.name for path in (house.attempts.root / ended.FOLDER).rglob("*")}
    assert names == {"one", "0", "1", "stdout", "stderr.1"}


def test_keeping_again_after_a_crash_loses_nothing(house: House) -> None:
    house.work("one")
    house.logs.keep("one")
    house.logs.keep("one")
    house.end("one")
    assert house.logs.numbers("one") == [0]
    assert house.logs.numbers("never-there") == []


def test_what_is_kept_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, by size and by age, the oldest first."""
    monkeypatch.setattr(ended, "KEPT_MAX", 3)
    earlier_s = time.time() - 3_600
    for number in range(5):
        house.work(f"r{number}")
        house.end(f"r{number}")
        folder = house.attempts.root / ended.FOLDER / f"r{number}"
        os.utime(folder, (0, earlier_s + number))
    assert house.kept() == ["r2", "r3", "r4"]
    # As the next agent finds them.
    house.logs = EndedLogs(house.attempts)
    monkeypatch.setattr(ended, "KEPT_BYTES_MAX", 3 * len(LINE))
    house.work("r5", size=2)
    house.end("r5")
    assert house.kept() == ["r4", "r5"]
    monkeypatch.setattr(ended, "KEPT_S", 60)
    house.work("r6")
    house.end("r6")
    assert house.kept() == ["r5", "r6"]
