"""Revocations as the authority makes and completes them.

`policy` completes what a person writes: the moment is the authority's own, so that it can be held
against the moment at which a certificate was issued. `mirrors` makes one when a node is deleted, in
the same transaction: a node that is gone must not come back by the certificate that it has.
`leaks` asks until when it is kept.
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
# A calendar that is ahead for a moment must not bring back to life what was revoked. So much
# longer than the last credential lives a revocation is kept.
REVOKED_LONGER = timedelta(days=60)


def complete_revocation(context: Context, obj: Revocation) -> tuple[Revocation, tuple[str, ...]]:
    """The revocation with its dates, and what was changed."""
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
    """What is not issued yet cannot be taken back: nobody could be let in anew until then."""
    before, skew = obj.spec.before, timedelta(milliseconds=context.settings.skew_ms)
    if before is None or before <= context.at + skew:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"spec.before: {before.isoformat()}: must not be later than now; leave it out to mean now",
        {"field": "spec.before", "value": before.isoformat(), "scope": "cluster"},
    )


def retention_end(context: Context, obj: Revocation) -> datetime:
    """Until when a revocation stays: longer than the last credential that it ends could count.

    The longest life may have been raised since the revocation was made, so it is asked for again.
    """
    before, expires = obj.spec.before or context.at, obj.spec.expires
    ended = _expires(context, before)
    return (max(ended, expires) if expires is not None else ended) + REVOKED_LONGER


def revoke_node(draft: Draft, context: Context, node: Node) -> None:
    """End all certificates of a node that is being erased."""
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
