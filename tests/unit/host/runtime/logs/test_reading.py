"""A log is read as it was said: merged by time, from any line on, whatever rotates meanwhile."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host.runtime.logs import log_files
from holdfast.host.runtime.logs import reading as log_reading
from holdfast.host.runtime.logs.log_files import SKIPPED, LogPrinter, LogRecord, moment, parse
from holdfast.host.runtime.logs.reading import LogQuery, LogReader

STREAMS = ("stdout", "stderr")


def at(second: int) -> bytes:
    return f"2026-11-16T00:{second // 60:02d}:{second % 60:02d}.000000000Z".encode()


class Shim:
    """Writes and rotates as shim_logs.c does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in STREAMS:
            (folder / name).touch()

    def say(self, second: int, text: bytes, stream: int = 0, kind: bytes = b"F") -> None:
        line = b" ".join((at(second), STREAMS[stream].encode(), kind, text)) + b"\n"
        with (self.folder / STREAMS[stream]).open("ab") as file:
            file.write(line)

    def rotate(self, stream: int = 0) -> None:
        name = STREAMS[stream]
        for age in range(log_files.FILES - 1, 0, -1):
            older = self.folder / (f"{name}.{age - 1}" if age > 1 else name)
            if older.exists():
                older.rename(self.folder / f"{name}.{age}")
        (self.folder / name).touch()


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path)


@contextmanager
def reading(of: Shim, **wish: object) -> Iterator[LogReader]:
    fd = os.open(of.folder, os.O_RDONLY)
    reader = LogReader(fd, LogQuery(**wish))  # type: ignore[arg-type]
    os.close(fd)
    try:
        yield reader
    finally:
        reader.close()


def everything(reader: LogReader) -> bytes:
    return b"".join(iter(reader.batch, b""))


def read(of: Shim, **wish: object) -> bytes:
    with reading(of, **wish) as reader:
        return everything(reader)


@pytest.mark.parametrize("follow", [False, True])
def test_no_more_last_lines_are_looked_for_than_fit_in_memory(
    shim: Shim, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    """Whatever a server asks for."""
    monkeypatch.setattr(log_reading, "TAIL_MAX", 3)
    for second in range(9):
        shim.say(second, b"%d" % second)
    assert read(shim, tail=10**9, follow=follow) == b"6\n7\n8\n"
    assert read(shim, tail=2, follow=follow) == b"7\n8\n"


def test_the_last_lines_are_those_that_were_last_when_they_were_asked_for(shim: Shim) -> None:
    """A reader that does not follow gets no more of them than it asked for."""
    for second in range(3):
        shim.say(second, b"old")
    with reading(shim, tail=2) as reader, reading(shim, tail=0) as none:
        shim.say(3, b"new")
        assert everything(reader) == b"old\nold\n"
        assert reader.is_full
        assert everything(none) == b""
    with reading(shim, tail=2, follow=True) as follower:
        assert everything(follower) == b"old\nnew\n"
        shim.say(4, b"newer")
        assert everything(follower) == b"newer\n"
    with reading(shim, tail=2) as long_line:
        shim.say(5, b"not ", kind=b"P")
        shim.say(5, b"asked for")
        assert everything(long_line) == b"new\nnewer\n"


said = st.lists(
    st.tuples(
        st.integers(0, 5),  # seconds since the last one of either stream
        st.integers(0, 1),
        st.text("ab é", max_size=5),
        st.booleans(),  # whether the stream's file is rotated after it
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(said, st.none() | st.integers(0, 50), st.integers(0, 200), st.booleans())
def test_what_is_read_is_what_was_said_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[tuple[int, int, str, bool]],
    tail: int | None,
    since: int,
    timestamps: bool,
) -> None:
    """For any rotation: sorted by time, output before errors of one moment, the last lines."""
    shim = Shim(tmp_path_factory.mktemp("log"))
    second, lines = 0, []
    rotations = [0, 0]
    kept: list[tuple[int, int, int, str]] = []
    for gap, stream, text, rotates in said:
        second += gap
        shim.say(second, text.encode(), stream)
        kept.append((second, stream, rotations[stream], text))
        if rotates:
            shim.rotate(stream)
            rotations[stream] += 1
    for when, stream, file, text in kept:
        if rotations[stream] - file < log_files.FILES:
            lines.append((when, stream, text))
    lines.sort(key=lambda line: line[:2])
    if tail is not None:
        lines = lines[max(0, len(lines) - tail) :] if tail else []
    shown = [
        (at(when) + b" " if timestamps else b"") + text.encode() + b"\n"
        for when, _, text in lines
        if when >= since
    ]
    wish = {"tail": tail, "since": at(since).decode(), "timestamps": timestamps}
    assert read(shim, **wish) == b"".join(shown)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.booleans()), max_size=40))
