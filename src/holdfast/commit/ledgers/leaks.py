"""Proofs for garbage collection: that an object is a leak, or that its time is over.

controller:garbage owns none of what it removes. `objects/deletion.py` asks here before it lets it
remove anything, and every proof is read, and so compared, in the transaction of the removal:

    an object with owners       all of them are gone, or one waits for its dependents to go first
    an object of a tenant       its tenant is being deleted
    an event, a decision        none: their retention is by age
    a reservation that ended    its deadline has passed as well
    a token                     it has expired, or was used up a while ago
    a revocation                every credential that it ended has expired; servers remove it, so
                                that no controller is needed

So a collector with a stale view costs one refusal, and never a useful object.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.access.revocation import retention_end
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.lifecycle.reservations import is_over, is_past_deadline
from holdfast.commit.objects.field_writers import WRITERS
from holdfast.model import keys
from holdfast.model.access.credential_life import ends_at
from holdfast.model.kinds.access import TOKEN_RETENTION, Revocation, Token
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Object, OwnerReference
from holdfast.model.nodes.heartbeat import server_of_scope
from holdfast.model.placement.gang import runs
from holdfast.model.quota.charging import is_active
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_named

# These record history; their retention is by age, so garbage collection needs no other proof.
_AGING = (Event, Decision)


def leak_refusal(draft: Draft, context: Context, obj: Object) -> Refusal | None:
    """Refuse the removal of an object by a collector that has no proof of a leak."""
    collectors = (Actor.GARBAGE, Actor.AUTHORITY)
    if context.is_actor(*WRITERS[type(obj)].spec) or not context.is_actor(*collectors):
        return None
    if isinstance(obj, _AGING) or _is_over(context, obj):
        return None
    owners = obj.metadata.owner_references
    gone = for_each(owners, lambda owner: is_owner_gone(draft, obj.namespace, owner))
    if owners and all(gone):
        return None
    if any(_waits(draft, obj.namespace, owner, FOREGROUND_FINALIZER) for owner in owners):
        return None
    tenant = draft.object(Tenant, "", obj.namespace) if obj.namespace else None
    if tenant is not None and tenant.metadata.deletion_timestamp is not None:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{type(obj).__name__} {obj.name} still has an owner: it is not garbage",
    )


def early_deletion_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse a deletion that would restore revoked credentials.

    This holds for administrators and collectors as well: the owners that a revocation may name do
    not decide how long it is needed. A user that was revoked by mistake gets a new credential.
    """
    if isinstance(obj, Lease):
        return _lease_refusal(context, obj)
    if not isinstance(obj, Revocation):
        return None
    until = retention_end(context, obj)
    if is_past_deadline(context, until):
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"revocation {obj.name}: credentials of {obj.spec.user} would be valid again; it can be "
        f"deleted after {until.isoformat()}. To readmit {obj.spec.user}, issue a new token or "
        "certificate",
        {"user": obj.spec.user, "until": until.isoformat()},
    )


def _lease_refusal(context: Context, lease: Lease) -> Refusal | None:
    """Refuse the deletion of a lease other than that of a server that is gone. Nothing is
    decided under such a lease: a mistake costs a server one acquisition.
    """
    spec = lease.spec
    server = server_of_scope(spec.scope)
    if not server:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"lease {lease.name}: {spec.scope!r} is not a server: only the lease of a server that "
            "is gone can be deleted",
            {"scope": spec.scope},
        )
    since = spec.renewed or lease.metadata.creation_timestamp
    age_ms = context.age_ms(since) if since is not None else 0
    gone_ms = spec.duration_ms + context.settings.skew_ms
    if not spec.holder or age_ms >= gone_ms:
        return None
    return Refusal(
        Reason.LEASE_HELD,
        f"lease {lease.name}: server {server} renewed it {max(0, age_ms) // 1_000} s ago; it is "
        f"gone after {-(-gone_ms // 1_000)} s without: stop the server if it runs, and retry",
        {"holder": spec.holder, "epoch": str(spec.epoch)},
    )


def _is_over(context: Context, obj: Object) -> bool:
    match obj:
        case Reservation():
            is_left = is_active(obj) or runs(obj, obj.spec.owner.uid)
            return not is_left and is_over(context, obj)
        case Token():
            used = obj.status.used_at
            expires = ends_at(obj, context.settings.token_life_ms)
            is_used_up = obj.spec.single_use and used is not None
            kept_ms = TOKEN_RETENTION.kept_ms + context.settings.skew_ms
            return (expires is not None and is_past_deadline(context, expires)) or (
                is_used_up and used is not None and context.age_ms(used) >= kept_ms
            )
        case Revocation():
            return is_past_deadline(context, retention_end(context, obj))
    return False


def _owner(draft: Draft, namespace: str, owner: OwnerReference) -> Object | None:
    """The owner with exactly this uid, if it exists."""
    kind = kind_named(owner.kind)
    where = namespace if kind.namespaced else ""
    found: Object | None = draft.read(keys.object_key(kind, where, owner.name))
    return found if found is not None and found.metadata.uid == owner.uid else None


def is_owner_gone(draft: Draft, namespace: str, owner: OwnerReference) -> bool:
    """Whether an owner is gone, or another object has its name now."""
    return _owner(draft, namespace, owner) is None


def _waits(draft: Draft, namespace: str, owner: OwnerReference, finalizer: str) -> bool:
    """Whether the owner is being deleted and waits for its dependents to be deleted or orphaned."""
    found = _owner(draft, namespace, owner)
    if found is None or found.metadata.deletion_timestamp is None:
        return False
    return finalizer in found.metadata.finalizers


def only_disowns(draft: Draft, context: Context, old: Object, new: Object) -> bool:
    """Whether a change does nothing but detach a dependent from owners whose deletion asks for it.

    Then the collector needs no permission on the object: the deletion of the owner implied it.
    """
    if not context.is_actor(Actor.GARBAGE):
        return False
    before, after = old.metadata.owner_references, new.metadata.owner_references
    cut = [owner for owner in before if owner not in after]
    metadata = msgspec.structs.replace(new.metadata, owner_references=before)
    if not cut or msgspec.structs.replace(new, metadata=metadata) != old:
        return False
    if after != tuple(owner for owner in before if owner not in cut):
        return False
    return all(for_each(cut, lambda owner: _waits(draft, old.namespace, owner, ORPHAN_FINALIZER)))
