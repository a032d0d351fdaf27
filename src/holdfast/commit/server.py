"""A server's decisions: its authority, and the lease that makes one server the usual one.

Compares make any number of servers safe; the lease `authority` makes them fast. Its holder decides
on a view that is nearly always current; the others forward to it. When the holder is unreachable a
server decides by itself, which costs conflicts, never correctness.

Each server also holds a lease of its own, by which all others know that it is alive (`Presence`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.commit.ages import Ages
from holdfast.commit.authority import (
    DEFAULT_LIMITS,
    DEFAULT_SETTINGS,
    QUEUE_MAX,
    Authority,
    GroupLimits,
)
from holdfast.commit.context import PlaneSettings
from holdfast.commit.flow.rates import ExhaustedBudgets
from holdfast.commit.record_encoding import decode_or_none
from holdfast.model import keys, plane_format
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.kinds.lease import Lease, LeaseSpec, lease_name
from holdfast.model.lease_takeover import (
    LEASE_MS,
    RENEWALS_PER_LEASE,
    LeaseObserver,
    LeaseSighting,
)
from holdfast.model.lifecycle import Actor
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Effects,
    Question,
    Range,
    Reply,
    Rng,
    Started,
    Stimulus,
    Tokens,
    Wake,
    Withdrawn,
    Woken,
)
from holdfast.model.nodes.heartbeat import server_lease_ms, server_scope
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Create,
    Forward,
    LeaseRequest,
    Patch,
    ReleaseLease,
    RenewLease,
    Request,
    Term,
    TermRequest,
    Update,
    is_request,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import Page, Record

# The lease by which a server is known to all others: scope `server:NAME`, renewed in the store.
#
# `AuthorityServer` sends what `due` returns and passes the answers back. Each observer judges on
# its own clock, from the renewal count, whether a server is gone (`correct/nodes/silence.py`).
# Nothing is decided under this lease, so no other server takes it over: only a process of the same
# name does, at once when it starts, because its earlier process no longer needs it. A server that
# loses it after holding it has a twin that was given its name by mistake; it waits until the twin
# stops renewing, or the two would take it from each other for ever.


class Presence:
    """See the comment above. `life` is different in every process."""

    def __init__(self, name: str, life: str, lease_ms: int) -> None:
        self.scope = server_scope(name)
        self._life, self._lease_ms = life, lease_ms
        self._observer = LeaseObserver()
        self._held_once = self._has_left = False
        # How many renewals of this term were sent, whatever became of them.
        self._renewals = 0
        self.term: Term | None = None

    @property
    def pause_ms(self) -> int:
        """The time until the next renewal."""
        return max(1, self._lease_ms // RENEWALS_PER_LEASE)

    def due(self, address: str) -> RenewLease | None:
        """The renewal if the lease is held; otherwise None, and it has to be read first."""
        if self.term is None:
            return None
        self._renewals += 1
        return RenewLease(
            self.term, address=address, number=self._renewals, version=plane_format.VERSION
        )

    @property
    def is_over(self) -> bool:
        """Whether the server stops, and releases its lease."""
        return self._has_left

    def leave(self) -> None:
        """Stop: the lease is released, and not taken again."""
        self._has_left, self.term = True, None

    def observe_lease(
        self, spec: LeaseSpec | None, address: str, now: Instant
    ) -> AcquireLease | None:
        """Take in the lease as read. Returns the acquisition if it may be taken."""
        inherits = not self._held_once or (spec is not None and spec.instance == self._life)
        if self._observer.may_take(spec, now.monotonic_ms, inherits=inherits):
            return self._acquire(spec, address)
        return None

    def answered(self, answer: Reply) -> None:
        """Take in the answer to the acquisition or the renewal."""
        match answer:
            case Accepted(objects=(Lease() as lease,)) if not self._has_left:
                self.term, self._held_once = Term(self.scope, lease.spec.epoch), True
                self._renewals = max(self._renewals, lease.spec.renewals)
                self._observer.forget()
            case Refusal(reason=reason) if reason is not Reason.CONTENTION:
                self.term, self._renewals = None, 0

    def _acquire(self, spec: LeaseSpec | None, address: str) -> AcquireLease:
        return AcquireLease(
            self.scope,
            self._lease_ms,
            spec.epoch if spec is not None else 0,
            spec.renewals if spec is not None else 0,
            instance=self._life,
            address=address,
            version=plane_format.VERSION,
        )


SCOPE = "authority"
FORWARD_TIMEOUT_MS = 2_000
_TICK = "lease"
# The wake-up of the server's own lease. A shell posts it when the address has become known.
PRESENCE = "presence"
# The longest time that agents wait until others know of a newly started server. A store that takes
# no writes keeps it unknown, but then no node can be marked either, and work must run on.
UNKNOWN_MAX_MS = 10_000


class AuthorityServer:
    """Takes in requests, decides or forwards them, and keeps or seeks the lease.

    `address` is where other servers reach this one. The lease carries it, from the next renewal on.
    """

    def __init__(
        self,
        name: str,
        rng: Rng,
        tokens: Tokens,
        settings: PlaneSettings = DEFAULT_SETTINGS,
        limits: GroupLimits = DEFAULT_LIMITS,
        *,
        life: str = "",
    ) -> None:
        """`life` tells this process from all others that ever had its name."""
        self._identity = who.server(name)
        self._presence = Presence(name, life, server_lease_ms(settings.fence))
        # The call about our own lease that is in flight: the read of it, or the request.
        self._looking: int | None = None
        self._keeping: int | None = None
        self._started_ms: int | None = None
        self._authority = Authority(rng, tokens, settings, limits, self._identity)
        self._ages = self._authority.ages = Ages()
        self._term: Term | None = None
        # How many renewals of this term were sent, whatever became of them.
        self._renewals = 0
        self._observer = LeaseObserver()
        self._seeking: int | None = None
        self._reading: int | None = None
        self._forwarded: dict[int, Asked] = {}
        # The holder's lease as seen when the holder did not answer.
        self._silent: LeaseSighting | None = None
        self.address = ""
        # Why nothing may be changed at the moment, if the shell knows of a reason.
        self.closed: Callable[[], str] = str
        # Why people may add nothing, if so: they may still delete, and components continue.
        self.full: Callable[[], str] = str

    @property
    def exhausted(self) -> ExhaustedBudgets:
        """The refusals of this server for exhausted budgets."""
        return self._authority.exhausted

    @property
    def doubts(self) -> int:
        """How many decisions of this server met a wrong record."""
        return self._authority.doubts

    @property
    def term(self) -> Term | None:
        """The term under which this server is the usual one, as far as it knows."""
        return self._term

    @property
    def presence(self) -> Term | None:
        """The lease by which others know of this server, once it has it."""
        return self._presence.term

    def unready(self, now: Instant) -> str:
        """Why this server should not take renewals yet, if so: others would consider its nodes
        silent.
        """
        since_ms = self._started_ms if self._started_ms is not None else now.monotonic_ms
        if self._presence.term is not None or now.monotonic_ms - since_ms >= UNKNOWN_MAX_MS:
            return ""
        return "this server has just started, and the others do not know of it yet"

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        match stimulus:
            case Started():
                self._started_ms = now.monotonic_ms
                begun = [*self._tick(now), *self._keep_presence(now)]
                return [*begun, *self._through(stimulus, now)]
            case Woken(name=name) if name == _TICK:
                return self._tick(now)
            case Woken(name=name) if name == PRESENCE:
                return self._keep_presence(now)
            case Asked():
                return self._asked(stimulus, now)
            case Withdrawn(calls=calls):
                gone = frozenset(calls)
                kept = {n: it for n, it in self._forwarded.items() if it.call not in gone}
                self._forwarded = kept
                return self._through(stimulus, now)
            case Answered(call=call) if call in self._forwarded:
                return self._returned(stimulus, now)
            case Answered(call=call) if call == self._reading:
                return self._sighted(stimulus.body, now)
            case Answered(call=call) if call == self._looking:
                return self._looked(stimulus.body, now)
            case _:
                return self._through(stimulus, now)

    # Requests ------------------------------------------------------------------------------------

    def _asked(self, asked: Asked, now: Instant) -> Effects:
        sender = asked.sender
        identity = sender if isinstance(sender, Identity) else Identity(name=sender)
        if _is_release_of(self._presence.scope, identity, self._identity, asked.body):
            self._presence.leave()
        closed = self.closed()
        # Leases decide who leads, even while nothing else may be changed.
        if closed and not isinstance(_request_in(asked.body), LeaseRequest):
            return [Answer(asked.call, Unavailable(closed))]
        no_room = self.full()
        if no_room and _adds(identity, asked.body):
            return [Answer(asked.call, Unavailable(no_room, code="StoreFull"))]
        if isinstance(asked.body, Forward):
            if Actor.AUTHORITY not in acts_as(identity):
                no = Refusal(Reason.NOT_ALLOWED, f"{identity.name} may not act for others")
                return [Answer(asked.call, no)]
            return self._take_in_forward(asked.call, asked.body, now)
        holder, seen = self._holder(), self._observer.seen
        if holder is None or seen is None or not is_request(asked.body):
            return self._through(asked, now)
        if len(self._forwarded) >= QUEUE_MAX:
            full = Unavailable(
                f"the queue is full: {QUEUE_MAX} requests wait for {holder}; retry later"
            )
            return [Answer(asked.call, full)]
        call = self._authority.next_call()
        self._forwarded[call] = Asked(asked.call, identity, asked.body)
        forward = Forward(identity, asked.body, seen.epoch)
        return [Ask(call, holder, forward, FORWARD_TIMEOUT_MS)]

    def _take_in_forward(self, call: int, forward: Forward, now: Instant) -> Effects:
        """Decide for another server, only under the lease for which it asked this one.

        The transaction compares the epoch. A paused server that holds an abandoned request has lost
        its lease to another since; then nothing is decided.
        """
        term = Term(SCOPE, forward.epoch)
        if self._term != term:
            return [Answer(call, Unavailable(f"this server does not decide under {term}"))]
        return self._through(Asked(call, forward.identity, TermRequest(forward.request, term)), now)

    def _holder(self) -> str | None:
        """The server to forward to, or None when this one should decide."""
        seen = self._observer.seen
        if self._term is not None or seen is None or seen == self._silent:
            return None
        # Our own name belongs to an earlier process of ours, which no longer decides anything.
        if seen.holder in ("", self._identity.name):
            return None
        return Identity(name=seen.holder).server

    def _returned(self, answered: Answered, now: Instant) -> Effects:
        asked = self._forwarded.pop(answered.call)
        if isinstance(answered.body, Unavailable):
            # It certainly did not happen there, so it may happen here.
            return self._through(asked, now)
        if isinstance(answered.body, OutcomeUnknown):
            # This one may still happen there. The next ones do not wait for a silent holder before
            # its lease has been seen to change again.
            self._silent = self._observer.seen
        return [Answer(asked.call, answered.body)]

    def _through(self, stimulus: Stimulus, now: Instant) -> Effects:
        """Pass a stimulus to the authority, and keep the answers to our own requests from the
        shell.
        """
        effects: Effects = []
        self._ages.observe(now)
        for effect in self._authority.step(stimulus, now):
            if isinstance(effect, Answer) and effect.call < 0:
                effects += self._own_answer(effect, now)
            else:
                effects.append(effect)
        return effects

    # The lease -----------------------------------------------------------------------------------

    def _tick(self, now: Instant) -> Effects:
        effects: Effects = [Wake(_TICK, now.monotonic_ms + LEASE_MS // RENEWALS_PER_LEASE)]
        if self._seeking is not None or self._reading is not None:
            return effects
        if self._term is not None:
            self._renewals += 1
            renewal = RenewLease(self._term, address=self.address, number=self._renewals)
            return effects + self._request(renewal, now)
        key = keys.object_key(kind_of_struct(Lease), "", lease_name(SCOPE))
        self._reading = self._authority.next_call()
        return [*effects, Range(self._reading, key, key + "\0", 1)]

    def _request(self, request: Request, now: Instant) -> Effects:
        self._seeking = self._authority.next_call()
        return self._through(Asked(self._seeking, self._identity, request), now)

    def _sighted(self, body: Reply, now: Instant) -> Effects:
        """Judge by our own clock whether the holder still renews, and take over when it does
        not.
        """
        self._reading = None
        if not isinstance(body, Page):
            return []
        spec = _spec(body.records)
        # An earlier process of ours needs it no more.
        inherits = spec is not None and spec.holder == self._identity.name
        if not self._observer.may_take(spec, now.monotonic_ms, inherits=inherits):
            return []
        epoch, renewals = (spec.epoch, spec.renewals) if spec is not None else (0, 0)
        request = AcquireLease(SCOPE, LEASE_MS, epoch, renewals, address=self.address)
        return self._request(request, now)

    # Our own lease -------------------------------------------------------------------------------

    def _keep_presence(self, now: Instant) -> Effects:
        """Renew the lease by which we are known, or check whether it can be acquired."""
        presence = self._presence
        if presence.is_over:
            return []
        effects: Effects = [Wake(PRESENCE, now.monotonic_ms + presence.pause_ms)]
        if self._looking is not None or self._keeping is not None:
            return effects
        request = presence.due(self.address)
        if request is not None:
            return effects + self._ask_for_presence(request, now)
        key = keys.object_key(kind_of_struct(Lease), "", lease_name(presence.scope))
        self._looking = self._authority.next_call()
        return [*effects, Range(self._looking, key, key + "\0", 1)]

    def _looked(self, body: Reply, now: Instant) -> Effects:
        self._looking = None
        if not isinstance(body, Page) or self._presence.is_over:
            return []
        spec = _spec(body.records)
        request = self._presence.observe_lease(spec, self.address, now)
        return self._ask_for_presence(request, now) if request is not None else []

    def _ask_for_presence(self, request: Request, now: Instant) -> Effects:
        # Decided here and never forwarded: our presence must not depend on another server.
        self._keeping = self._authority.next_call()
        return self._through(Asked(self._keeping, self._identity, request), now)

    def _own_answer(self, answer: Answer, now: Instant) -> Effects:
        if answer.call == self._keeping:
            self._keeping = None
            self._presence.answered(answer.body)
            return []
        if answer.call != self._seeking:
            return []
        self._seeking = None
        match answer.body:
            case Accepted(objects=(Lease() as lease,)):
                term = Term(SCOPE, lease.spec.epoch)
                if term != self._term:
                    self._ages.begin(now)
                self._term = term
                self._renewals = max(self._renewals, lease.spec.renewals)
                self._observer.forget()
            case Refusal(reason=reason) if reason is not Reason.CONTENTION:
                # Another server is the usual one now, or was faster; look again at the next tick.
                self._term, self._renewals = None, 0
                self._ages.end()
        return []


def _spec(records: Sequence[Record]) -> LeaseSpec | None:
    """The spec of a lease; None for an unreadable one, which the commit reports to a candidate."""
    lease = decode_or_none(records[0]) if records else None
    return lease.spec if isinstance(lease, Lease) else None


def _adds(identity: Identity, body: Question) -> bool:
    """Whether the request adds to the store and may wait. Operators' requests may not: they
    repair.
    """
    is_person = Actor.USER in acts_as(identity) and not identity.is_admin
    return is_person and isinstance(body, Create | Update | Patch)


def _request_in(body: Question) -> Question:
    return body.request if isinstance(body, Forward) else body


def _is_release_of(scope: str, identity: Identity, own: Identity, body: Question) -> bool:
    """Whether this server itself releases a lease of this scope."""
    if not isinstance(body, ReleaseLease) or identity.name != own.name:
        return False
    return body.term.scope == scope
