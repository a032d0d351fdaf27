"""Leader election: whether a component believes it holds its lease, and what was acknowledged.

"Am I the leader" and "was my last renewal acknowledged" are two questions. The first decides which
epoch a request names; only the commit knows whether that epoch is still current. The second makes a
component that lost contact stop trying, long before another one takes over.

The owner calls `due` when its clock says so, sends what it returns, and passes the answer back.
"""

from __future__ import annotations

from holdfast.model import plane_format
from holdfast.model.kinds.lease import Lease, LeaseSpec, lease_name
from holdfast.model.lease_takeover import LEASE_MS, RENEWALS_PER_LEASE, LeaseObserver
from holdfast.model.machine import Question, Reply
from holdfast.model.observation_age import OBSERVATION_AGE_MAX_MS
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, ReleaseLease, RenewLease, Term
from holdfast.model.time import Instant

RENEW_TIMEOUT_MS = 2_000
# A standby looks as often, and once more when the lease would be free: it takes over after the
# lease and at most one look.
LOOKS_PER_LEASE = 3


# What an election sends.
LeaseQuestion = Get | AcquireLease | RenewLease


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
        self._observer = LeaseObserver()
        # How many renewals of this term were sent, whatever their outcome.
        self._renewals = 0
        self._waiting = False
        # When `due` next returns a request.
        self.next_ms = 0
        # When `due` last returned a request.
        self._asked_ms = 0
        # Before we first hold it, our name on the lease is that of an earlier run. Later it is that
        # of a second process started under our name by mistake: two processes that take the lease
        # from each other at once would never stop.
        self._may_inherit = True
        # When the last acquisition or renewal that was acknowledged was sent.
        self.acknowledged_ms: int | None = None
        # The greatest age of an observation to act on, as the lease last said.
        self.observation_age_max_ms = OBSERVATION_AGE_MAX_MS

    @property
    def term(self) -> Term | None:
        """The term that requests name, if we hold the lease as far as we know."""
        return self._term

    def is_acknowledged(self, now: Instant) -> bool:
        """Whether the lease was acknowledged within its duration, counted from the sending."""
        sent_ms = self.acknowledged_ms
        return sent_ms is not None and now.monotonic_ms - sent_ms < self.lease_ms

    def due(self, now: Instant, *, early_ms: int = 0) -> LeaseQuestion | None:
        """The request to send now, if any. `early_ms` also counts what is due that much later."""
        if self._waiting or now.monotonic_ms + early_ms < self.next_ms:
            return None
        self._waiting, self._asked_ms = True, now.monotonic_ms
        if self._term is not None:
            self.next_ms = now.monotonic_ms + self.lease_ms // RENEWALS_PER_LEASE
            self._renewals += 1
            return RenewLease(self._term, number=self._renewals, version=plane_format.VERSION)
        self.next_ms = now.monotonic_ms + self.lease_ms // LOOKS_PER_LEASE
        return Get("leases", lease_name(self.scope))

    def answered(
        self, request: Question, answer: Reply, sent_ms: int, now: Instant
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
                        self.observation_age_max_ms = lease.spec.observation_age_max_ms
                        # Counted from the look that led to it, so that leases that were looked at
                        # together are renewed together.
                        self.next_ms = self._asked_ms + self.lease_ms // RENEWALS_PER_LEASE
                        self._observer.forget()
                        self._may_inherit = False
            case Refusal(reason=reason) if reason is not Reason.CONTENTION:
                # Another process holds it, or was faster.
                self.lost()
        return None

    def lost(self) -> None:
        """Step down: a request was refused for its epoch, so we are no longer the holder."""
        self._term = None
        self._observer.forget()
        self.acknowledged_ms = None

    def release(self) -> ReleaseLease | None:
        """The request that gives the lease back, so that the next holder need not wait."""
        term = self._term
        self.lost()
        return ReleaseLease(term) if term is not None else None

    def _sighted(self, found: GetResult, now: Instant) -> AcquireLease | None:
        """Judge by our own clock whether the holder still renews; take over when it does not."""
        spec = found.object.spec if isinstance(found.object, Lease) else None
        holder = (spec.holder, spec.instance) if spec is not None else None
        # Waiting for an earlier run of this process would be pointless.
        inherits = self._may_inherit and holder == (self.identity, self.instance)
        observer = self._observer
        if observer.may_take(spec, now.monotonic_ms, inherits=inherits):
            return self._acquire(spec)
        if spec is not None and observer.seen is not None:
            free_ms = observer.seen.since_ms + spec.duration_ms
            is_known = observer.seen.since_ms < now.monotonic_ms
            if is_known and free_ms < self.next_ms + self.lease_ms // LOOKS_PER_LEASE // 2:
                # A look just before that moment would learn nothing.
                self.next_ms = free_ms
        return None

    def _acquire(self, spec: LeaseSpec | None) -> AcquireLease:
        self._waiting = True
        return AcquireLease(
            self.scope,
            self.lease_ms,
            spec.epoch if spec is not None else 0,
            spec.renewals if spec is not None else 0,
            instance=self.instance,
            version=plane_format.VERSION,
        )
