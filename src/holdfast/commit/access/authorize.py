"""Authorization: whether an identity may make a request. The default is no.

Rules decide it (`model/access/rights`). The built-in rules of components and groups need no read.
People also have the rules that roles and bindings grant them. Those are read like any other record,
from one ledger for the namespace and one for the whole cluster, so the transaction compares them: a
permission that is revoked while a request is in flight no longer counts.

`objects/field_writers.py` and the lifecycle table say what exactly an authorized caller may change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, Kind

# The permissions that each request of our own components requires: a verb and a resource each.
#
# `request_refusal` checks all of them before it looks at the request. A request that does several
# things, or one thing to many objects, needs a permission for each. Requests through the ordinary
# verbs are not listed: they name their verb and resource themselves.

_REPLICAS = "replicas"


def _replica(verb: str, part: str, target: ask.Target) -> Permission:
    return Permission(verb, _REPLICAS, part, target.namespace, target.name)


def _to_target(verb: str, part: str) -> Callable[[Any], tuple[Permission, ...]]:
    def permissions(request: Any) -> tuple[Permission, ...]:
        return (_replica(verb, part, request.target),)

    return permissions


def _always(permission: Permission) -> Callable[[Any], tuple[Permission, ...]]:
    return lambda request: (permission,)


def _bind_together(request: ask.BindTogether) -> tuple[Permission, ...]:
    return tuple(_replica("create", "binding", it.target) for it in request.binds)


def _stop_and_reserve(request: ask.StopAndReserve) -> tuple[Permission, ...]:
    victims = (_replica("create", "eviction", victim) for victim in request.victims)
    return (_replica("create", "reservation", request.target), *victims)


def _reservation(verb: str) -> Callable[[Any], tuple[Permission, ...]]:
    def permissions(request: Any) -> tuple[Permission, ...]:
        name = getattr(request, "reservation", "")
        return (Permission(verb, "reservations", namespace=request.namespace, name=name),)

    return permissions


PERMISSIONS: dict[type[Any], Callable[[Any], tuple[Permission, ...]]] = {
    ask.Bind: _to_target("create", "binding"),
    ask.BindTogether: _bind_together,
    ask.Reserve: _to_target("create", "reservation"),
    ask.Unreserve: _to_target("delete", "reservation"),
    ask.HoldCapacity: _reservation("create"),
    ask.CommitGang: _reservation("update"),
    ask.DropReservation: _reservation("delete"),
    ask.Evict: _to_target("create", "eviction"),
    ask.StopAndReserve: _stop_and_reserve,
    ask.Move: _to_target("update", "state"),
    ask.ReportStage: _to_target("update", "stage"),
    ask.ReportPending: _to_target("update", "pending"),
    ask.RegisterNode: lambda it: (
        Permission("create", "nodes", "registration", name=it.node.name),
    ),
    ask.JudgeNode: lambda it: (Permission("update", "nodes", "phase", name=it.node),),
    ask.AcquireLease: _always(Permission("update", "leases")),
    ask.RenewLease: _always(Permission("update", "leases")),
    ask.ReleaseLease: _always(Permission("update", "leases")),
    ask.RetireLease: _always(Permission("delete", "leases")),
    ask.QuarantineRecord: _always(Permission("create", "quarantine")),
    ask.RepairRecord: _always(Permission("update", "quarantine")),
    ask.RaiseFormat: _always(Permission("update", "upgrade")),
    ask.ForgetOperations: _always(Permission("delete", "operations")),
}


def permissions_of(request: object) -> tuple[Permission, ...]:
    """All permissions that a request requires; none if it names its verb and resource itself."""
    of = PERMISSIONS.get(type(request))
    return of(request) if of is not None else ()


# The component requests that people may be permitted to make.
OF_PEOPLE = ("replicas/eviction", "replicas/state", "quarantine", "upgrade")


def identity_refusal(context: Context) -> Refusal | None:
    """Refuse a caller without an authenticated identity."""
    if context.identity.name in ("", ANONYMOUS) or not context.actors():
        return Refusal(
            Reason.UNAUTHENTICATED,
            f"unknown identity {context.identity.name!r}: present a client certificate or "
            "bearer token",
        )
    return None


def request_refusal(draft: Draft, context: Context, request: object) -> Refusal | None:
    """Refuse a request unless the caller holds every permission that it requires.

    Requests through the ordinary verbs are authorized by their handlers, which know more of the
    object.
    """
    for permission in permissions_of(request):
        if not is_permitted(draft, context.identity, permission):
            is_a_persons = permission.what in OF_PEOPLE and context.is_actor(Actor.USER)
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
