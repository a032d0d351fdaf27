"""Reading the audit's files, for people: whether they are whole, and what they say.

`holdfast audit` calls it, beside a server or on copies of the directories of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.host.audit.segments import Segment, lines_of, segments
from holdfast.model.audit import AuditRecord, Head, record_of
from holdfast.model.audit_chain import Judge, Judgement


def parts(folders: Sequence[Path]) -> list[Segment]:
    """All files of all directories, in the order of their first records."""
    return sorted(segment for folder in folders for segment in segments(folder))


def judged(folders: Sequence[Path], head: Head | None, since: Head | None = None) -> Judgement:
    """Whether the chain in these directories is whole."""
    judge = Judge(since)
    for segment in parts(folders):
        judge.part(f"{segment.path.parent.name}/{segment.path.name}", lines_of(segment.path))
    return judge.judgement(head)


def records(folders: Sequence[Path]) -> Iterator[AuditRecord]:
    """All records, each once. What cannot be read is passed over; `judged` tells of it."""
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
