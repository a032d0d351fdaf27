"""The audit writer: a machine that makes one chain of audit records from the store's history.

Each server runs one; one of them writes. Every transaction says under one key who did what in it
(`commit/objects/audit_entries.py`). The writer follows that key, appends a record for each mutation
to its journal, and then moves the head in the store: number, hash, and the revision up to which
nothing is missing. History may be compacted up to that revision.

No lease is needed. A record depends on the history alone, so two servers that write at once write
the same records; and the head moves by compare-and-swap, so one of them wins and the other notices.
The server that the head names continues. When the head has not moved for a while although there is
something to write, another server takes over. The chain then continues in that server's journal:
its parts stay where they were written, and overlap at most.

If the store has compacted what was not written yet, the chain says so in a record of its own. Its
content is first agreed on in the head, since two servers may see different things there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model import keys
from holdfast.model.audit.audit_records import Gap, Head, encode, head_of
from holdfast.model.audit.journal_protocol import (
    Append,
    Appended,
    Cut,
    JournalEffect,
    Prune,
    Ready,
    Resume,
)
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.machine import (
    Answered,
    Changed,
    Effect,
    Reply,
    Started,
    Stimulus,
    Txn,
    Unwatch,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.plane_format import format_refusal
from holdfast.model.time import Instant
from holdfast.model.transaction import (
    ABSENT,
    Batch,
    Committed,
    Compare,
    CompareFailed,
    Page,
    Put,
    Transaction,
)
from holdfast.observe.audit_writer.chain_end import Chain, take_over
from holdfast.observe.history_start import HistorySearch, read_stamp_and_head, read_stamp_at

# A record is on disk and in the head this long after its mutation; nothing is lost until then.
FLUSH_MS = 1_000
FLUSH_LINES = 2_000
# The records that wait to be written are bounded, by number and by size: the history has the rest.
PENDING_MAX = 20_000
PENDING_BYTES_MAX = 16 << 20
# How often the servers that do not write check the head.
LOOK_MS = 5_000
RETRY_MS = 3_000
# A writer whose head stands still for this long is replaced.
STANDSTILL_MS = 15_000
# With nothing to write, the head still moves from time to time, so that history can be compacted.
IDLE_REVISIONS = 1_000
_LOOK, _FLUSH = "look", "flush"

_Effect = Effect | JournalEffect


class AuditWriter:
    """See the module's docstring. The public attributes are for metrics and status."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The head in the store, as far as it is known here.
        self.head = Head()
        self.is_writing = False
        # How many records this server has written, and how often it failed.
        self.wrote = 0
        self.failures = 0
        self.last_error = ""
        self._head_modified = ABSENT
        # The revision of the plane format that this version has checked, from a failed compare.
        self._format_modified = ABSENT
        self._stamp_revision = 0
        self._store_revision = 0
        # Since when the head stands still although it should move.
        self._since_ms = 0
        self._calls = 0
        # The one call in flight, and the function that takes its answer.
        self._awaits: tuple[int, _Take] | None = None
        self._watch = 0
        self._is_following = False
        self._search: HistorySearch | None = None
        self._chain = Chain()
        # Whether a wake-up to write the waiting records is scheduled.
        self._is_due = False
        # How many of the waiting lines are being written, and the head after that.
        self._flight: tuple[int, Head] | None = None
        self._pruned = (1, 0)
        self._cut: int | None = None

    # Status --------------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """How many revisions may hold something that is not written yet."""
        if self._stamp_revision <= self.head.revision:
            return 0
        return max(0, self._store_revision - self.head.revision)

    def standstill_ms(self, now_ms: int) -> int:
        """For how long nothing was written although there is something to write."""
        return max(0, now_ms - self._since_ms) if self.lag else 0

    # The machine ---------------------------------------------------------------------------------

    def step(self, stimulus: Stimulus, now: Instant) -> list[_Effect]:
        match stimulus:
            case Started():
                return self._look()
            case Woken(name=name) if name == _LOOK:
                return self._look() if not self.is_writing else []
            case Woken(name=name) if name == _FLUSH:
                self._is_due = False
                return self._flush()
            case Changed(watch=watch, body=body) if self._is_following and watch == self._watch:
                return self._changed(body, now)
            case Answered(call=call, body=body) if self._awaits and call == self._awaits[0]:
                take, self._awaits = self._awaits[1], None
                return take(_checked(body), now)
            case _:
                return []

    def _call(self, take: _Take) -> int:
        self._calls += 1
        self._awaits = (self._calls, take)
        return self._calls

    # Who writes ----------------------------------------------------------------------------------

    def _look(self) -> list[_Effect]:
        if self._awaits is not None:
            # The answer to the call in flight leads on.
            return []
        return [read_stamp_and_head(self._call(self._looked))]

    def _looked(self, body: Reply, now: Instant) -> list[_Effect]:
        if not isinstance(body, Page):
            return self._failed(body, now)
        before = self.head
        is_new = not self._learn(body)
        idle = self._store_revision - self.head.revision <= 2 * IDLE_REVISIONS
        if before != self.head or (idle and not self.lag):
            # There is nothing that the writer should have done.
            self._since_ms = now.monotonic_ms
        effects = self._prune()
        if self.head.by == self.name:
            return effects + self._resume()
        if is_new or now.monotonic_ms - self._since_ms >= STANDSTILL_MS:
            return effects + self._move(take_over(self.head, self.name))
        effects += self._cut_off()
        return [*effects, Wake(_LOOK, now.monotonic_ms + LOOK_MS)]

    def _learn(self, page: Page) -> bool:
        """Take the state from the store. Returns whether there is a head at all."""
        found = {record.key: record for record in page.records}
        stamp, head = found.get(keys.audit_stamp()), found.get(keys.audit_head())
        self._store_revision = page.revision
        self._stamp_revision = stamp.modified if stamp is not None else 0
        self._head_modified = head.modified if head is not None else ABSENT
        self.head = head_of(head.value) if head is not None else Head()
        return head is not None

    def _failed(self, body: Reply, now: Instant) -> list[_Effect]:
        """Start over from what the store says, after a pause."""
        self.failures += 1
        self.last_error = body.message if isinstance(body, HoldfastError) else "no answer"
        return [*self._rest(), Wake(_LOOK, now.monotonic_ms + RETRY_MS)]

    def _rest(self) -> list[_Effect]:
        """Stop writing. The waiting records are in the history as well."""
        was, self._is_following, self.is_writing = self._is_following, False, False
        self._chain.clear()
        self._flight, self._search, self._is_due = None, None, False
        return [Unwatch(self._watch)] if was else []

    def _prune(self) -> list[_Effect]:
        wanted = (self.head.floor, self.head.thinned)
        if wanted <= self._pruned:
            return []
        self._pruned = wanted
        return [Prune(*wanted)]

    def _cut_off(self) -> list[_Effect]:
        """Cut off what was in flight when another server took over: it may not be in the chain."""
        last = self.head.ended.get(self.name)
        if last is None or last == self._cut:
            return []
        self._cut = last
        return [Cut(last)]

    # Moving the head -----------------------------------------------------------------------------

    def _move(self, head: Head) -> list[_Effect]:
        """Move the head, if no other server did and this version may write to the plane."""
        key = keys.audit_head()
        put = Put(key, encode(head))
        self._flight = (self._flight[0] if self._flight is not None else 0, head)
        compares = (
            Compare(key, self._head_modified),
            Compare(keys.plane_format(), self._format_modified),
        )
        return [Txn(self._call(self._moved), Transaction(compares, (put,)))]

    def _refused(self, refused: CompareFailed, head: Head, now: Instant) -> list[_Effect]:
        """Handle a failed compare: the head was moved, or the plane format has changed."""
        there, of_plane = refused.current
        why = format_refusal(of_plane.value) if of_plane is not None else ""
        if why:
            # The known format stays, so that every later transaction fails to compare as well.
            return self._failed(Unavailable(why), now)
        self._format_modified = of_plane.modified if of_plane is not None else ABSENT
        if (there.modified if there is not None else ABSENT) == self._head_modified:
            return self._move(head)
        # Another server writes. It has written the same records, as far as both got.
        self._flight = None
        return [*self._rest(), *self._look()]

    def _moved(self, body: Reply, now: Instant) -> list[_Effect]:
        if isinstance(body, HoldfastError):
            return self._failed(body, now)
        if isinstance(body, CompareFailed) and self._flight is not None:
            return self._refused(body, self._flight[1], now)
        flight, self._flight = self._flight, None
        if not isinstance(body, Committed) or flight is None:
            return [*self._rest(), *self._look()]
        count, self.head = flight
        self._head_modified = body.revision
        self._since_ms = now.monotonic_ms
        self.last_error = ""
        effects = self._prune()
        if not self.is_writing:
            return effects + self._resume()
        self.wrote += count
        self._chain.wrote(count, self.head)
        if not self._is_following:
            effects += self._follow()
        return effects + self._go_on(now)

    # Writing -------------------------------------------------------------------------------------

    def _resume(self) -> list[_Effect]:
        # If no other server has written since its own end, it simply continues.
        last = self.head.ended.get(self.name, self.head.number)
        cut = last if last < self.head.number else None
        self._cut = None
        return [Resume(self._call(self._resumed), self.head, cut)]

    def _resumed(self, body: Reply, now: Instant) -> list[_Effect]:
        if not isinstance(body, Ready):
            return self._failed(body, now)
        self.is_writing = True
        self._chain.begin(self.head)
        return [*self._follow(), *self._go_on(now)]

    def _follow(self) -> list[_Effect]:
        self._watch += 1
        self._is_following = True
        return [Watch(self._watch, keys.audit_stamp(), self._chain.end.revision)]

    def _changed(self, batch: Batch | HoldfastError, now: Instant) -> list[_Effect]:
        if isinstance(batch, HoldfastError):
            self._is_following = False
            if not isinstance(batch, Expired):
                return self._failed(batch, now)
            # The waiting records are written first; then the watch is started again.
            busy = self._chain.waiting or self._awaits is not None
            return self._go_on(now) if busy else self._lost_place()
        if batch.revision < self._chain.end.revision:
            # A watch never does that. A change out of order must not be written.
            return self._failed(Unavailable("a watch of the store went back in time"), now)
        self._stamp_revision = self._chain.take(batch) or self._stamp_revision
        if not self.lag:
            self._since_ms = now.monotonic_ms
        self._store_revision = max(self._store_revision, self._chain.end.revision)
        chain = self._chain
        if len(chain.waiting) < PENDING_MAX and chain.waiting_bytes < PENDING_BYTES_MAX:
            return self._go_on(now)
        # The history holds the rest until there is room again.
        self._is_following = False
        return [Unwatch(self._watch), *self._go_on(now)]

    def _go_on(self, now: Instant) -> list[_Effect]:
        """Write at once when there is much, soon when there is something."""
        if self._awaits is not None:
            return []
        chain = self._chain
        if len(chain.waiting) >= FLUSH_LINES:
            return self._flush()
        if chain.waiting and self._is_due:
            # Not delayed by what comes after it, or a steady trickle would never be written.
            return []
        if chain.waiting:
            self._is_due = True
            return [Wake(_FLUSH, now.monotonic_ms + FLUSH_MS)]
        if chain.end.revision - self.head.revision >= IDLE_REVISIONS:
            return self._move(chain.end)
        return []

    def _flush(self) -> list[_Effect]:
        chain = self._chain
        if self._awaits is not None or not self.is_writing or not chain.waiting:
            return []
        self._flight = (len(chain.waiting), chain.end)
        return [Append(self._call(self._appended), tuple(chain.waiting))]

    def _appended(self, body: Reply, now: Instant) -> list[_Effect]:
        flight = self._flight
        if not isinstance(body, Appended) or flight is None:
            return self._failed(body, now)
        head = flight[1]
        floor = min(max(head.floor, body.floor), head.number)
        thinned = min(max(head.thinned, body.thinned), head.number)
        ended = {server: last for server, last in head.ended.items() if server != self.name}
        moved = msgspec.structs.replace(head, floor=floor, thinned=thinned, ended=ended)
        return self._move(moved)

    # When the store has compacted too early ------------------------------------------------------

    def _lost_place(self) -> list[_Effect]:
        """Find out whether anything is lost, and from which revision on nothing is."""
        after = self._chain.end.revision
        self._rest()
        self._search = HistorySearch(after, after)
        return [read_stamp_and_head(self._call(self._read_for_search))]

    def _read_for_search(self, body: Reply, now: Instant) -> list[_Effect]:
        search, known = self._search, self.head
        if not isinstance(body, Page) or search is None:
            return self._failed(body, now)
        if not self._learn(body) or self.head != known:
            return [*self._rest(), *self._look()]
        if self._stamp_revision <= search.after:
            # Nothing was done; what was compacted were lease renewals.
            return self._move(msgspec.structs.replace(self.head, revision=body.revision))
        search.there = body.revision
        if not search.after:
            return self._narrow(search, now)
        # The server that reported Expired may be wrong; it is if that revision can be read.
        return [read_stamp_at(self._call(self._confirm_gone), search.after)]

    def _confirm_gone(self, body: Reply, now: Instant) -> list[_Effect]:
        if self._search is None or not isinstance(body, Expired):
            return self._failed(body, now)
        return self._narrow(self._search, now)

    def _narrow(self, search: HistorySearch, now: Instant) -> list[_Effect]:
        if not search.is_over:
            return [read_stamp_at(self._call(self._probed), search.probe())]
        gap = Gap(search.after, search.there, now.wall_ms)
        self._search = None
        return self._move(msgspec.structs.replace(self.head, revision=search.there, gap=gap))

    def _probed(self, body: Reply, now: Instant) -> list[_Effect]:
        is_gone = isinstance(body, Expired)
        if self._search is None or (isinstance(body, HoldfastError) and not is_gone):
            return self._failed(body, now)
        self._search.narrow(is_gone=is_gone)
        return self._narrow(self._search, now)


def _checked(body: Reply) -> Reply:
    """An answer, or an error if its head is unreadable: that must not stop the server."""
    for record in body.records if isinstance(body, Page) else ():
        if record.key == keys.audit_head():
            try:
                head_of(record.value)
            except msgspec.DecodeError as error:
                return Unavailable(f"the audit head cannot be read: {error}")
    return body


_Take = Callable[[Reply, Instant], list[_Effect]]
