"""The lease by which a server is known to all others: scope `server:NAME`, renewed in the store.

`server` sends what `due` returns and gives back the answers. Whether a server is gone is judged by
each observer on its own clock, from the count of renewals (`correct/evidence.py`). Nothing is
decided under this lease, so nobody takes it over: only a process of the same name does, at once
when it starts, for an earlier life of it needs it no more. One that loses it after it held it has a
twin that was given its name by mistake; it waits until that one does not move any more, or the two
would take it from each other for ever.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import plane_format
from holdfast.model.heartbeat import server_scope
from holdfast.model.kinds.lease import Lease, LeaseSpec
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, AcquireLease, RenewLease, Term
from holdfast.model.time import Instant

# A server renews three times in the life of its lease, so that one lost renewal costs nothing.
RENEWALS_PER_LEASE = 3


class _Sighting(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    renewals: int
    since_ms: int


class Presence:
    """See the module's docstring. `life` is another one in every process."""

    def __init__(self, name: str, life: str, lease_ms: int) -> None:
        self.scope = server_scope(name)
        self._life, self._lease_ms = life, lease_ms
        self._seen: _Sighting | None = None
        self._held_once = self._has_left = False
        # How many renewals of this term were sent, whatever became of them.
        self._renewals = 0
        self.term: Term | None = None

    @property
    def pause_ms(self) -> int:
        """How soon to ask again."""
        return max(1, self._lease_ms // RENEWALS_PER_LEASE)

    def due(self, address: str) -> RenewLease | None:
        """What keeps the lease, if it is held; otherwise it has to be read first."""
        if self.term is None:
            return None
        self._renewals += 1
        return RenewLease(
            self.term, address=address, number=self._renewals, version=plane_format.VERSION
        )

    @property
    def is_over(self) -> bool:
        """Whether the server stops, and gives its lease back."""
        return self._has_left

    def leave(self) -> None:
        """The server stops: the lease is given back, and not taken again."""
        self._has_left, self.term = True, None

    def sighted(self, spec: LeaseSpec | None, address: str, now: Instant) -> AcquireLease | None:
        """The lease as it was read: what to ask for, if it may be taken."""
        if spec is None or not spec.holder:
            return self._acquire(spec, address)
        if not self._held_once or spec.instance == self._life:
            return self._acquire(spec, address)
        seen = self._seen
        if seen is None or (seen.epoch, seen.renewals) != (spec.epoch, spec.renewals):
            self._seen = _Sighting(spec.epoch, spec.renewals, now.monotonic_ms)
            return None
        is_still = now.monotonic_ms - seen.since_ms >= spec.duration_ms
        return self._acquire(spec, address) if is_still else None

    def answered(self, answer: Any) -> None:
        """What became of the acquisition or the renewal."""
        match answer:
            case Accepted(objects=(Lease() as lease,)) if not self._has_left:
                self.term, self._held_once = Term(self.scope, lease.spec.epoch), True
                self._renewals = max(self._renewals, lease.spec.renewals)
                self._seen = None
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
