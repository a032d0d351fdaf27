"""Whether a component holds the lease of its scope: what it believes, and what was acknowledged.

"Am I the leader" and "was my last renewal acknowledged" are two questions. The first decides which
epoch a request names; only the commit knows whether that epoch still counts. The second tells a
component that lost contact to stop trying, long before anybody takes over.

The owner calls `due` when its clock says so, sends what it returns, and gives back the answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import plane_format
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, ReleaseLease, RenewLease, Term
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Get, GetResult

# Safety does not rest on how long a lease lasts: the commit compares its epoch, so that whatever an
# earlier holder sends is refused once another one holds it. What the time is for is that a holder
# whose server hangs keeps its lease: it renews every 2 s, a renewal without an answer is given up
# after RENEW_TIMEOUT_MS, and the next one at another server has 2 s left. A standby takes over
# after the lease and one look at most.
LEASE_MS = 6_000
# A holder renews three times in the life of its lease, so that one lost renewal costs nothing.
RENEWALS_PER_LEASE = 3
RENEW_TIMEOUT_MS = 2_000
# Whoever waits for it looks as often, and once more when it would be free.
LOOKS_PER_LEASE = 3


class _Sighting(msgspec.Struct, frozen=True, gc=False):
    """The lease as it was last seen to move, by our own clock."""

    epoch: int
    renewals: int
    since_ms: int


class LeaderElection:
    """See the module's docstring. `identity` is the full name under which the lease is held.

    `instance` is the name of this process among those that share the identity, the same in all its
    lives: what an earlier life holds is taken over at once, what another process holds is not.
    """

    def __init__(
        self, scope: str, identity: str, lease_ms: int = LEASE_MS, *, instance: str = ""
    ) -> None:
        self.scope, self.identity, self.lease_ms = scope, identity, lease_ms
        self.instance = instance
        self._term: Term | None = None
        self._seen: _Sighting | None = None
        # How many renewals of this term were sent, whatever became of them.
        self._renewals = 0
        self._waiting = False
        self._next_ms = 0
        # When `due` last had something to say.
        self._asked_ms = 0
        # Until we held it, our name on the lease is that of an earlier life. Later it is a twin's,
        # which was started under our name by mistake: two that take it from each other at once
        # would never rest.
        self._may_inherit = True
        # When the last acknowledged acquisition or renewal was sent.
        self.acknowledged_ms: int | None = None

    @property
    def term(self) -> Term | None:
        """The lease that requests name, if we hold one as far as we know."""
        return self._term

    def is_acknowledged(self, now: Instant) -> bool:
        """Whether the lease was acknowledged within its own duration, counted from the sending."""
        sent_ms = self.acknowledged_ms
        return sent_ms is not None and now.monotonic_ms - sent_ms < self.lease_ms

    @property
    def next_ms(self) -> int:
        """When `due` has something to say next."""
        return self._next_ms

    def due(self, now: Instant, *, early_ms: int = 0) -> Get | AcquireLease | RenewLease | None:
        """What to ask the servers now, if anything, or if it were so much later."""
        if self._waiting or now.monotonic_ms + early_ms < self._next_ms:
            return None
        self._waiting, self._asked_ms = True, now.monotonic_ms
        if self._term is not None:
            self._next_ms = now.monotonic_ms + self.lease_ms // RENEWALS_PER_LEASE
            self._renewals += 1
            return RenewLease(self._term, number=self._renewals, version=plane_format.VERSION)
        self._next_ms = now.monotonic_ms + self.lease_ms // LOOKS_PER_LEASE
        return Get("leases", lease_name(self.scope))

    def answered(
        self, request: Any, answer: Any, sent_ms: int, now: Instant
    ) -> AcquireLease | None:
        """Take in the answer to what `due` asked; what to ask right after it, if anything."""
        self._waiting = False
        if isinstance(request, Get):
            return self._sighted(answer, now) if isinstance(answer, GetResult) else None
        if isinstance(request, RenewLease) and request.term != self._term:
            # It was about a term that is over.
            return None
        match answer:
            case Accepted(objects=objects):
                for lease in objects:
                    if isinstance(lease, Lease) and lease.spec.holder == self.identity:
                        self._term = Term(self.scope, lease.spec.epoch)
                        if isinstance(request, AcquireLease):
                            self._renewals = lease.spec.renewals
                        self.acknowledged_ms = sent_ms
                        # From the look that led to it, so that leases that were looked at
                        # together are renewed together.
                        self._next_ms = self._asked_ms + self.lease_ms // RENEWALS_PER_LEASE
                        self._seen = None
                        self._may_inherit = False
            case Refusal(reason=reason) if reason is not Reason.CONTENTION:
                # Somebody else holds it by now, or was faster.
                self.lost()
        return None

    def lost(self) -> None:
        """A request was refused for its epoch: we are not the holder any more."""
        self._term = None
        self._seen = None
        self.acknowledged_ms = None

    def release(self) -> ReleaseLease | None:
        """What gives it back, so that the next one need not wait."""
        term = self._term
        self.lost()
        return ReleaseLease(term) if term is not None else None

    def _sighted(self, found: GetResult, now: Instant) -> AcquireLease | None:
        """Judge by our own clock whether the holder still moves; take over when it does not."""
        spec = found.object.spec if isinstance(found.object, Lease) else None
        if spec is None or not spec.holder:
            return self._acquire(spec.epoch if spec else 0, spec.renewals if spec else 0)
        is_ours = (spec.holder, spec.instance) == (self.identity, self.instance)
        if is_ours and self._may_inherit:
            # An earlier life of ours holds it; nobody has to wait for that one.
            return self._acquire(spec.epoch, spec.renewals)
        seen = self._seen
        if seen is None or (seen.epoch, seen.renewals) != (spec.epoch, spec.renewals):
            self._seen = _Sighting(spec.epoch, spec.renewals, now.monotonic_ms)
            return None
        free_ms = seen.since_ms + spec.duration_ms
        if now.monotonic_ms < free_ms:
            if free_ms < self._next_ms + self.lease_ms // LOOKS_PER_LEASE // 2:
                # A look just before that moment would tell nothing.
                self._next_ms = free_ms
            return None
        return self._acquire(spec.epoch, spec.renewals)

    def _acquire(self, epoch: int, renewals: int) -> AcquireLease:
        self._waiting = True
        return AcquireLease(
            self.scope,
            self.lease_ms,
            epoch,
            renewals,
            instance=self.instance,
            version=plane_format.VERSION,
        )
