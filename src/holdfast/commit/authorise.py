"""Whether an identity may use a verb on a kind in a namespace at all.

This is the coarse door: administrators everywhere, people in the namespaces they are given,
components wherever their owned fields are. What exactly they may change behind the door is said by
`writers.py` and the lifecycle table.
"""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.model.identity import ANONYMOUS, Identity, acts_as
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, Kind

READ = ("get", "list", "watch")
# What people see in their own namespaces, and what they may write there.
_TENANT_WRITES = ("workloads", "secrets", "overrides", "commitments")
_TENANT_DELETES = ("replicas",)
# Of what is its own, an agent reports some conditions; `writers.py` says which.
_AGENT_STATUS = ("nodes", "replicas")
# Looking into work is for people: no component needs it, and an agent has its own work at hand.
_INSIDE = {"log": ("get",), "exec": ("create", "get")}
# Cluster-scoped kinds that everybody may look at, since work refers to them by name.
_EVERYBODY_READS = ("priorityclasses", "regions")


def identity_refusal(context: Context) -> Refusal | None:
    """Whether anybody in particular is asking."""
    if context.identity.name in ("", ANONYMOUS) or not context.actors():
        return Refusal(
            Reason.UNAUTHENTICATED, f"{context.identity.name or 'nobody'} is not known here"
        )
    return None


def verb_refusal(
    context: Context, verb: str, kind: Kind, namespace: str, subresource: str = ""
) -> Refusal | None:
    """Whether the caller may use this verb on this kind here. Default: no."""
    if may(context.identity, verb, kind, namespace, subresource):
        return None
    where = f" in namespace {namespace}" if namespace else ""
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{context.identity.name} may not {verb} {kind.plural}{where}",
        {"verb": verb, "resource": kind.plural, "namespace": namespace},
    )


def may(identity: Identity, verb: str, kind: Kind, namespace: str, subresource: str = "") -> bool:
    """Whether an identity may use this verb on this kind here; also what access reviews ask."""
    actors = acts_as(identity)
    if not actors:
        return False
    if subresource in _INSIDE and not (Actor.USER in actors and verb in _INSIDE[subresource]):
        return False
    if Actor.USER not in actors:
        # Components are held by what they own; an agent sees and changes only what is its node's.
        own = kind.plural == "events" or (subresource == "status" and kind.plural in _AGENT_STATUS)
        # Which Secrets it may get is for whoever knows what is bound to its node: `host/api`.
        reads = verb in READ if kind.plural != "secrets" else verb == "get"
        return Actor.AGENT not in actors or reads or own
    if identity.is_admin:
        return True
    if not kind.namespaced:
        return verb in READ and kind.plural in _EVERYBODY_READS
    if namespace == SYSTEM_NAMESPACE or not _works_in(identity, namespace):
        return False
    if subresource in _INSIDE:
        return True
    if kind.plural in _TENANT_WRITES or (verb == "delete" and kind.plural in _TENANT_DELETES):
        return True
    return verb in READ


def _works_in(identity: Identity, namespace: str) -> bool:
    return namespace in identity.tenants or "*" in identity.tenants
