"""Makes room in a journal at the expense of those who fill it.

One tenant could otherwise write so much that the records of all others are removed before their
time. Each tenant may have a share of the journal. Where the journal is too large, records of those
who have more than that are let go of first, the oldest files first, and a line stays in their place
that names their numbers and the hash to go on from. What belongs to no tenant is never thinned.
`journal` calls it; the store learns of it before it is done.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.host.audit.segments import Segment, lines_of
from holdfast.host.process.files import write_private
from holdfast.model.audit.records import (
    AuditRecord,
    ElidedRecords,
    elided_of,
    encode,
    is_elided,
    record_of,
)

# The part of a journal that one tenant may fill.
SHARE = 4
_NAMESPACE = b'"namespace":"'


class Shares:
    """How much each tenant has in each file. One that is not written to any more is read once."""

    def __init__(self) -> None:
        self._files: dict[Path, Counter[str]] = {}

    def forget(self, path: Path) -> None:
        self._files.pop(path, None)

    def to_thin(self, found: Sequence[Segment], most: int, excess: int) -> tuple[int, int]:
        """Up to which record to let go of the records of those who have too many, so that about so
        many bytes become free; and how many that will be. 0 and 0 where nobody has.
        """
        closed = [(segment, following.first) for segment, following in pairwise(found)]
        heavy = self._heavy([segment.path for segment, _ in closed], most)
        upto, spared = 0, 0
        for segment, following in closed:
            if spared >= excess:
                break
            there = self._counted(segment.path)
            gained = sum(there[tenant] for tenant in heavy)
            if gained:
                upto, spared = following - 1, spared + gained
        return upto, spared

    def thin(self, found: Sequence[Segment], most: int, upto: int) -> None:
        """Let go of them in all files that lie wholly up to this record."""
        closed = [(segment.path, following.first) for segment, following in pairwise(found)]
        heavy = self._heavy([path for path, _ in closed], most)
        for path, following in closed:
            if following > upto + 1 or not any(self._counted(path)[it] for it in heavy):
                continue
            kept = path.stat()
            write_private(
                path, b"".join(line + b"\n" for line in thin_lines(lines_of(path), heavy))
            )
            # It is as old as the records in it, whenever it was written.
            os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
            self.forget(path)

    def _heavy(self, paths: Sequence[Path], most: int) -> frozenset[str]:
        total: Counter[str] = Counter()
        for path in paths:
            total.update(self._counted(path))
        return frozenset(tenant for tenant, size in total.items() if size > most // SHARE)

    def _counted(self, path: Path) -> Counter[str]:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = Counter()
            for line in lines_of(path):
                tenant = tenant_of(line)
                if tenant:
                    found[tenant] += len(line) + 1
        return found


def tenant_of(line: bytes) -> str:
    """Whose record a line is; nothing for one of the plane's own, or for what is none."""
    if is_elided(line):
        return ""
    at = line.find(_NAMESPACE)
    if at < 0:
        return ""
    begin = at + len(_NAMESPACE)
    return line[begin : line.find(b'"', begin)].decode(errors="replace")


def thin_lines(lines: Iterator[bytes], heavy: frozenset[str]) -> Iterator[bytes]:
    """The lines without the records of these tenants: each run of them is one line."""
    gone: ElidedRecords | None = None
    for line in lines:
        more = _as_elided(line, heavy)
        if more is None:
            if gone is not None:
                yield encode(gone)
            gone = None
            yield line
        elif gone is not None and more.first == gone.last + 1:
            gone = _joined(gone, more)
        else:
            if gone is not None:
                yield encode(gone)
            gone = more
    if gone is not None:
        yield encode(gone)


def _as_elided(line: bytes, heavy: frozenset[str]) -> ElidedRecords | None:
    """What stands in place of a line, if it is to go or is gone already."""
    try:
        if is_elided(line):
            return elided_of(line)
        tenant = tenant_of(line)
        if tenant not in heavy:
            return None
        record: AuditRecord = record_of(line)
    except msgspec.DecodeError:
        return None
    return ElidedRecords(
        elided={tenant: 1},
        first=record.number,
        last=record.number,
        previous=record.previous,
        hash=record.hash,
    )


def _joined(gone: ElidedRecords, more: ElidedRecords) -> ElidedRecords:
    counts = Counter(gone.elided)
    counts.update(more.elided)
    return ElidedRecords(
        elided=dict(sorted(counts.items())),
        first=gone.first,
        last=more.last,
        previous=gone.previous,
        hash=more.hash,
    )
