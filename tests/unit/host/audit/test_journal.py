"""A journal on a real disk: through crashes, restores, full disks and its own age."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.host.audit import journal as journal_module
from holdfast.host.audit.journal import Journal, JournalLimits
from holdfast.host.audit.segments import records, segments, verify_segments
from holdfast.model.audit.audit_records import Head
from tests.audit_chains import chain, head_at, lines

CHAIN = chain(20)
LINES = lines(CHAIN)
# The records are of the year 1970, and a file of such an age would be ended at once.
LONG = JournalLimits(segment_age_ms=1 << 60)
SMALL = JournalLimits(segment_bytes=len(LINES[0]) * 4, segment_age_ms=1 << 60)


def begun(folder: Path, head: Head | None = None, limits: JournalLimits = SMALL) -> Journal:
    made = Journal(folder, limits)
    made.resume(head if head is not None else Head())
    return made


def whole(folder: Path, last: int, floor: int = 1) -> bool:
    return verify_segments([folder], head_at(CHAIN[last - 1], floor)).is_whole


def test_what_is_appended_is_there_in_files_of_a_bounded_size(tmp_path: Path) -> None:
    journal = begun(tmp_path / "audit")
    for place in range(0, 20, 2):
        assert journal.append(LINES[place : place + 2]).floor == 1
    assert whole(tmp_path / "audit", 20)
    found = segments(tmp_path / "audit")
    assert len(found) == 5
    assert {it.path.stat().st_mode & 0o777 for it in found} == {0o600}
    assert [it.number for it in records([tmp_path / "audit"])] == list(range(1, 21))


@pytest.mark.parametrize("torn", [b"", b'{"number":7,"rev'])
def test_the_next_life_writes_again_what_the_head_does_not_name_and_finds_it_there(
    tmp_path: Path, torn: bytes
) -> None:
    """[C7.4]"""
    begun(tmp_path, limits=LONG).append(LINES[:6])
    (segment,) = segments(tmp_path)
    with segment.path.open("ab") as file:
        file.write(torn)
    again = begun(tmp_path, head_at(CHAIN[3]), LONG)
    again.append(LINES[4:5])
    again.append(LINES[5:8])
    assert segment.path.read_bytes() == b"".join(line + b"\n" for line in LINES[:8])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_life_that_died_before_the_first_head_is_gone_on_with(tmp_path: Path) -> None:
    """[C7.4]"""
    begun(tmp_path).append(LINES[:2])
    begun(tmp_path).append(LINES[:3])
    assert whole(tmp_path, 3)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "audit-0000000000000004.jsonl").touch()
    begun(tmp_path, head_at(CHAIN[2])).append(LINES[3:4])
    assert whole(tmp_path, 4)


def test_what_the_store_knows_nothing_of_is_set_aside_and_never_deleted(tmp_path: Path) -> None:
    """As after the restore of an older store: it is evidence of what was lost."""
    begun(tmp_path, limits=LONG).append(LINES[:8])
    other = lines(chain(4, first=6, previous=CHAIN[4].hash, who="bob"))
    begun(tmp_path, head_at(CHAIN[4]), LONG).append(other)
    (aside,) = tmp_path.glob("aside-*")
    assert aside.read_bytes().splitlines() == LINES[5:8]
    (segment,) = segments(tmp_path)
    assert segment.path.read_bytes().splitlines() == [*LINES[:5], *other]


def test_a_new_writer_begins_a_file_of_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    begun(one).append(LINES[:4])
    begun(two, head_at(CHAIN[3])).append(LINES[4:9])
    begun(one, head_at(CHAIN[8])).append(LINES[9:12])
    assert [it.first for it in segments(one)] == [1, 10]
    assert verify_segments([one, two], head_at(CHAIN[11])).is_whole
    assert not verify_segments([one], head_at(CHAIN[11])).is_whole


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = begun(tmp_path, limits=LONG)
    journal.append(LINES[:2])
    real, room = os.write, [100]

    def short(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        count = real(file, bytes(data)[: room[0]])
        room[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "write", short)
        with pytest.raises(OSError, match="No space"):
            journal.append(LINES[2:5])
    assert whole(tmp_path, 2)
    journal.resume(head_at(CHAIN[1]))
    journal.append(LINES[2:5])
    assert whole(tmp_path, 5)


def test_a_file_of_which_a_sync_failed_is_not_written_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced is written again elsewhere, whatever the first file shows. [INV11]"""
    journal = begun(tmp_path, limits=LONG)
    journal.append(LINES[:2])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "fsync", fail)
        with pytest.raises(OSError, match="Input"):
            journal.append(LINES[2:4])
    journal.resume(head_at(CHAIN[1]))
    journal.append(LINES[2:5])
    assert [it.first for it in segments(tmp_path)] == [1, 3]
    assert whole(tmp_path, 5)


def test_files_are_let_go_of_when_they_are_too_much(tmp_path: Path) -> None:
    """The store learns first from where on records are kept, then they are removed."""
    size = len(LINES[0])
    limits = JournalLimits(segment_bytes=size * 4, segment_age_ms=1 << 60, keep_bytes=size * 9)
    journal = begun(tmp_path, limits=limits)
    floors = [journal.append(LINES[at : at + 4]).floor for at in range(0, 20, 4)]
    assert floors == [1, 1, 5, 9, 13]
    assert whole(tmp_path, 20)
    journal.prune(floors[-1])
    assert [it.first for it in segments(tmp_path)] == [13, 17]
    assert whole(tmp_path, 20, floor=13)
    assert not whole(tmp_path, 20, floor=12)
    journal.prune(1_000)
    assert [it.first for it in segments(tmp_path)] == [17]


def test_files_are_let_go_of_when_they_are_too_old(tmp_path: Path) -> None:
    limits = JournalLimits(segment_bytes=1, keep_ms=60_000)
    journal = begun(tmp_path, limits=limits)
    for line in LINES[:3]:
        journal.append([line])
    os.utime(segments(tmp_path)[0].path, (0, 0))
    assert journal.append(LINES[3:4]).floor == 2


@pytest.mark.parametrize("last, kept", [(20, [1, 5, 9, 13, 17]), (14, [1, 5, 9, 13]), (3, [1])])
def test_what_came_after_the_end_of_its_turn_is_set_aside(
    tmp_path: Path, last: int, kept: list[int]
) -> None:
    journal = begun(tmp_path)
    for place in range(0, 20, 4):
        journal.append(LINES[place : place + 4])
    journal.cut(last)
    assert [it.first for it in segments(tmp_path)] == kept
    assert whole(tmp_path, last)
    aside = b"".join(it.read_bytes() for it in sorted(tmp_path.glob("aside-*")))
    assert aside.splitlines() == LINES[last:]
    journal.resume(head_at(CHAIN[last - 1]))
    journal.append(LINES[last:])
    assert whole(tmp_path, 20)
