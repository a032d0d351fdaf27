"""The scribe: a machine that makes one chain of audit records out of the store's history.

Each server runs one; of all of them one writes. Every transaction says under one key who did what
in it (`commit/objects/audit_entries.py`). The scribe follows that key, appends a record for each
mutation to its journal, and then moves the head in the store: number, hash, and the revision up to
which nothing is missing, which is as far as history may be forgotten.

No lease is needed. A record follows from the history alone, so two scribes that write at once write
the same; and the head moves by comparing, so one of them gets ahead and the other notices. Whoever
is named in the head goes on; when it has not moved for a while although there is something to
write, another takes its place. The chain then goes on in another server's journal: its parts lie
where they were written, and overlap at most.

Should the store have forgotten what was not written down yet, the chain says so by a record of its
own. What it says is first agreed on in the head, for two scribes may see different things there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.audit.records import Gap, Head, encode, head_of
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.machine import Answered, Changed, Started, Txn, Unwatch, Wake, Watch, Woken
from holdfast.model.plane_format import format_refusal
from holdfast.model.time import Instant
from holdfast.model.transaction import ABSENT, Committed, Compare, CompareFailed, Put, Transaction
from holdfast.observe.audit_writer.chain import Chain, taken_over
from holdfast.observe.audit_writer.protocol import Append, Appended, Cut, Prune, Ready, Resume
from holdfast.observe.history_start import HistorySearch, everything, stamp_at

# A record is on disk and in the head so long after its mutation; nothing is lost until then.
FLUSH_MS = 1_000
FLUSH_LINES = 2_000
# What waits to be written is bounded, by number and by size: the history has the rest.
PENDING_MAX = 20_000
PENDING_BYTES_MAX = 16 << 20
# How often those who do not write look how it goes.
LOOK_MS = 5_000
RETRY_MS = 3_000
# Whoever should write and does not for so long is replaced.
STANDSTILL_MS = 15_000
# With nothing to write, the head still moves now and then, so that history can be forgotten.
IDLE_REVISIONS = 1_000
_LOOK, _FLUSH = "look", "flush"


class AuditWriter:
    """See the module's docstring. What is public is for metrics, and for who asks how it goes."""

    def __init__(self, name: str) -> None:
        self.name = name
        # As the store has it, as far as is known here.
        self.head = Head()
        self.is_writing = False
        # How many records this one has written, and how often it could not.
        self.wrote = 0
        self.failures = 0
        self.last_error = ""
        self._head_modified = ABSENT
        # The revision of the plane's format that this version knows; a transaction brings it.
        self._format_modified = ABSENT
        self._stamp_revision = 0
        self._store_revision = 0
        # Since when the head stands where it is although it should not.
        self._since_ms = 0
        self._calls = 0
        # The one call that is on its way, and what takes its answer.
        self._awaits: tuple[int, _Take] | None = None
        self._watch = 0
        self._is_following = False
        self._search: HistorySearch | None = None
        self._chain = Chain()
        # Whether a wake-up to write what waits is on its way.
        self._is_due = False
        # How many of those lines are being written, and where the chain is then.
        self._flight: tuple[int, Head] | None = None
        self._pruned = (1, 0)
        self._cut: int | None = None

    # How it goes ---------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """How many revisions may hold something that is not written down yet."""
        if self._stamp_revision <= self.head.revision:
            return 0
        return max(0, self._store_revision - self.head.revision)

    def standstill_ms(self, now_ms: int) -> int:
        """For how long nothing was written although there is something."""
        return max(0, now_ms - self._since_ms) if self.lag else 0

    # The machine ---------------------------------------------------------------------------------

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
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

    # Looking who writes --------------------------------------------------------------------------

    def _look(self) -> list[Any]:
        if self._awaits is not None:
            # Whatever it is, its answer leads on.
            return []
        return [everything(self._call(self._looked))]

    def _looked(self, body: Any, now: Instant) -> list[Any]:
        if isinstance(body, HoldfastError):
            return self._failed(body, now)
        before = self.head
        is_new = not self._learn(body)
        idle = self._store_revision - self.head.revision <= 2 * IDLE_REVISIONS
        if before != self.head or (idle and not self.lag):
            # There is nothing that it should have done.
            self._since_ms = now.monotonic_ms
        effects = self._prune()
        if self.head.by == self.name:
            return effects + self._resume()
        if is_new or now.monotonic_ms - self._since_ms >= STANDSTILL_MS:
            return effects + self._move(taken_over(self.head, self.name))
        effects += self._cut_off()
        return [*effects, Wake(_LOOK, now.monotonic_ms + LOOK_MS)]

    def _learn(self, page: Any) -> bool:
        """Take in what the store says; whether there is a head at all."""
        found = {record.key: record for record in page.records}
        stamp, head = found.get(keys.audit_stamp()), found.get(keys.audit_head())
        self._store_revision = page.revision
        self._stamp_revision = stamp.modified if stamp is not None else 0
        self._head_modified = head.modified if head is not None else ABSENT
        self.head = head_of(head.value) if head is not None else Head()
        return head is not None

    def _failed(self, body: Any, now: Instant) -> list[Any]:
        """Something did not work: begin again from what the store says, after a pause."""
        self.failures += 1
        self.last_error = body.message if isinstance(body, HoldfastError) else "no answer"
        return [*self._rest(), Wake(_LOOK, now.monotonic_ms + RETRY_MS)]

    def _rest(self) -> list[Any]:
        """Stop writing. What waits is in the history as well."""
        was, self._is_following, self.is_writing = self._is_following, False, False
        self._chain.clear()
        self._flight, self._search, self._is_due = None, None, False
        return [Unwatch(self._watch)] if was else []

    def _prune(self) -> list[Any]:
        wanted = (self.head.floor, self.head.thinned)
        if wanted <= self._pruned:
            return []
        self._pruned = wanted
        return [Prune(*wanted)]

    def _cut_off(self) -> list[Any]:
        """What was on its way when another one took over may not have become part of the chain."""
        last = self.head.ended.get(self.name)
        if last is None or last == self._cut:
            return []
        self._cut = last
        return [Cut(last)]

    # Moving the head -----------------------------------------------------------------------------

    def _move(self, head: Head) -> list[Any]:
        """Let the store know, if it was not moved meanwhile and this version may write there."""
        key = keys.audit_head()
        put = Put(key, encode(head))
        self._flight = (self._flight[0] if self._flight is not None else 0, head)
        compares = (
            Compare(key, self._head_modified),
            Compare(keys.plane_format(), self._format_modified),
        )
        return [Txn(self._call(self._moved), Transaction(compares, (put,)))]

    def _refused(self, refused: CompareFailed, head: Head, now: Instant) -> list[Any]:
        """The head was moved, or the plane's format is another one than was known here."""
        there, of_plane = refused.current
        why = format_refusal(of_plane.value) if of_plane is not None else ""
        if why:
            # What was known stays as it is, so that every later transaction is refused as well.
            return self._failed(Unavailable(why), now)
        self._format_modified = of_plane.modified if of_plane is not None else ABSENT
        if (there.modified if there is not None else ABSENT) == self._head_modified:
            return self._move(head)
        # Another one writes. It has written the same, as far as both came.
        self._flight = None
        return [*self._rest(), *self._look()]

    def _moved(self, body: Any, now: Instant) -> list[Any]:
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

    def _resume(self) -> list[Any]:
        # Where nobody has written since its own end, what comes after that is simply gone on with.
        last = self.head.ended.get(self.name, self.head.number)
        cut = last if last < self.head.number else None
        self._cut = None
        return [Resume(self._call(self._resumed), self.head, cut)]

    def _resumed(self, body: Any, now: Instant) -> list[Any]:
        if not isinstance(body, Ready):
            return self._failed(body, now)
        self.is_writing = True
        self._chain.begin(self.head)
        return [*self._follow(), *self._go_on(now)]

    def _follow(self) -> list[Any]:
        self._watch += 1
        self._is_following = True
        return [Watch(self._watch, keys.audit_stamp(), self._chain.end.revision)]

    def _changed(self, batch: Any, now: Instant) -> list[Any]:
        if isinstance(batch, HoldfastError):
            self._is_following = False
            if not isinstance(batch, Expired):
                return self._failed(batch, now)
            # What waits is written first; the place is asked for again after that.
            busy = self._chain.waiting or self._awaits is not None
            return self._go_on(now) if busy else self._lost_place()
        if batch.revision < self._chain.end.revision:
            # A watch never does that. Whatever came in its wrong place must not be written.
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

    def _go_on(self, now: Instant) -> list[Any]:
        """Write at once when there is much, soon when there is something."""
        if self._awaits is not None:
            return []
        chain = self._chain
        if len(chain.waiting) >= FLUSH_LINES:
            return self._flush()
        if chain.waiting and self._is_due:
            # Not put off by what comes after it, or a steady trickle would never be written.
            return []
        if chain.waiting:
            self._is_due = True
            return [Wake(_FLUSH, now.monotonic_ms + FLUSH_MS)]
        if chain.end.revision - self.head.revision >= IDLE_REVISIONS:
            return self._move(chain.end)
        return []

    def _flush(self) -> list[Any]:
        chain = self._chain
        if self._awaits is not None or not self.is_writing or not chain.waiting:
            return []
        self._flight = (len(chain.waiting), chain.end)
        return [Append(self._call(self._appended), tuple(chain.waiting))]

    def _appended(self, body: Any, now: Instant) -> list[Any]:
        flight = self._flight
        if not isinstance(body, Appended) or flight is None:
            return self._failed(body, now)
        head = flight[1]
        floor = min(max(head.floor, body.floor), head.number)
        thinned = min(max(head.thinned, body.thinned), head.number)
        ended = {server: last for server, last in head.ended.items() if server != self.name}
        moved = msgspec.structs.replace(head, floor=floor, thinned=thinned, ended=ended)
        return self._move(moved)

    # When the store has forgotten too early ------------------------------------------------------

    def _lost_place(self) -> list[Any]:
        """Find out whether anything is lost, and from where on nothing is."""
        after = self._chain.end.revision
        self._rest()
        self._search = HistorySearch(after, after)
        return [everything(self._call(self._read_for_search))]

    def _read_for_search(self, body: Any, now: Instant) -> list[Any]:
        search, known = self._search, self.head
        if isinstance(body, HoldfastError) or search is None:
            return self._failed(body, now)
        if not self._learn(body) or self.head != known:
            return [*self._rest(), *self._look()]
        if self._stamp_revision <= search.after:
            # Nobody did anything; what is forgotten were leases that were renewed.
            return self._move(msgspec.structs.replace(self.head, revision=body.revision))
        search.there = body.revision
        if not search.after:
            return self._narrow(search, now)
        # Whoever says that a place is gone may be wrong; it is if that revision can be read.
        return [stamp_at(self._call(self._asked_again), search.after)]

    def _asked_again(self, body: Any, now: Instant) -> list[Any]:
        if self._search is None or not isinstance(body, Expired):
            return self._failed(body, now)
        return self._narrow(self._search, now)

    def _narrow(self, search: HistorySearch, now: Instant) -> list[Any]:
        if not search.is_over:
            return [stamp_at(self._call(self._probed), search.probe())]
        gap = Gap(search.after, search.there, now.wall_ms)
        self._search = None
        return self._move(msgspec.structs.replace(self.head, revision=search.there, gap=gap))

    def _probed(self, body: Any, now: Instant) -> list[Any]:
        is_gone = isinstance(body, Expired)
        if self._search is None or (isinstance(body, HoldfastError) and not is_gone):
            return self._failed(body, now)
        self._search.heard(is_gone=is_gone)
        return self._narrow(self._search, now)


def _checked(body: Any) -> Any:
    """An answer, or why it cannot be used: a head that cannot be read must not end the server."""
    for record in getattr(body, "records", ()):
        if record.key == keys.audit_head():
            try:
                head_of(record.value)
            except msgspec.DecodeError as error:
                return Unavailable(f"the head of the audit cannot be read: {error}")
    return body


_Take = Callable[[Any, Instant], list[Any]]
