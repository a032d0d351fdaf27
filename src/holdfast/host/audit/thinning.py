"""Makes room in a journal at the expense of those who fill it.

One tenant could otherwise write so much that the records of all others are removed early. Each
tenant may have a share of the journal. When the journal is too large, records of tenants above
their share are removed first, the oldest files first. A line in their place holds their numbers and
the hash to continue from. Records that belong to no tenant are never thinned. `journal` calls it;
the store is updated before it is done.
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
from holdfast.model.audit.audit_records import (
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
    """How much each tenant has in each file. A finished file is read once."""

    def __init__(self) -> None:
        self._files: dict[Path, Counter[str]] = {}

    def forget(self, path: Path) -> None:
        self._files.pop(path, None)

    def to_thin(self, found: Sequence[Segment], most: int, excess: int) -> tuple[int, int]:
        """Return up to which record to thin tenants above their share, to free about this many
        bytes, and how many that will free. 0 and 0 if no tenant is above its share.
        """
        closed = [(segment, following.first) for segment, following in pairwise(found)]
        heavy = self.heavy_tenants([segment.path for segment, _ in closed], most)
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
        """Thin all files that end at or before this record."""
        closed = [(segment.path, following.first) for segment, following in pairwise(found)]
        heavy = self.heavy_tenants([path for path, _ in closed], most)
        for path, following in closed:
            if following > upto + 1 or not any(self._counted(path)[it] for it in heavy):
                continue
            kept = path.stat()
            write_private(
                path, b"".join(line + b"\n" for line in thin_lines(lines_of(path), heavy))
            )
            # The file keeps the age of its records, whenever it was written.
            os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
            self.forget(path)

    def heavy_tenants(self, paths: Sequence[Path], most: int) -> frozenset[str]:
        """The tenants whose records take more than their share of these files."""
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
    """Return the tenant of a record; empty for the plane's own, or for an unreadable line."""
    if is_elided(line):
        return ""
    at = line.find(_NAMESPACE)
    if at < 0:
        return ""
    begin = at + len(_NAMESPACE)
    return line[begin : line.find(b'"', begin)].decode(errors="replace")


def thin_lines(lines: Iterator[bytes], heavy: frozenset[str]) -> Iterator[bytes]:
    """Yield the lines without the records of these tenants: each run of them is one line."""
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
    """Return what replaces a line, if it is to be removed or was removed already."""
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
