"""Whether an identity may do what it asks for at all. Default: no.

Rules decide it (`model/rights`): those that are built in for components and groups, without reading
anything, and for people also those that roles and bindings give them. These are read like any other
record, from one ledger for the namespace and one for the whole cluster, so the transaction compares
them: a right that is taken away while a request is under way does not count any more.

What exactly they may change behind this door is said by `writers.py` and the lifecycle table.
"""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.commit.deeds import deeds_of
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.identity import ANONYMOUS, Identity
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, Kind
from holdfast.model.rights import (
    NOTHING,
    AccessLedger,
    Deed,
    Grant,
    granted,
    permitting,
    subjects_of,
)
from holdfast.model.roles import PEOPLE, built_in_grants

# What people may be allowed of that which components ask for.
OF_PEOPLE = ("replicas/eviction", "replicas/state", "quarantine", "upgrade")


def identity_refusal(context: Context) -> Refusal | None:
    """Whether anybody in particular is asking."""
    if context.identity.name in ("", ANONYMOUS) or not context.actors():
        return Refusal(
            Reason.UNAUTHENTICATED, f"{context.identity.name or 'nobody'} is not known here"
        )
    return None


def request_refusal(draft: Draft, context: Context, request: object) -> Refusal | None:
    """Whether the caller may ask for all that this request does.

    What is asked through the ordinary verbs passes their own doors, which know more of the object.
    """
    for deed in deeds_of(request):
        if not holds(draft, context.identity, deed):
            is_a_persons = deed.what in OF_PEOPLE and context.is_actor(Actor.USER)
            return _no(context, deed, Reason.NOT_ALLOWED if is_a_persons else Reason.NOT_OWNER)
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
    """Whether the caller may use this verb on this kind here."""
    where = namespace if kind.namespaced else ""
    deed = Deed(verb, kind.plural, subresource, where, name)
    if holds(draft, context.identity, deed):
        return None
    # A controller is told that something is not its own: it was never a question of permission.
    is_asked = context.is_actor(Actor.USER, Actor.AGENT) or not context.actors()
    return _no(context, deed, Reason.NOT_ALLOWED if is_asked else Reason.NOT_OWNER)


def holds(draft: Draft, identity: Identity, deed: Deed) -> bool:
    """Whether somebody may do this."""
    if permitting(built_in_grants(identity), deed) is not None:
        return True
    return permitting(given(draft, identity, deed.namespace), deed) is not None


def given(draft: Draft, identity: Identity, namespace: str) -> list[Grant]:
    """What bindings give an identity in a namespace, and in the whole cluster."""
    if not subjects_of(identity):
        return []
    places = dict.fromkeys((SYSTEM_NAMESPACE, namespace or SYSTEM_NAMESPACE))
    draft.load(*(keys.access_ledger(place) for place in places))
    ledgers = {place: _ledger(draft, place) for place in places}
    system = ledgers[SYSTEM_NAMESPACE]
    return [
        grant
        for place, ledger in ledgers.items()
        for grant in granted(identity, place, ledger, system, PEOPLE)
    ]


def _ledger(draft: Draft, namespace: str) -> AccessLedger:
    return draft.ledger(AccessLedger, keys.access_ledger(namespace)) or NOTHING


def may_give_up(draft: Draft, context: Context, replica: Replica) -> bool:
    """Whether the caller's word counts that work out of contact is gone."""
    deed = Deed("update", "replicas", "state", replica.namespace, replica.name)
    return context.is_actor(Actor.OPERATOR) and holds(draft, context.identity, deed)


def _no(context: Context, deed: Deed, reason: Reason) -> Refusal:
    where = f" in namespace {deed.namespace}" if deed.namespace else ""
    return Refusal(
        reason,
        f"{context.identity.name} may not {deed.verb} {deed.what}{where}",
        {"verb": deed.verb, "resource": deed.what, "namespace": deed.namespace},
    )
