"""The files of a journal: one for each range of records, named after the first of them.

`journal.py` writes them; the functions below read them. A line is a record; a file is a part of the
chain without gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.model.audit.audit_records import AuditRecord, Head, record_of
from holdfast.model.audit.chain import ChainVerification, ChainVerifier

# Where a server stores its part of the chain, in its data directory.
FOLDER = "audit"
_NAME = re.compile(r"audit-([0-9]{16})\.jsonl")


class Segment(msgspec.Struct, frozen=True, order=True):
    """One file, and the number of its first record."""

    first: int
    path: Path


def path_of(folder: Path, first: int) -> Path:
    return folder / f"audit-{first:016d}.jsonl"


def segments(folder: Path) -> list[Segment]:
    """Return all files of a journal, in the order of their records."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(Segment(int(name[1]), path) for name, path in found if name is not None)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file. An incomplete last line was never acknowledged."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


# Reads the audit's files for people: whether they are complete, and what they say.
#
# `holdfast audit` calls it, beside a server or on copies of the directories of several.


def parts(folders: Sequence[Path]) -> list[Segment]:
    """Return all files of all directories, in the order of their first records."""
    return sorted(segment for folder in folders for segment in segments(folder))


def verify_segments(
    folders: Sequence[Path], head: Head | None, since: Head | None = None
) -> ChainVerification:
    """Verify the chain in these directories."""
    judge = ChainVerifier(since)
    for segment in parts(folders):
        judge.part(f"{segment.path.parent.name}/{segment.path.name}", lines_of(segment.path))
    return judge.judgement(head)


def records(folders: Sequence[Path]) -> Iterator[AuditRecord]:
    """Yield all records, each once, without unreadable ones; `verify_segments` reports those."""
    last = 0
    for segment in parts(folders):
        for line in lines_of(segment.path):
            try:
                record = record_of(line)
            except msgspec.DecodeError:
                continue
            if record.number > last:
                last = record.number
                yield record
