"""The files of a journal: one for each stretch of records, named after the first of them.

`journal.py` writes them, `reading.py` reads them. A line is a record; a file is a part of the
chain without holes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.model.audit.chain import ChainVerification, ChainVerifier
from holdfast.model.audit.records import AuditRecord, Head, record_of

# Where a server keeps its part of the chain, below its data.
FOLDER = "audit"
_NAME = re.compile(r"audit-([0-9]{16})\.jsonl")


class Segment(msgspec.Struct, frozen=True, order=True):
    """One file, and the number of its first record."""

    first: int
    path: Path


def path_of(folder: Path, first: int) -> Path:
    return folder / f"audit-{first:016d}.jsonl"


def segments(folder: Path) -> list[Segment]:
    """All files of a journal, in the order of their records."""
    if not folder.is_dir():
        return []
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted(Segment(int(name[1]), path) for name, path in found if name is not None)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file. One that a crash cut short is none: nobody was told of it."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


# Reading the audit's files, for people: whether they are whole, and what they say.
#
# `holdfast audit` calls it, beside a server or on copies of the directories of several.


def parts(folders: Sequence[Path]) -> list[Segment]:
    """All files of all directories, in the order of their first records."""
    return sorted(segment for folder in folders for segment in segments(folder))


def verify_segments(
    folders: Sequence[Path], head: Head | None, since: Head | None = None
) -> ChainVerification:
    """Whether the chain in these directories is whole."""
    judge = ChainVerifier(since)
    for segment in parts(folders):
        judge.part(f"{segment.path.parent.name}/{segment.path.name}", lines_of(segment.path))
    return judge.judgement(head)


def records(folders: Sequence[Path]) -> Iterator[AuditRecord]:
    """All records, each once. What cannot be read is passed over; `verify_segments` tells of it."""
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