def test_a_follower_sees_each_line_once_and_a_note_of_what_it_missed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, bool]]
) -> None:
    """However often the files rotate between two looks, lines are in order or said to be gone."""
    shim = Shim(tmp_path_factory.mktemp("log"))
    got = b""
    with reading(shim, follow=True) as reader:
        for number, (stream, rotates, looks) in enumerate(steps):
            shim.say(number, b"%d" % number, stream)
            if rotates:
                shim.rotate(stream)
            if looks:
                got += everything(reader)
        got += everything(reader)
    for stream in (0, 1):
        expected = [n for n, step in enumerate(steps) if step[0] == stream]
        seen = [int(line) for line in got.splitlines() if line != SKIPPED and int(line) in expected]
        assert seen == sorted(set(seen))
        if SKIPPED not in got:
            assert seen == expected
    # Three files hold what three rotations leave; with fewer nothing may be missed.
    for stream in (0, 1):
        if sum(rotates for of, rotates, _ in steps if of == stream) >= log_files.FILES:
            return
    assert SKIPPED not in got


def test_a_follower_goes_on_over_rotations_with_what_was_written_just_before(shim: Shim) -> None:
    shim.say(1, b"one")
    with reading(shim, follow=True) as reader:
        assert everything(reader) == b"one\n"
        shim.say(2, b"two")
        shim.rotate()
        shim.say(3, b"three")
        assert everything(reader) == b"two\nthree\n"
        for number in range(4):
            shim.rotate()
            shim.say(4, b"%d" % number)
        assert everything(reader) == SKIPPED + b"\n1\n2\n3\n"


def test_the_tail_counts_lines_and_not_pieces(shim: Shim) -> None:
    shim.say(1, b"before")
    for kind in (b"P", b"P", b"F"):
        shim.say(2, b"x" * 10, kind=kind)
    shim.say(3, b"after")
    assert read(shim, tail=2) == b"x" * 30 + b"\nafter\n"
    assert read(shim, tail=2, timestamps=True) == (
        at(2) + b" " + b"x" * 30 + b"\n" + at(3) + b" after\n"
    )


def test_lines_of_two_streams_are_never_run_together(shim: Shim) -> None:
    shim.say(1, b"no end yet", kind=b"P")
    shim.say(2, b"an error", stream=1)
    shim.say(3, b"the end")
    assert read(shim) == b"no end yet\nan error\nthe end\n"


def test_what_was_lost_is_said(shim: Shim) -> None:
    shim.say(1, b"4711", kind=b"L")
    assert read(shim) == b"[holdfast: 4711 bytes were lost here: they could not be written]\n"


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 9, 1_000])
def test_no_more_bytes_are_read_than_were_asked_for(shim: Shim, limit: int) -> None:
    shim.say(1, b"one")
    shim.say(2, b"two", stream=1)
    assert read(shim, limit_bytes=limit) == b"one\ntwo\n"[:limit]


def test_an_order_that_a_clock_turned_round_is_that_of_the_file(shim: Shim) -> None:
    for second, text in ((9, b"first"), (3, b"second"), (10, b"third")):
        shim.say(second, text)
    assert read(shim) == b"first\nsecond\nthird\n"
    assert read(shim, since=at(5).decode()) == b"first\nsecond\nthird\n"


