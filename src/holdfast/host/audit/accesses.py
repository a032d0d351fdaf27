"""Accesses that change nothing and are written down all the same: exec, logs, reads of Secrets,
certificates that are issued, and credentials that were refused.

They get into the same chain as changes. Every transaction says in a stamp (`model/audit/records`)
who did what in it, and this writes one with nothing but a stamp; the scribe makes records of all
alike. What a person asks for is written before it is given: `record` returns once the store has it.
What nobody can wait for is noted, and written a moment later.

A client that repeats itself must not be able to fill the journal, nor to hide behind the noise that
it makes. What is alike within a window is one record with a count. Each user has a budget for each
verb, and a tenant one for all of its users; who exceeds it is refused and never told in less
detail. What cannot be refused, since it is noted only, is shortened: the user, the address and the
credential stay. Failed authentications are counted by address, for a bounded number of addresses.
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
from holdfast.model.audit.records import Mutation, Stamp, encode
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.plane_format import format_refusal
from holdfast.model.transaction import ABSENT, Compare, CompareFailed, Put, Transaction
from holdfast.store.contract import Store

EXEC, READ_LOG = "Exec", "ReadLog"
READ, LIST, WATCH = "Read", "List", "Watch"
ISSUE, RENEW = "IssueCertificate", "RenewCertificate"
FAILED = "AuthenticationFailed"
# What is alike within this time is one record.
WINDOW_MS = 60_000
# So many different accesses with one verb a user has in a window. The next one is refused.
PER_USER_MAX = 240
# So many the users of a tenant have together. Beyond it each user still has its first few: one user
# of a tenant cannot use up what the others need.
PER_TENANT_MAX = 600
ASSURED_PER_USER = 5
# Of what is noted beyond that, so many short records of a user tell from where and with what.
SHORT_PER_USER_MAX = 60
# So many addresses are named of those who failed; all beyond that are counted together.
FAILED_SOURCES_MAX = 50
OTHERS = "others"
# So many waiting accesses are kept while the store is away; of more it is counted how many.
WAITING_MAX = 10_000
# A transaction has no more than this, in any store.
BATCH_MAX = 200
# Whoever waits for its record gives up after this time.
PATIENCE_S = 5.0
RETRY_S = 1.0
TRIES_MAX = 3
TEXT_MAX = 200
_log = logging.getLogger(__name__)


# What became of a record that was to be written: an error, or nothing once the store has it.
_Landed = asyncio.Future[HoldfastError | None]


class _Alike(msgspec.Struct):
    """What was done, when it is in the store, and how often it was done since."""

    said: Mutation
    landed: _Landed
    count: int = 0

    @property
    def failed(self) -> bool:
        return self.landed.done() and self.landed.result() is not None


class _Waiting(msgspec.Struct, frozen=True):
    """A record that is to be written; if `kept`, also when the store is away in between."""

    said: Mutation
    landed: _Landed
    kept: bool


class AccessRecorder:
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
        # How many records of each user and verb, and of each tenant, are in this window.
        self._by_user: Counter[tuple[str, str]] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._sources: set[str] = set()
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._format_modified = ABSENT
        # For metrics: records that were written, and accesses that could not be kept.
        self.written = 0
        self.lost = 0

    # What happens --------------------------------------------------------------------------------

    async def record(self, said: Mutation) -> None:
        """Have it in the store before anything is given. Raises Unavailable, and Overloaded where
        its user has too many records already.
        """
        why = self._closed()
        if why:
            raise Unavailable(why)
        landed = self._landed(said, kept=False)
        # One that times out does not end it for others who wait for the same record.
        await asyncio.wait((landed,), timeout=PATIENCE_S)
        if not landed.done():
            raise Unavailable(
                "this cannot be written to the audit at the moment, so it is not given; try again"
            )
        error = landed.result()
        if error is not None:
            raise Unavailable(error.message)

    def note(self, said: Mutation) -> None:
        """Have it written soon. Nobody waits for it."""
        self._landed(said, kept=True)

    def failed(self, source: str, credential: str) -> None:
        """Somebody showed what is not, or no longer, good here, or nothing at all."""
        self._turn()
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
        # What was shown is told once for each address: it is of the sender's own making.
        told = msgspec.structs.replace(said, credential=printable(credential))
        self._alike[said] = _Alike(said, self._enqueue(told, kept=True))

    def _landed(self, said: Mutation, *, kept: bool) -> _Landed:
        """When it is written down, alone or with what is alike. Raises Overloaded."""
        self._turn()
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
        """Whether its user, and its tenant, may have one more record in this window."""
        if said in self._alike:
            return True
        own = self._by_user[said.who, said.verb]
        is_crowded = self._by_tenant[said.namespace] >= PER_TENANT_MAX
        return own < (ASSURED_PER_USER if is_crowded else PER_USER_MAX)

    def _whole(self, said: Mutation) -> Mutation:
        """It is told in full, or not given: less detail would be a way to hide."""
        if self._has_room(said):
            return said
        left_s = 1 + (self._window_ms + WINDOW_MS - self._now_ms()) // 1_000
        raise Overloaded(
            f"the audit has as many records of {said.verb} by {said.who} in "
            f"{said.namespace or 'the plane'} as it takes within a minute; retry after {left_s} s",
            Why.RATE_EXCEEDED,
            left_s,
        )

    def _short(self, said: Mutation) -> Mutation:
        """What has happened already, and what a node reads, is told in less detail at most."""
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

    def _turn(self) -> None:
        """When a window is over, what was counted in it becomes records."""
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
                await self._write(tuple(it.said for it in batch))
            except HoldfastError as error:
                _log.warning("accesses were not written to the audit: %s", error.message)
                # Those who waited are told, and are not given what they asked for.
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
        raise Unavailable("the format of the plane changes all the time")


def certificate_record(verb: str, certificate: bytes, name: str, source: str = "") -> Mutation:
    """That this certificate was issued to somebody."""
    return Mutation(
        who=name,
        verb=verb,
        kind="certificates",
        name=name,
        source=source,
        credential=f"certificate {serial_of(certificate):x}",
    )


def printable(text: str) -> str:
    """What a client has made up, for a record: printable, and not long."""
    return "".join(it if it.isprintable() else "?" for it in text[:TEXT_MAX])
