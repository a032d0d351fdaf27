"""Export: each record once and in order, and none is removed before it was exported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.host.audit.export import (
    BATCH,
    CURSOR,
    AuditExporter,
    FileTarget,
    HttpsTarget,
    Line,
    SyslogTarget,
    target_of,
)
from holdfast.host.audit.journal import Journal, JournalLimits
from holdfast.model.audit.audit_records import Head, record_of
from holdfast.model.errors import Invalid, Unavailable
from tests.audit_chains import chain, head_at, lines

CHAIN = chain(20)
LINES = lines(CHAIN)
SMALL = JournalLimits(segment_bytes=len(LINES[0]) * 4, segment_age_ms=1 << 60)


class Elsewhere:
    """A target that accepts records, or refuses them on demand."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.refuses = False

    async def take(self, given: Sequence[Line]) -> None:
        if self.refuses:
            raise Unavailable("not now")
        self.taken += [record.number for record, _ in given]


def journal(folder: Path, count: int = 20, limits: JournalLimits = SMALL) -> Journal:
    made = Journal(folder, limits)
    made.resume(Head())
    for place in range(0, count, 2):
        made.append(LINES[place : place + 2])
    return made


def test_all_that_the_head_names_is_sent_once_and_the_next_life_goes_on(tmp_path: Path) -> None:
    journal(tmp_path)
    there, head = Elsewhere(), head_at(CHAIN[11])
    exporting = AuditExporter(tmp_path, there, lambda: head)
    asyncio.run(exporting.once())
    asyncio.run(exporting.once())
    assert there.taken == list(range(1, 13))
    again = AuditExporter(tmp_path, there, lambda: head_at(CHAIN[19]))
    asyncio.run(again.once())
    assert there.taken == list(range(1, 21))


def test_what_is_not_taken_is_sent_again(tmp_path: Path) -> None:
    journal(tmp_path)
    there = Elsewhere()
    exporting = AuditExporter(tmp_path, there, lambda: head_at(CHAIN[19]))
    there.refuses = True
    with pytest.raises(Unavailable):
        asyncio.run(exporting.once())
    assert not (tmp_path / CURSOR).exists()
    there.refuses = False
    asyncio.run(exporting.once())
    assert there.taken == list(range(1, 21))


def test_a_cursor_that_cannot_be_read_leaves_nothing_out(tmp_path: Path) -> None:
    journal(tmp_path)
    (tmp_path / CURSOR).write_bytes(b"?")
    there = Elsewhere()
    asyncio.run(AuditExporter(tmp_path, there, lambda: head_at(CHAIN[19])).once())
    assert there.taken == list(range(1, 21))


def test_the_journal_keeps_what_was_not_exported(tmp_path: Path) -> None:
    sent = [0]
    limits = JournalLimits(segment_bytes=SMALL.segment_bytes, segment_age_ms=1 << 60, keep_bytes=1)
    made = Journal(tmp_path, limits, lambda: sent[0])
    made.resume(Head())
    for place in range(0, 20, 2):
        assert made.append(LINES[place : place + 2]).floor == 1
    sent[0] = 9
    assert made.append([]).floor == 10
    sent[0] = 20
    assert made.append([]).floor == 17


BOUNDED = JournalLimits(
    segment_bytes=SMALL.segment_bytes,
    segment_age_ms=1 << 60,
    keep_bytes=SMALL.segment_bytes,
    unsent_bytes=3 * SMALL.segment_bytes,
)


def size_of(folder: Path) -> int:
    return sum(it.stat().st_size for it in folder.glob("audit-*.jsonl"))


def test_a_target_that_is_away_does_not_fill_the_disk_and_nothing_unsent_is_lost(
    tmp_path: Path,
) -> None:
    """Beyond the limit nothing is appended until the target is back: the store keeps it."""
    sent = [0]
    made = Journal(tmp_path, BOUNDED, lambda: sent[0])
    made.resume(Head())
    appended = 0
    while size_of(tmp_path) <= BOUNDED.unsent_bytes:
        assert made.append(LINES[appended : appended + 1]).floor == 1
        appended += 1
    with pytest.raises(OSError, match="wait for --audit-export, whose target does not accept them"):
        made.append(LINES[appended : appended + 1])
    sent[0] = appended
    assert made.append(LINES[appended : appended + 1]).floor > 1


def test_with_forget_the_oldest_go_unsent_and_the_journal_is_bounded_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Journal(tmp_path, BOUNDED, lambda: 0, drops_unsent=True)
    made.resume(Head())
    for line in LINES:
        made.prune(made.append([line]).floor)
    assert size_of(tmp_path) <= BOUNDED.unsent_bytes + 2 * BOUNDED.segment_bytes
    assert "are removed unexported" in caplog.text


def test_files_get_the_very_lines(tmp_path: Path) -> None:
    target = target_of(f"file:{tmp_path / 'out'}", "one")
    assert isinstance(target, FileTarget)
    pairs = list(zip(CHAIN, LINES, strict=True))
    asyncio.run(target.take(pairs[:3]))
    asyncio.run(target.take(pairs[3:5]))
    (file,) = (tmp_path / "out").iterdir()
    assert file.read_bytes() == b"".join(line + b"\n" for line in LINES[:5])
    assert file.stat().st_mode & 0o777 == 0o600


def test_syslog_gets_counted_frames() -> None:
    heard = bytearray()

    async def story() -> None:
        over = asyncio.Event()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.extend(await reader.read())
            writer.close()
            over.set()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            target = target_of(f"syslog://127.0.0.1:{port}", "one")
            assert isinstance(target, SyslogTarget)
            await target.take(list(zip(CHAIN, LINES, strict=True))[:2])
            await over.wait()

    asyncio.run(story())
    rest = bytes(heard)
    for record, line in zip(CHAIN[:2], LINES[:2], strict=True):
        size, _, rest = rest.partition(b" ")
        frame, rest = rest[: int(size)], rest[int(size) :]
        assert frame.startswith(b"<109>1 1970-01-01T00:")
        assert frame.endswith(b" one holdfast - audit - " + line)
        assert record_of(line) == record
    assert rest == b""


@pytest.mark.parametrize("text", ["", "ftp://x", "file:", "syslog://", "http://x/y", "https://"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="--audit-export"):
        target_of(text, "one")
    assert isinstance(target_of("https://siem/in", "one"), HttpsTarget)


def test_a_batch_is_bounded() -> None:
    assert BATCH < 1_000
