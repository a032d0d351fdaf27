"""A server's decisions: its authority, and the lease that makes one server the usual one.

Compares make any number of servers safe; the lease `authority` makes them fast. Its holder decides
on a view that is nearly always current, the others forward to it. When the holder cannot be
reached a server decides by itself, which costs conflicts, never correctness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit.authority import (
    DEFAULT_LIMITS,
    DEFAULT_SETTINGS,
    QUEUE_MAX,
    Authority,
    Limits,
)
from holdfast.commit.context import Settings
from holdfast.commit.exhausted import Exhausted
from holdfast.commit.records import decode
from holdfast.model import identity as who
from holdfast.model import keys
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.identity import Identity, acts_as
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Range,
    Rng,
    Started,
    Tokens,
    Wake,
    Woken,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Forward,
    ReleaseLease,
    RenewLease,
    Term,
)
from holdfast.model.time import Instant

SCOPE = "authority"
LEASE_MS = 6_000
# A holder renews three times in the life of a lease, so that one lost renewal costs nothing.
TICKS_PER_LEASE = 3
FORWARD_TIMEOUT_MS = 2_000
_TICK = "lease"


# Who leads is a matter of leases also while nothing else is changed.
_ALWAYS = (AcquireLease, RenewLease, ReleaseLease)


class _Sighting(msgspec.Struct, frozen=True, gc=False):
    """The lease as it was last seen to move, by this server's own clock."""

    epoch: int
    renewals: int
    holder: str
    since_ms: int


