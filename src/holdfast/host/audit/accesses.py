"""Accesses that change nothing and are written down all the same: exec, logs, reads of Secrets,
certificates that are issued, and credentials that were refused.

They get into the same chain as changes. Every transaction says in a stamp (`model/audit`) who did
what in it, and this writes one with nothing but a stamp; the scribe makes records of all alike.
What a person asks for is written before it is given: `record` returns once the store has it. What
nobody can wait for is noted, and written a moment later.

Whoever repeats himself must not be able to fill the journal. What is alike within a window is one
record with a count. Beyond a number of records for each tenant, the names are left out, so that
what remains is alike. Failed authentications are counted by address, for a bounded number of
addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import msgspec

from holdfast.host import clock
from holdfast.host.certificates import serial_of
from holdfast.model import keys
from holdfast.model.audit import Mutation, Stamp, encoded
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.plane_format import unusable
from holdfast.model.transaction import ABSENT, Compare, Put, Refused, Transaction
from holdfast.store.contract import Store

EXEC, READ_LOG = "Exec", "ReadLog"
READ, LIST, WATCH = "Read", "List", "Watch"
ISSUE, RENEW = "IssueCertificate", "RenewCertificate"
FAILED = "AuthenticationFailed"
# What is alike within this time is one record.
WINDOW_MS = 60_000
# So many different accesses of a tenant are told with their names in a window, and so many
# addresses of those who failed; all beyond that are counted together.
NAMED_PER_TENANT_MAX = 120
UNNAMED_PER_TENANT_MAX = 30
FAILED_SOURCES_MAX = 50
OTHERS = "others"
# So many waiting accesses are kept while the store is away; of more it is counted how many.
WAITING_MAX = 1_000
# A transaction has no more than this, in any store.
BATCH_MAX = 200
# Whoever waits for its record gives up after this time.
PATIENCE_S = 5.0
RETRY_S = 1.0
TRIES_MAX = 3
TEXT_MAX = 200
_log = logging.getLogger(__name__)


class _Alike(msgspec.Struct):
    """How often the same was done since it was last written down."""

    said: Mutation
    count: int = 0


class Accesses:
    """See the module's docstring. `run` writes, for as long as the server lives."""

    def __init__(
        self,
        store: Store,
        closed: Callable[[], str] = lambda: "",
        now_ms: Callable[[], int] = clock.monotonic_ms,
        wall_ms: Callable[[], int] = lambda: clock.now().wall_ms,
    ) -> None:
        """`closed` says why nothing may be written at the moment."""
        self._store, self._closed = store, closed
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._window_ms = now_ms()
        self._alike: dict[Mutation, _Alike] = {}
        # How many records each tenant has in this window.
        self._told: dict[str, int] = {}
        self._sources: set[str] = set()
        self._waiting: list[tuple[Mutation, asyncio.Future[None] | None]] = []
        self._wake = asyncio.Event()
        self._format_modified = ABSENT
        # For metrics: records that were written, and accesses that could not be kept.
        self.written = 0
        self.lost = 0

    # What happens --------------------------------------------------------------------------------

    async def record(self, said: Mutation) -> None:
        """Have it in the store before anything is given. Raises Unavailable."""
        why = self._closed()
        if why:
            raise Unavailable(why)
        first = self._first(said)
        if first is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(first, future)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await future
        except TimeoutError:
            raise Unavailable(
                "this cannot be written to the audit at the moment, so it is not given; try again"
            ) from None

    def note(self, said: Mutation) -> None:
        """Have it written soon. Nobody waits for it."""
        first = self._first(said)
        if first is not None:
            self._enqueue(first, None)

    def failed(self, source: str, credential: str) -> None:
        """Somebody showed what is not, or no longer, good here, or nothing at all."""
        self._turn()
        if source not in self._sources:
            if len(self._sources) >= FAILED_SOURCES_MAX:
                source, credential = OTHERS, ""
            else:
                self._sources.add(source)
        said = Mutation(who="", verb=FAILED, source=source)
        if said not in self._alike:
            # What was shown is told once for each address: it is of the sender's own making.
            self._alike[said] = _Alike(said)
            told = msgspec.structs.replace(said, credential=plain(credential))
            self._enqueue(told, None)
        else:
            self._alike[said].count += 1

    def _first(self, said: Mutation) -> Mutation | None:
        """What is to be written now; nothing if something alike was, and it is counted."""
        self._turn()
        for form in self._forms(said):
            found = self._alike.get(form)
            if found is not None:
                found.count += 1
                return None
        self._told[form.namespace] = self._told.get(form.namespace, 0) + 1
        self._alike[form] = _Alike(form)
        return form

    def _forms(self, said: Mutation) -> Iterator[Mutation]:
        """In how much detail it is told: less, the more a tenant has in this window already."""
        yield said
        told = self._told.get(said.namespace, 0)
        if told >= NAMED_PER_TENANT_MAX:
            less = Mutation(who=said.who, verb=said.verb, kind=said.kind, namespace=said.namespace)
            yield less
            if told >= NAMED_PER_TENANT_MAX + UNNAMED_PER_TENANT_MAX:
                yield msgspec.structs.replace(less, who=OTHERS)

    def _turn(self) -> None:
        """When a window is over, what was counted in it becomes records."""
        now_ms = self._now_ms()
        if now_ms < self._window_ms + WINDOW_MS:
            return
        self._window_ms = now_ms
        for it in self._alike.values():
            if it.count:
                self._enqueue(msgspec.structs.replace(it.said, count=it.count), None)
        self._alike.clear()
        self._told.clear()
        self._sources.clear()

    def _enqueue(self, said: Mutation, future: asyncio.Future[None] | None) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.lost += said.count or 1
            if future is not None:
                future.set_exception(Unavailable("too many accesses wait for the audit; try again"))
            return
        self._waiting.append((said, future))
        self._wake.set()

    # Writing it down -----------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the server lives."""
        while True:
            left_s = (self._window_ms + WINDOW_MS - self._now_ms()) / 1_000
            try:
                async with asyncio.timeout(max(0.1, left_s)):
                    await self._wake.wait()
            except TimeoutError:
                self._turn()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. What the store does not take stays, and is tried again."""
        while self._waiting:
            batch = self._waiting[:BATCH_MAX]
            try:
                await self._write(tuple(said for said, _ in batch))
            except HoldfastError as error:
                _log.warning("accesses were not written to the audit: %s", error.message)
                # Those who waited are told, and are not given what they asked for.
                del self._waiting[: len(batch)]
                kept = [it for it in batch if it[1] is None]
                self._waiting[:0] = kept
                for _, future in batch:
                    if future is not None and not future.done():
                        future.set_exception(Unavailable(error.message))
                await asyncio.sleep(RETRY_S)
                self._wake.set()
                return
            del self._waiting[: len(batch)]
            self.written += len(batch)
            for _, future in batch:
                if future is not None and not future.done():
                    future.set_result(None)

    async def _write(self, said: tuple[Mutation, ...]) -> None:
        put = Put(keys.audit_stamp(), encoded(Stamp(self._wall_ms(), said)))
        for _ in range(TRIES_MAX):
            compare = Compare(keys.plane_format(), self._format_modified)
            outcome = await self._store.txn(Transaction((compare,), (put,)))
            if not isinstance(outcome, Refused):
                return
            found = outcome.current[0]
            why = unusable(found.value) if found is not None else ""
            if why:
                raise Unavailable(why)
            self._format_modified = found.modified if found is not None else ABSENT
        raise Unavailable("the format of the plane changes all the time")


def certified(verb: str, certificate: bytes, name: str, source: str = "") -> Mutation:
    """That this certificate was issued to somebody."""
    return Mutation(
        who=name,
        verb=verb,
        kind="certificates",
        name=name,
        source=source,
        credential=f"certificate {serial_of(certificate):x}",
    )


def plain(text: str) -> str:
    """What a client has made up, for a record: printable, and not long."""
    return "".join(it if it.isprintable() else "?" for it in text[:TEXT_MAX])
