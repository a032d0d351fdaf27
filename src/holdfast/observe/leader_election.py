"""Leader election: whether a component believes it holds its lease, and what was acknowledged.

"Am I the leader" and "was my last renewal acknowledged" are two questions. The first decides which
epoch a request names; only the commit knows whether that epoch is still current. The second makes a
component that lost contact stop trying, long before another one takes over.

The owner calls `due` when its clock says so, sends what it returns, and passes the answer back.
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

# Safety does not depend on how long a lease lasts: the commit compares its epoch, and refuses what
# an earlier holder sends once another one holds the lease. The duration lets a holder keep its
# lease when its server hangs: it renews every 2 s, gives up on a renewal without an answer after
# RENEW_TIMEOUT_MS, and has 2 s left for the next one at another server. A standby takes over after
# the lease and at most one look.
LEASE_MS = 6_000
# A holder renews three times in the life of its lease, so that one lost renewal costs nothing.
RENEWALS_PER_LEASE = 3
RENEW_TIMEOUT_MS = 2_000
# A standby looks as often, and once more when the lease would be free.
LOOKS_PER_LEASE = 3


class _Sighting(msgspec.Struct, frozen=True, gc=False):
    """The lease as it was last seen to change, by our own clock."""

    epoch: int
    renewals: int
    since_ms: int


class LeaderElection:
    """See the module's docstring. `identity` is the full name under which the lease is held.

    `instance` is the name of this process among those that share the identity, and survives
    restarts: what an earlier run holds is taken over at once, what another process holds is not.
    """

    def __init__(
        self, scope: str, identity: str, lease_ms: int = LEASE_MS, *, instance: str = ""
    ) -> None:
        self.scope, self.identity, self.lease_ms = scope, identity, lease_ms
        self.instance = instance
        self._term: Term | None = None
        self._seen: _Sighting | None = None
        # How many renewals of this term were sent, whatever their outcome.
        self._renewals = 0
        self._waiting = False
        self._next_ms = 0
        # When `due` last returned a request.
        self._asked_ms = 0
        # Before we first hold it, our name on the lease is that of an earlier run. Later it is that
        # of a second process started under our name by mistake: two processes that take the lease
        # from each other at once would never stop.
        self._may_inherit = True
        # When the last acquisition or renewal that was acknowledged was sent.
        self.acknowledged_ms: int | None = None

    @property
    def term(self) -> Term | None:
        """The term that requests name, if we hold the lease as far as we know."""
        return self._term

    def is_acknowledged(self, now: Instant) -> bool:
        """Whether the lease was acknowledged within its duration, counted from the sending."""
        sent_ms = self.acknowledged_ms
        return sent_ms is not None and now.monotonic_ms - sent_ms < self.lease_ms

    @property
    def next_ms(self) -> int:
        """When `due` next returns a request."""
        return self._next_ms

    def due(self, now: Instant, *, early_ms: int = 0) -> Get | AcquireLease | RenewLease | None:
        """The request to send now, if any. `early_ms` also counts what is due that much later."""
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
        """Process the answer to a request of `due`. Returns the request to send next, if any."""
        self._waiting = False
        if isinstance(request, Get):
            return self._sighted(answer, now) if isinstance(answer, GetResult) else None
        if isinstance(request, RenewLease) and request.term != self._term:
            # It is about a term that has ended.
            return None
        match answer:
            case Accepted(objects=objects):
                for lease in objects:
                    if isinstance(lease, Lease) and lease.spec.holder == self.identity:
                        self._term = Term(self.scope, lease.spec.epoch)
                        if isinstance(request, AcquireLease):
                            self._renewals = lease.spec.renewals
                        self.acknowledged_ms = sent_ms
                        # Counted from the look that led to it, so that leases that were looked at
                        # together are renewed together.
                        self._next_ms = self._asked_ms + self.lease_ms // RENEWALS_PER_LEASE
                        self._seen = None
                        self._may_inherit = False
            case Refusal(reason=reason) if reason is not Reason.CONTENTION:
                # Another process holds it, or was faster.
                self.lost()
        return None

    def lost(self) -> None:
        """Step down: a request was refused for its epoch, so we are no longer the holder."""
        self._term = None
        self._seen = None
        self.acknowledged_ms = None

    def release(self) -> ReleaseLease | None:
        """The request that gives the lease back, so that the next holder need not wait."""
        term = self._term
        self.lost()
        return ReleaseLease(term) if term is not None else None

    def _sighted(self, found: GetResult, now: Instant) -> AcquireLease | None:
        """Judge by our own clock whether the holder still renews; take over when it does not."""
        spec = found.object.spec if isinstance(found.object, Lease) else None
        if spec is None or not spec.holder:
            return self._acquire(spec.epoch if spec else 0, spec.renewals if spec else 0)
        is_ours = (spec.holder, spec.instance) == (self.identity, self.instance)
        if is_ours and self._may_inherit:
            # An earlier run of this process holds it; waiting for it is pointless.
            return self._acquire(spec.epoch, spec.renewals)
        seen = self._seen
        if seen is None or (seen.epoch, seen.renewals) != (spec.epoch, spec.renewals):
            self._seen = _Sighting(spec.epoch, spec.renewals, now.monotonic_ms)
            return None
        free_ms = seen.since_ms + spec.duration_ms
        if now.monotonic_ms < free_ms:
            if free_ms < self._next_ms + self.lease_ms // LOOKS_PER_LEASE // 2:
                # A look just before that moment would learn nothing.
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