class Server:
    """Takes in requests, decides or forwards them, and keeps or seeks the lease.

    `address` is where other servers reach this one. The lease carries it, from the next renewal on.
    """

    def __init__(
        self,
        name: str,
        rng: Rng,
        tokens: Tokens,
        settings: Settings = DEFAULT_SETTINGS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._identity = who.server(name)
        self._authority = Authority(rng, tokens, settings, limits)
        self._term: Term | None = None
        self._seen: _Sighting | None = None
        self._seeking: int | None = None
        self._reading: int | None = None
        self._forwarded: dict[int, Asked] = {}
        self._silent_until_ms = 0
        self.address = ""
        # Why nothing may be changed at the moment, if the shell knows of a reason.
        self.closed: Callable[[], str] = str

    @property
    def exhausted(self) -> Exhausted:
        """Whom this server refused for want of a budget."""
        return self._authority.exhausted

    @property
    def term(self) -> Term | None:
        """Under which epoch this server is the usual one, as far as it knows."""
        return self._term

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Started():
                return [*self._tick(now), *self._through(stimulus, now)]
            case Woken(name=name) if name == _TICK:
                return self._tick(now)
            case Asked():
                return self._asked(stimulus, now)
            case Answered(call=call) if call in self._forwarded:
                return self._returned(stimulus, now)
            case Answered(call=call) if call == self._reading:
                return self._sighted(stimulus.body, now)
            case _:
                return self._through(stimulus, now)

    # Requests ------------------------------------------------------------------------------------

    def _asked(self, asked: Asked, now: Instant) -> list[Any]:
        sender = asked.sender
        identity = sender if isinstance(sender, Identity) else Identity(name=sender)
        closed = self.closed()
        if closed and not isinstance(_request_in(asked.body), _ALWAYS):
            return [Answer(asked.call, Unavailable(closed))]
        if isinstance(asked.body, Forward):
            if Actor.AUTHORITY not in acts_as(identity):
                no = Refusal(Reason.NOT_ALLOWED, f"{identity.name} may not speak for others")
                return [Answer(asked.call, no)]
            return self._through(Asked(asked.call, asked.body.identity, asked.body.request), now)
        holder = self._holder(now)
        if holder is None:
            return self._through(asked, now)
        if len(self._forwarded) >= QUEUE_MAX:
            full = Unavailable(f"{QUEUE_MAX} requests wait for {holder} already")
            return [Answer(asked.call, full)]
        call = self._authority.next_call()
        self._forwarded[call] = Asked(asked.call, identity, asked.body)
        return [Ask(call, holder, Forward(identity, asked.body), FORWARD_TIMEOUT_MS)]

    def _holder(self, now: Instant) -> str | None:
        """The server to forward to, or None when this one should decide."""
        if self._term is not None or self._seen is None:
            return None
        if now.monotonic_ms < self._silent_until_ms:
            return None
        # Our own name is that of an earlier life of ours, which decides nothing any more.
        if self._seen.holder in ("", self._identity.name):
            return None
        return Identity(name=self._seen.holder).server

    def _returned(self, answered: Answered, now: Instant) -> list[Any]:
        asked = self._forwarded.pop(answered.call)
        if isinstance(answered.body, Unavailable):
            # It surely did not happen there, so it may happen here.
            return self._through(asked, now)
        if isinstance(answered.body, OutcomeUnknown):
            # This one may happen there yet. The next ones need not wait for a holder that is
            # silent, long before its lease runs out.
            self._silent_until_ms = now.monotonic_ms + LEASE_MS // TICKS_PER_LEASE
        return [Answer(asked.call, answered.body)]

    def _through(self, stimulus: Any, now: Instant) -> list[Any]:
        """Hand a stimulus to the authority,
        and keep the answers to our own requests from the shell.
        """
        effects: list[Any] = []
        for effect in self._authority.step(stimulus, now):
            if isinstance(effect, Answer) and effect.call < 0:
                effects += self._own_answer(effect, now)
            else:
                effects.append(effect)
        return effects

    # The lease -----------------------------------------------------------------------------------

    def _tick(self, now: Instant) -> list[Any]:
        effects: list[Any] = [Wake(_TICK, now.monotonic_ms + LEASE_MS // TICKS_PER_LEASE)]
        if self._seeking is not None or self._reading is not None:
            return effects
        if self._term is not None:
            return effects + self._request(RenewLease(self._term, address=self.address), now)
        key = keys.object_key(kind_of_struct(Lease), "", lease_name(SCOPE))
        self._reading = self._authority.next_call()
        return [*effects, Range(self._reading, key, key + "\0", 1)]

    def _request(self, request: Any, now: Instant) -> list[Any]:
        self._seeking = self._authority.next_call()
        return self._through(Asked(self._seeking, self._identity, request), now)

    def _sighted(self, body: Any, now: Instant) -> list[Any]:
        """Judge by our own clock whether the holder still moves, and take over when it does not."""
        self._reading = None
        records = getattr(body, "records", None)
        if records is None:
            return []
        spec = decode(records[0].key, records[0].value).spec if records else None
        if spec is None or not spec.holder:
            return self._acquire(now)
        if spec.holder == self._identity.name:
            # An earlier life of ours holds it; nobody has to wait for that one.
            return self._acquire(now, spec.epoch, spec.renewals)
        seen = self._seen
        if seen is None or (seen.epoch, seen.renewals) != (spec.epoch, spec.renewals):
            self._seen = _Sighting(spec.epoch, spec.renewals, spec.holder, now.monotonic_ms)
            return []
        if now.monotonic_ms - seen.since_ms < spec.duration_ms:
            return []
        return self._acquire(now, spec.epoch, spec.renewals)

    def _acquire(self, now: Instant, epoch: int = 0, renewals: int = 0) -> list[Any]:
        request = AcquireLease(SCOPE, LEASE_MS, epoch, renewals, address=self.address)
        return self._request(request, now)

    def _own_answer(self, answer: Answer, now: Instant) -> list[Any]:
        if answer.call != self._seeking:
            return []
        self._seeking = None
        match answer.body:
            case Accepted(objects=(Lease() as lease,)):
                self._term = Term(SCOPE, lease.spec.epoch)
                self._seen = None
            case Refusal():
                # Somebody else is the usual one by now, or was faster; look again at the next tick.
                self._term = None
        return []


def _request_in(body: Any) -> Any:
    return body.request if isinstance(body, Forward) else body
