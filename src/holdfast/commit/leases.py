"""Leases and epochs: who may act for a scope, and how a former holder is fenced off.

A lease never proves that no other process acts; it only says which one should. The epoch fences off
a stale holder: it has a key of its own that changes only at a takeover, every privileged request
names the epoch that it acts under, and the transaction compares that key. A holder that slept
through a takeover therefore fails at the commit.

Each candidate judges on its own monotonic clock whether a holder is gone: it takes over only after
it has seen the same epoch and the same renewal count for the whole duration.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.record_encoding import Epoch, EpochFloor
from holdfast.commit.request_steps import ComparedRecord, PlacementStep
from holdfast.model import keys
from holdfast.model.errors import agree, suspect
from holdfast.model.kinds.lease import LEASE_RETENTION, Lease, LeaseSpec, lease_name
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import INT_MAX, ObjectMeta
from holdfast.model.nodes.heartbeat import server_of_scope
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import AcquireLease, ReleaseLease, RenewLease, RetireLease, Term
from holdfast.model.validation import validate

# If there are too many leases of servers, those that have been gone for this long are deleted
# first.
SERVER_LEASE_KEPT_MIN = timedelta(minutes=10)
# A record with a greater number could not be read again, and a release counts one more.
RENEWALS_MAX = INT_MAX - 1


def term_refusal(draft: Draft, context: Context, term: Term | None) -> Refusal | None:
    """Refuse a caller that does not act under the current epoch of its scope."""
    if term is None:
        return Refusal(
            Reason.EPOCH_REQUIRED,
            f"term: required in a request of {context.identity.name}: acquire a lease, and state "
            "its scope and epoch",
            {"field": "term"},
        )
    current: Epoch | None = draft.read(keys.epoch(term.scope))
    if current is None or current.epoch != term.epoch or current.holder != context.identity.name:
        now = f"epoch {current.epoch} of {current.holder}" if current is not None else "no epoch"
        return Refusal(
            Reason.STALE_EPOCH,
            f"{context.identity.name} acts for {term.scope!r} under epoch {term.epoch}, "
            f"the store has {now}",
            {
                "scope": term.scope,
                "epoch": str(term.epoch),
                "current": str(current.epoch) if current is not None else "0",
            },
        )
    return None


def is_current(draft: Draft, term: Term) -> bool:
    """Whether this is the current epoch of its scope; the decision depends on it from now on."""
    current: Epoch | None = draft.read(keys.epoch(term.scope))
    return current is not None and current.epoch == term.epoch


def former_holder_refusal(
    draft: Draft, context: Context, term: Term | None, refusal: Refusal
) -> Refusal:
    """The refusal for a write on a replica that has changed: a lost lease takes precedence.

    The new holder has usually moved the replica as well. The former holder needs to know that it no
    longer leads, not that the replica moved.
    """
    return term_refusal(draft, context, term) or refusal


def acquire(draft: Draft, context: Context, request: AcquireLease) -> Lease | Refusal:
    """Take a lease that is unchanged since the candidate last saw it: at once when it is free,
    otherwise when it has not been renewed for its duration.
    """
    if not _may_hold(context, request.scope):
        return Refusal(
            Reason.NOT_OWNER, f"{context.identity.name} may not hold the lease {request.scope!r}"
        )
    name = lease_name(request.scope)
    draft.load(keys.epoch(request.scope))
    lease = draft.object(Lease, "", name)
    if lease is not None and lease.spec.scope != request.scope:
        return Refusal(
            Reason.EXISTS, f"lease {name!r} belongs to scope {lease.spec.scope!r}", {"lease": name}
        )
    seen = (request.seen_epoch, request.seen_renewals)
    now = (lease.spec.epoch, lease.spec.renewals) if lease is not None else (0, 0)
    if now != seen:
        # Even if it is free: a delayed request must not acquire it for a holder that has released
        # it since.
        holder = lease.spec.holder if lease is not None else ""
        holds = f"{holder} holds it" if holder else "it is free" if lease else "it does not exist"
        return Refusal(
            Reason.LEASE_HELD,
            f"lease {request.scope!r} has changed since it was read, and {holds}: read it again",
            {"holder": holder, "epoch": str(now[0])},
        )
    spec = LeaseSpec(
        scope=request.scope,
        holder=context.identity.name,
        epoch=_last_epoch(draft, request.scope) + 1,
        duration_ms=request.duration_ms,
        acquired=context.at,
        renewed=context.at,
        instance=request.instance,
        address=request.address,
        version=request.version,
        observation_age_max_ms=context.settings.observation_age_max_ms,
    )
    made = _written(draft, context, lease, name, spec)
    refusal = _invalid(made)
    if refusal is not None:
        return refusal
    draft.write(keys.epoch(request.scope), Epoch(epoch=spec.epoch, holder=spec.holder))
    return made


def _last_epoch(draft: Draft, scope: str) -> int:
    """The last epoch that any holder may have used for a scope.

    The epoch's own key is decisive: it only grows, whatever became of the lease. Of a forgotten
    scope only this much is known: its epoch was not above the floor.
    """
    before: Epoch | None = draft.read(keys.epoch(scope))
    if before is not None:
        return before.epoch
    draft.suppose_absent(keys.epoch_floor())
    floor: EpochFloor | None = draft.read(keys.epoch_floor())
    return floor.epoch if floor is not None else 0


def _may_hold(context: Context, scope: str) -> bool:
    """Whether the caller may hold this scope: a server, a scheduler, or exactly that controller."""
    sort, _, name = scope.partition(":")
    if sort == "scheduler":
        return bool(name) and context.is_actor(Actor.SCHEDULER)
    if sort == "server":
        return context.is_actor(Actor.AUTHORITY) and context.identity.server == name
    if sort == "controller":
        return any(actor.value == scope for actor in context.actors())
    return scope == "authority" and context.is_actor(Actor.AUTHORITY)


def renew(draft: Draft, context: Context, request: RenewLease) -> Lease | Refusal:
    """Renew a lease. This does not touch the epoch, so it conflicts with no transaction."""
    held = _held(draft, context, request.term)
    if isinstance(held, Refusal):
        return held
    if request.number <= held.spec.renewals:
        return Refusal(
            Reason.CONTENTION,
            f"renewal {request.number} of {held.spec.scope!r} is not after {held.spec.renewals}",
            {"renewals": str(held.spec.renewals)},
        )
    if request.number > RENEWALS_MAX:
        return Refusal(
            Reason.INVALID,
            f"number: {request.number} is above {RENEWALS_MAX}, the last renewal of a lease that "
            "can be stored: count renewals from the one that the lease has",
            {"field": "number"},
        )
    said = (request.address, request.version)
    spec = msgspec.structs.replace(
        held.spec,
        renewed=context.at,
        renewals=request.number,
        address=request.address,
        version=request.version,
        observation_age_max_ms=context.settings.observation_age_max_ms,
    )
    made = _written(draft, context, held, held.name, spec)
    # Everything else in it is ours.
    return made if said == (held.spec.address, held.spec.version) else _invalid(made) or made


def release(draft: Draft, context: Context, request: ReleaseLease) -> Lease | Refusal:
    """Release a lease.

    The epoch stays: requests still in flight under it are accepted or refused by their own compares
    until another holder takes over.
    """
    held = _held(draft, context, request.term)
    if isinstance(held, Refusal):
        return held
    spec = msgspec.structs.replace(
        held.spec, holder="", renewals=held.spec.renewals + 1, instance="", address=""
    )
    return _written(draft, context, held, held.name, spec)


def retire(draft: Draft, context: Context, request: RetireLease) -> Refusal | None:
    """Delete a lease and its epoch that have not been used for a long time.

    A mistake costs its holder one takeover: what it asks under the old epoch is refused, and the
    next epoch is above the floor, which rises with every deleted epoch.
    """
    if not context.is_actor(Actor.AUTHORITY):
        return Refusal(Reason.NOT_OWNER, "only servers may retire leases")
    lease = draft.object(Lease, "", lease_name(request.scope))
    current: Epoch | None = draft.read(keys.epoch(request.scope))
    if lease is None or current is None or lease.spec.scope != request.scope:
        return Refusal(Reason.MISSING, f"lease {request.scope!r} does not exist")
    seen = (request.seen_epoch, request.seen_renewals)
    since = lease.spec.renewed or lease.metadata.creation_timestamp
    kept = SERVER_LEASE_KEPT_MIN if server_of_scope(request.scope) else LEASE_RETENTION.kept
    kept_ms = kept.total_seconds() * 1000
    is_idle = since is not None and context.age_ms(since) >= kept_ms
    if (lease.spec.epoch, lease.spec.renewals) != seen or not is_idle:
        return Refusal(
            Reason.LEASE_HELD,
            f"{request.scope!r} was renewed within {kept}, or has changed since it was read",
            {"holder": lease.spec.holder, "epoch": str(lease.spec.epoch)},
        )
    floor: EpochFloor | None = draft.read(keys.epoch_floor())
    if floor is None or floor.epoch < current.epoch:
        draft.write(keys.epoch_floor(), EpochFloor(current.epoch))
    draft.delete(keys.epoch(request.scope))
    draft.delete(keys.key_of(lease))
    return None


def _invalid(lease: Lease) -> Refusal | None:
    errors = validate(lease)
    if not errors:
        return None
    return Refusal(Reason.INVALID, "; ".join(str(error) for error in errors), causes=errors)


def _held(draft: Draft, context: Context, term: Term) -> Lease | Refusal:
    refusal = term_refusal(draft, context, term)
    if refusal is not None:
        return refusal
    lease = draft.object(Lease, "", lease_name(term.scope))
    with suspect(keys.epoch(term.scope)):
        agree(lease is not None, f"scope {term.scope!r} has an epoch but no lease")
    if lease is None or lease.spec.holder != context.identity.name:
        return Refusal(Reason.STALE_EPOCH, f"{context.identity.name} has released {term.scope!r}")
    return lease


def _written(
    draft: Draft, context: Context, old: Lease | None, name: str, spec: LeaseSpec
) -> Lease:
    metadata = (
        old.metadata
        if old is not None
        else ObjectMeta(
            name=name, uid=context.new_uid(), generation=1, creation_timestamp=context.at
        )
    )
    lease = Lease(metadata, spec=spec)
    draft.write(keys.key_of(lease), lease)
    return lease


STEPS = (
    PlacementStep(
        "take a lease",
        "server, scheduler, controller",
        "epoch and renewals, unchanged for the duration on its own clock",
        "the holder renews, or another candidate is faster",
        "epoch and renewals in the transaction",
        request=AcquireLease,
        handler=acquire,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "renew a lease",
        "its holder",
        "its own epoch",
        "another holder took over",
        "the epoch in the transaction",
        request=RenewLease,
        handler=renew,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "give a lease back",
        "its holder",
        "its own epoch",
        "another holder took over",
        "the epoch in the transaction",
        request=ReleaseLease,
        handler=release,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "forget a lease",
        "server",
        "epoch and renewals, unchanged for a day",
        "its holder comes back",
        "epoch and renewals in the transaction; the floor keeps its epoch from coming again",
        request=RetireLease,
        handler=retire,
        compares=(ComparedRecord.LEASE, ComparedRecord.EPOCH),
    ),
)