def test_a_record_that_is_being_written_waits_for_its_end(shim: Shim) -> None:
    head = at(1) + b" stdout F half"
    (shim.folder / "stdout").write_bytes(head)
    with reading(shim, follow=True) as reader:
        assert everything(reader) == b""
        (shim.folder / "stdout").write_bytes(head + b" and half\n")
        assert everything(reader) == b"half and half\n"


def test_a_file_without_lines_is_not_collected_in_memory(shim: Shim) -> None:
    (shim.folder / "stdout").write_bytes(b"x" * 1_000_000)
    with reading(shim) as reader:
        batch = reader.batch()
        assert 0 < len(batch) < 300_000


def test_a_batch_is_bounded_however_much_there_is(shim: Shim) -> None:
    for number in range(2_000):
        shim.say(number % 3_000, b"y" * 100, stream=number % 2)
    with reading(shim) as reader:
        batches = list(iter(reader.batch, b""))
    assert len(batches) > 2
    assert all(len(batch) < 2 * (64 << 10) for batch in batches)
    assert b"".join(batches).count(b"\n") == 2_000


def test_a_reader_that_was_closed_reads_nothing_more(shim: Shim) -> None:
    """Its descriptors may belong to other files by then."""
    shim.say(1, b"one")
    with reading(shim) as reader:
        pass
    assert reader.batch() == b""


def test_an_attempt_that_said_nothing_has_an_empty_log(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    reader = LogReader(fd, LogQuery(tail=5))
    os.close(fd)
    assert everything(reader) == b""
    reader.close()


@pytest.mark.parametrize("line", [b"", b"no record", at(1), at(1) + b" stdout X a", b"\xff" * 50])
def test_what_no_shim_wrote_is_shown_as_it_is(line: bytes) -> None:
    assert parse(line, 0, at(7)) == LogRecord(at(7), 0, b"F", line)


def test_times_are_written_as_records_have_them() -> None:
    given_ = datetime(2026, 11, 16, 1, 2, 3, 456, tzinfo=UTC)
    assert moment(given_) == b"2026-11-16T01:02:03.000456000Z"
    assert len(moment(given_)) == len(at(1))


def test_a_piece_at_the_very_end_stays_open() -> None:
    printer = LogPrinter(has_times=False)
    assert printer.text(LogRecord(at(1), 0, b"P", b"> ")) == b"> "
    assert printer.text(LogRecord(at(2), 0, b"F", b"typed")) == b"typed\n"


def test_finding_the_last_lines_takes_a_part_of_the_memory_of_one_file(shim: Shim) -> None:
    """The shortest lines that work can print, and as many of them as anyone may ask for: 64
    readers at once must not take gigabytes of the agent.
    """
    line = at(7) + b" stdout F \n"
    for name in STREAMS:
        (shim.folder / name).write_bytes(line * (log_files.FILE_BYTES // len(line)))
    tracemalloc.start()
    try:
        with reading(shim, tail=log_reading.TAIL_MAX) as reader:
            peak = tracemalloc.get_traced_memory()[1]
            assert reader.batch()
    finally:
        tracemalloc.stop()
    assert peak < log_files.FILE_BYTES / 4


@pytest.mark.parametrize("block", [1, 7, 41, 64, 100, 1_000])
def test_the_last_lines_are_found_wherever_blocks_end(
    shim: Shim, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Also of lines in pieces, and before and after what was lost."""
    kinds = [b"F", b"P", b"P", b"F", b"P", b"L", b"F", b"F", b"P", b"F"]
    for second, kind in enumerate(kinds):
        shim.say(second, b"%d" % second, kind=kind)
    whole = read(shim).splitlines(keepends=True)
    monkeypatch.setattr(log_files, "READ_BYTES", block)
    for tail in range(len(whole) + 1):
        with reading(shim, tail=tail, follow=True) as reader:
            assert everything(reader) == b"".join(whole[len(whole) - tail :]), tail
