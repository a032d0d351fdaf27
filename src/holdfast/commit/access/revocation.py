"""Revocations: how the authority completes and creates them.

`objects/object_defaults.py` completes what a person writes. The time is the authority's own, so
that it can be compared with the time at which a certificate was issued.
`ledgers/derived_records.py` creates a revocation when a node is deleted, in the same transaction: a
deleted node must not return with its old certificate. `ledgers/leaks.py` asks how long a revocation
is kept.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.access import identity as who
from holdfast.model.access.credential_life import revocation_name
from holdfast.model.kinds.access import Revocation, RevocationSpec
from holdfast.model.kinds.node import Node
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct

_KIND = kind_of_struct(Revocation)
# A wall clock that runs ahead for a moment must not end a revocation early. So a revocation is kept
# this much longer than the last credential lives.
REVOKED_LONGER = timedelta(days=60)


def complete_revocation(context: Context, obj: Revocation) -> tuple[Revocation, tuple[str, ...]]:
    """The revocation with its dates, and the changes that were made."""
    spec, said = obj.spec, []
    if spec.before is None:
        spec = msgspec.structs.replace(spec, before=context.at)
        said.append(f"spec.before set to {context.at.isoformat()}")
    expires = _expires(context, spec.before or context.at)
    if spec.expires is None or spec.expires < expires:
        spec = msgspec.structs.replace(spec, expires=expires)
        said.append(f"spec.expires set to {expires.isoformat()}")
    return msgspec.structs.replace(obj, spec=spec), tuple(said)


def future_refusal(context: Context, obj: Revocation) -> Refusal | None:
    """Refuse a future date: until then even newly issued credentials would be rejected."""
    before, skew = obj.spec.before, timedelta(milliseconds=context.settings.skew_ms)
    if before is None or before <= context.at + skew:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"spec.before: {before.isoformat()}: must not be later than now; leave it out to mean now",
        {"field": "spec.before", "value": before.isoformat(), "scope": "cluster"},
    )


def retention_end(context: Context, obj: Revocation) -> datetime:
    """Until when a revocation is kept: beyond the life of the last credential that it ends.

    The longest credential life may have been raised since, so it is computed again.
    """
    before, expires = obj.spec.before or context.at, obj.spec.expires
    ended = _expires(context, before)
    return (max(ended, expires) if expires is not None else ended) + REVOKED_LONGER


def revoke_node(draft: Draft, context: Context, node: Node) -> None:
    """Revoke all certificates of a node that is being erased."""
    user = who.agent(node.name).name
    key = keys.object_key(_KIND, "", revocation_name(user))
    spec = RevocationSpec(
        user=user,
        before=context.at,
        reason=f"node {node.name} was deleted",
        expires=_expires(context, context.at),
    )
    there: Revocation | None = draft.read(key)
    if there is None:
        metadata = ObjectMeta(
            name=revocation_name(user),
            uid=context.new_uid(),
            generation=1,
            creation_timestamp=context.at,
        )
    else:
        before, expires = there.spec.before, there.spec.expires
        spec = msgspec.structs.replace(
            spec,
            before=max(context.at, before) if before is not None else context.at,
            expires=max(spec.expires, expires) if spec.expires and expires else spec.expires,
        )
        metadata = msgspec.structs.replace(there.metadata, generation=there.metadata.generation + 1)
    draft.write(key, Revocation(metadata, spec=spec))


def _expires(context: Context, before: datetime) -> datetime:
    return before + timedelta(milliseconds=context.settings.credential_life_ms)
