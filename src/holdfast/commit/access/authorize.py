"""Authorization: whether an identity may make a request. The default is no.

Rules decide it (`model/access/rights`). The built-in rules of components and groups need no read.
People also have the rules that roles and bindings grant them. Those are read like any other record,
from one ledger for the namespace and one for the whole cluster, so the transaction compares them: a
permission that is revoked while a request is in flight no longer counts.

`objects/field_writers.py` and the lifecycle table say what exactly an authorized caller may change.
"""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model import requests as ask
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.model.access.rights import (
    NOTHING,
    AccessLedger,
    GrantedRule,
    Permission,
    find_grant,
    granted_rules,
    subjects_of,
)
from holdfast.model.access.roles import PEOPLE, built_in_grants
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE

_PEOPLE = frozenset({Actor.USER, Actor.OPERATOR})


def identity_refusal(context: Context) -> Refusal | None:
    """Refuse a caller without an authenticated identity."""
    if context.identity.name in ("", ANONYMOUS) or not context.actors():
        return Refusal(
            Reason.UNAUTHENTICATED,
            f"unknown identity {context.identity.name!r}: present a client certificate or "
            "bearer token",
        )
    return None


def request_refusal(draft: Draft, context: Context, request: ask.Request) -> Refusal | None:
    """Refuse a request unless the caller holds every permission that it requires.

    Requests through the ordinary verbs are authorized by their handlers, which know more of the
    object.
    """
    for permission in request.permissions():
        if not is_permitted(draft, context.identity, permission):
            is_a_persons = context.is_actor(Actor.USER) and not _PEOPLE.isdisjoint(request.senders)
            return _no(
                context, permission, Reason.NOT_ALLOWED if is_a_persons else Reason.NOT_OWNER
            )
    return None


def verb_refusal(
    draft: Draft,
    context: Context,
    verb: str,
    kind: Kind,
    namespace: str,
    subresource: str = "",
    name: str = "",
) -> Refusal | None:
    """Refuse a verb on this kind that the caller may not use here."""
    where = namespace if kind.namespaced else ""
    permission = Permission(verb, kind.plural, subresource, where, name)
    if is_permitted(draft, context.identity, permission):
        return None
    # A controller gets NOT_OWNER: it never asked as a user, so permissions are not the cause.
    is_asked = context.is_actor(Actor.USER, Actor.AGENT) or not context.actors()
    return _no(context, permission, Reason.NOT_ALLOWED if is_asked else Reason.NOT_OWNER)


def is_permitted(draft: Draft, identity: Identity, permission: Permission) -> bool:
    """Whether the identity has this permission."""
    if find_grant(built_in_grants(identity), permission) is not None:
        return True
    return find_grant(grants_in(draft, identity, permission.namespace), permission) is not None


def grants_in(draft: Draft, identity: Identity, namespace: str) -> list[GrantedRule]:
    """The grants of an identity from bindings, in a namespace and in the whole cluster."""
    if not subjects_of(identity):
        return []
    places = dict.fromkeys((SYSTEM_NAMESPACE, namespace or SYSTEM_NAMESPACE))
    draft.load(*(keys.access_ledger(place) for place in places))
    ledgers = {place: _ledger(draft, place) for place in places}
    system = ledgers[SYSTEM_NAMESPACE]
    return [
        grant
        for place, ledger in ledgers.items()
        for grant in granted_rules(identity, place, ledger, system, PEOPLE)
    ]


def _ledger(draft: Draft, namespace: str) -> AccessLedger:
    return draft.ledger(AccessLedger, keys.access_ledger(namespace)) or NOTHING


def may_give_up(draft: Draft, context: Context, replica: Replica) -> bool:
    """Whether the caller may declare work on an unreachable node gone."""
    permission = Permission("update", "replicas", "state", replica.namespace, replica.name)
    return context.is_actor(Actor.OPERATOR) and is_permitted(draft, context.identity, permission)


def _no(context: Context, permission: Permission, reason: Reason) -> Refusal:
    where = f" in namespace {permission.namespace}" if permission.namespace else ""
    return Refusal(
        reason,
        f"{context.identity.name} may not {permission.verb} {permission.what}{where}",
        {"verb": permission.verb, "resource": permission.what, "namespace": permission.namespace},
    )
