"""The chain of audit records of one audit writer: its end, and the records to be written.

`writer.AuditWriter` fills it from the store's history and lets its journal write the records. A
record depends only on the history and the hash before it, so every writer makes the same ones.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.audit.audit_records import (
    AuditRecord,
    Gap,
    Head,
    line_of,
    make_record,
    stamp_of,
)

# For how many earlier writers the head remembers where they ended.
ENDED_MAX = 64


class Chain:
    """The records after those that are written."""

    def __init__(self) -> None:
        # The head once all waiting records are written.
        self.end = Head()
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0

    def clear(self) -> None:
        """Drop all waiting records."""
        self.waiting, self.waiting_bytes = [], 0

    def begin(self, head: Head) -> None:
        """Continue after this head. A gap that was agreed on in it is recorded first."""
        self.end = head
        self.clear()
        if head.gap is not None:
            self._add(make_record(*self._place(head.gap.upto, head.gap.at), head.gap))

    def take(self, batch: Any) -> int:
        """Add what a watch of the stamp brings. Returns the revision of the last entry, or 0."""
        last = 0
        for change in batch.changes:
            # A watch may repeat changes after a reconnection; the revision shows it.
            if change.value is None or change.revision <= self.end.revision:
                continue
            last = change.revision
            try:
                stamp = stamp_of(change.value)
            except msgspec.DecodeError:
                # What was done then is not known, and the chain says so; what follows is written.
                gap = Gap(change.revision - 1, change.revision, 0)
                self._add(make_record(*self._place(change.revision, 0), gap))
                continue
            for said in stamp.mutations:
                self._add(make_record(*self._place(change.revision, stamp.at), bytes(said)))
        revision = max(self.end.revision, batch.revision)
        self.end = msgspec.structs.replace(self.end, revision=revision)
        return last

    def wrote(self, count: int, head: Head) -> None:
        """Remove `count` records that are written; the store has this head."""
        self.waiting_bytes -= sum(map(len, self.waiting[:count]))
        del self.waiting[:count]
        self.end = msgspec.structs.replace(
            self.end, floor=head.floor, ended=head.ended, thinned=head.thinned
        )

    def _place(self, revision: int, at: int) -> tuple[int, int, int, str]:
        return self.end.number + 1, revision, at, self.end.hash

    def _add(self, record: AuditRecord) -> None:
        line = line_of(record)
        self.waiting.append(line)
        self.waiting_bytes += len(line)
        self.end = msgspec.structs.replace(
            self.end, number=record.number, hash=record.hash, gap=None
        )


def take_over(head: Head, name: str) -> Head:
    """The head when this server becomes the writer.

    Where it ended before stays in the head until it writes: only then it has certainly set aside
    what came after. The same holds for a server that became the writer and never wrote.
    """
    ended = {head.by: head.number, **head.ended} if head.by else head.ended
    while len(ended) > ENDED_MAX:
        oldest = min(ended, key=lambda server: ended[server])
        ended = {server: last for server, last in ended.items() if server != oldest}
    return msgspec.structs.replace(head, by=name, ended=ended)
