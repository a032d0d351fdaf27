"""The chain of audit records as far as one scribe has come: its end, and what waits to be written.

`writer.AuditWriter` fills it from the store's history and lets its journal write what waits. A record
follows from the history and the hash before it alone, so every scribe makes the same ones.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.audit.records import AuditRecord, Gap, Head, line_of, make_record, stamp_of

# Of so many servers that wrote before it is known where they ended.
ENDED_MAX = 64


class Chain:
    """Records after those that are written down."""

    def __init__(self) -> None:
        # Where the chain will be once all that waits is written.
        self.end = Head()
        self.waiting: list[bytes] = []
        self.waiting_bytes = 0

    def clear(self) -> None:
        """Nothing waits any more."""
        self.waiting, self.waiting_bytes = [], 0

    def begin(self, head: Head) -> None:
        """Go on after this head. If a gap was agreed on in it, that is told first."""
        self.end = head
        self.clear()
        if head.gap is not None:
            self._add(make_record(*self._place(head.gap.upto, head.gap.at), head.gap))

    def take(self, batch: Any) -> int:
        """What a watch of the stamp tells; at which revision somebody did something last, or 0."""
        last = 0
        for change in batch.changes:
            # A watch may repeat itself after a reconnection; revisions tell.
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
        """So many are written down, and the store has this head."""
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


def taken_over(head: Head, name: str) -> Head:
    """The head when this server is to write from here on.

    Where it ended before stays known until it writes: only then has it surely set aside what came
    after that. Likewise of one that was to write and never did.
    """
    ended = {head.by: head.number, **head.ended} if head.by else head.ended
    while len(ended) > ENDED_MAX:
        oldest = min(ended, key=lambda server: ended[server])
        ended = {server: last for server, last in ended.items() if server != oldest}
    return msgspec.structs.replace(head, by=name, ended=ended)
