"""Audit records of accesses that change nothing: exec, logs, reads of Secrets, issued certificates,
and refused credentials.

They are in the same chain as changes. Every transaction has a stamp (`model/audit/audit_records`)
that says who did what in it; this writes transactions with nothing but a stamp, and the audit
writer turns all of them into records. What a person asks for is recorded before it is granted:
`record` returns once the store has it. What cannot wait is noted, and written a moment later.

A client that repeats itself must not be able to fill the journal, nor to hide in the noise that it
makes. Equal accesses within a window are one record with a count. Each user has a budget for each
verb, and a tenant one for all of its users; accesses beyond it are refused and never recorded in
less detail. What cannot be refused, since it is only noted, is shortened: the user, the address and
the credential stay. Failed authentications are counted by address, for a bounded number of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.overload import RejectionReason as Why
from holdfast.host.pki.certificates import serial_of
from holdfast.host.process import clock
from holdfast.model import keys
from holdfast.model.audit.audit_records import Mutation, Stamp, encode
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.plane_format import format_refusal
from holdfast.model.transaction import ABSENT, Compare, CompareFailed, Put, Transaction
from holdfast.store.contract import Store

EXEC, READ_LOG = "Exec", "ReadLog"
READ, LIST, WATCH = "Read", "List", "Watch"
ISSUE, RENEW = "IssueCertificate", "RenewCertificate"
FAILED = "AuthenticationFailed"
# Equal accesses within this time are one record.
WINDOW_MS = 60_000
# The most different accesses of a user with one verb in a window. The next one is refused.
PER_USER_MAX = 240
# The most of all users of a tenant together. Beyond it each user still has its first few: one user
# of a tenant cannot use up what the others need.
PER_TENANT_MAX = 600
ASSURED_PER_USER = 5
# Beyond that, this many short records of a user's noted accesses tell the address and credential.
SHORT_PER_USER_MAX = 60
# Failed authentications are counted for this many addresses; all others are counted together.
FAILED_SOURCES_MAX = 50
OTHERS = "others"
# Accesses that may wait while the store is away; further ones are only counted.
WAITING_MAX = 10_000
# The most in one transaction, in any store.
BATCH_MAX = 200
# How long a caller waits for its record.
PATIENCE_S = 5.0
RETRY_S = 1.0
TRIES_MAX = 3
TEXT_MAX = 200
_log = logging.getLogger(__name__)


# The outcome of writing a record: an error, or None once the store has it.
_Landed = asyncio.Future[HoldfastError | None]


class _Alike(msgspec.Struct):
    """An access, when the store has it, and how often it was repeated since."""

    said: Mutation
    landed: _Landed
    count: int = 0

    @property
    def failed(self) -> bool:
        return self.landed.done() and self.landed.result() is not None


class _Waiting(msgspec.Struct, frozen=True):
    """A record to be written; if `kept`, even if the store is away in between."""

    said: Mutation
    landed: _Landed
    kept: bool


class AccessRecorder:
    """See the module's docstring. `run` writes the records until cancelled."""

    def __init__(
        self,
        store: Store,
        closed: Callable[[], str] = lambda: "",
        now_ms: Callable[[], int] = clock.monotonic_ms,
        wall_ms: Callable[[], int] = lambda: clock.now().wall_ms,
    ) -> None:
        """`closed` returns why nothing may be written at the moment."""
        self._store, self._closed = store, closed
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._window_ms = now_ms()
        self._alike: dict[Mutation, _Alike] = {}
        # The number of records in this window, by user and verb, and by tenant.
        self._by_user: Counter[tuple[str, str]] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._sources: set[str] = set()
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._format_modified = ABSENT
        # For metrics: records written, and accesses lost.
        self.written = 0
        self.lost = 0

    # Recording -----------------------------------------------------------------------------------

    async def record(self, said: Mutation) -> None:
        """Write a record before access is granted. Raises Unavailable, and Overloaded if its user
        has too many records already.
        """
        why = self._closed()
        if why:
            raise Unavailable(why)
        landed = self._landed(said, kept=False)
        # A caller that times out does not cancel it for others that wait for the same record.
        await asyncio.wait((landed,), timeout=PATIENCE_S)
        if not landed.done():
            raise Unavailable(
                "the audit cannot record this access at the moment, so it is refused; try again"
            )
        error = landed.result()
        if error is not None:
            raise Unavailable(error.message)

    def note(self, said: Mutation) -> None:
        """Write a record soon, without waiting."""
        self._landed(said, kept=True)

    def failed(self, source: str, credential: str) -> None:
        """Count a failed authentication."""
        self.end_window()
        if source not in self._sources:
            if len(self._sources) >= FAILED_SOURCES_MAX:
                source, credential = OTHERS, ""
            else:
                self._sources.add(source)
        said = Mutation(who="", verb=FAILED, source=source)
        found = self._alike.get(said)
        if found is not None:
            found.count += 1
            return
        # The credential is recorded once per address: its sender can invent it.
        recorded = msgspec.structs.replace(said, credential=printable(credential))
        self._alike[said] = _Alike(said, self._enqueue(recorded, kept=True))

    def _landed(self, said: Mutation, *, kept: bool) -> _Landed:
        """Return the future of the record, which may be shared. Raises Overloaded."""
        self.end_window()
        form = self._short(said) if kept else self._whole(said)
        found = self._alike.get(form)
        if found is not None and not found.failed:
            found.count += 1
            return found.landed
        self._by_user[form.who, form.verb] += 1
        self._by_tenant[form.namespace] += 1
        landed = self._enqueue(form, kept=kept)
        self._alike[form] = _Alike(form, landed)
        return landed

    def _has_room(self, said: Mutation) -> bool:
        """Return whether its user and its tenant may have one more record in this window."""
        if said in self._alike:
            return True
        own = self._by_user[said.who, said.verb]
        is_crowded = self._by_tenant[said.namespace] >= PER_TENANT_MAX
        return own < (ASSURED_PER_USER if is_crowded else PER_USER_MAX)

    def _whole(self, said: Mutation) -> Mutation:
        """Return the full record or refuse: less detail would be a way to hide."""
        if self._has_room(said):
            return said
        left_s = 1 + (self._window_ms + WINDOW_MS - self._now_ms()) // 1_000
        raise Overloaded(
            f"the audit accepts no more records of {said.verb} by {said.who} in "
            f"{said.namespace or 'the plane'} within a minute; retry after {left_s} s",
            Why.RATE_EXCEEDED,
            left_s,
        )

    def _short(self, said: Mutation) -> Mutation:
        """Shorten a record of what has happened already, or of what a node reads."""
        if self._has_room(said):
            return said
        short = Mutation(
            who=said.who,
            verb=said.verb,
            kind=said.kind,
            namespace=said.namespace,
            source=said.source,
            credential=said.credential,
        )
        is_told = short in self._alike
        if is_told or self._by_user[said.who, said.verb] < PER_USER_MAX + SHORT_PER_USER_MAX:
            return short
        return Mutation(who=said.who, verb=said.verb)

    def end_window(self) -> None:
        """Turn the counts of a finished window into records."""
        now_ms = self._now_ms()
        if now_ms < self._window_ms + WINDOW_MS:
            return
        self._window_ms = now_ms
        for it in self._alike.values():
            if it.count and not it.failed:
                self._enqueue(msgspec.structs.replace(it.said, count=it.count), kept=True)
        self._alike.clear()
        self._by_user.clear()
        self._by_tenant.clear()
        self._sources.clear()

    def _enqueue(self, said: Mutation, *, kept: bool) -> _Landed:
        landed: _Landed = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= WAITING_MAX:
            self.lost += said.count or 1
            landed.set_result(Unavailable("too many accesses wait for the audit; try again"))
        else:
            self._waiting.append(_Waiting(said, landed, kept))
            self._wake.set()
        return landed

    # Writing -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            left_s = (self._window_ms + WINDOW_MS - self._now_ms()) / 1_000
            try:
                async with asyncio.timeout(max(0.1, left_s)):
                    await self._wake.wait()
            except TimeoutError:
                self.end_window()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what waits. What the store does not accept stays and is tried again."""
        while self._waiting:
            batch = self._waiting[:BATCH_MAX]
            try:
                await self._write(tuple(it.said for it in batch))
            except HoldfastError as error:
                _log.warning("accesses were not written to the audit: %s", error.message)
                # The waiting callers get the error and no access.
                self._waiting[: len(batch)] = [it for it in batch if it.kept]
                for it in batch:
                    if not it.kept and not it.landed.done():
                        it.landed.set_result(error)
                await asyncio.sleep(RETRY_S)
                self._wake.set()
                return
            del self._waiting[: len(batch)]
            self.written += len(batch)
            for it in batch:
                if not it.landed.done():
                    it.landed.set_result(None)

    async def _write(self, said: tuple[Mutation, ...]) -> None:
        put = Put(keys.audit_stamp(), encode(Stamp(self._wall_ms(), said)))
        for _ in range(TRIES_MAX):
            compare = Compare(keys.plane_format(), self._format_modified)
            outcome = await self._store.txn(Transaction((compare,), (put,)))
            if not isinstance(outcome, CompareFailed):
                return
            found = outcome.current[0]
            why = format_refusal(found.value) if found is not None else ""
            if why:
                raise Unavailable(why)
            self._format_modified = found.modified if found is not None else ABSENT
        raise Unavailable("the format of the plane keeps changing; try again")


def certificate_record(verb: str, certificate: bytes, name: str, source: str = "") -> Mutation:
    """Return the record of an issued certificate."""
    return Mutation(
        who=name,
        verb=verb,
        kind="certificates",
        name=name,
        source=source,
        credential=f"certificate {serial_of(certificate):x}",
    )


def printable(text: str) -> str:
    """Return a client's text for a record: printable, and not long."""
    return "".join(it if it.isprintable() else "?" for it in text[:TEXT_MAX])
