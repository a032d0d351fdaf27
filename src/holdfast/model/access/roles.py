"""The built-in roles, and who has them without any binding: data, the same on every server.

    people       admin, operator, auditor, monitor; tenant-admin, tenant-editor, tenant-viewer;
                 everybody
    components   node, scheduler, server; controller for all of them, controller-NAME for each

They are shown as Role and RoleBinding objects of the system namespace, which servers write at their
start (`host/server/rights`); what counts is this table, so no change of an object can lock an
administrator out or make a component own more. Bindings may give the roles of people to others.

What a component may write stands here kind by kind, and `commit/objects/field_writers` says field
by field which of it is its own. A controller that writes something new gets its line here first.
"""

from __future__ import annotations

from functools import lru_cache

from holdfast.model.access.identity import (
    ADMINS,
    AUDITORS,
    CONTROLLER_PREFIX,
    MONITORS,
    OPERATORS,
    Identity,
    acts_as,
)
from holdfast.model.access.rights import (
    ALL,
    AUTHENTICATED,
    BIND,
    ESCALATE,
    IMPERSONATE,
    GrantedRule,
)
from holdfast.model.kinds.access import Rule
from holdfast.model.kinds.tenant import CONTENTS
from holdfast.model.lifecycle import Actor
from holdfast.model.registry import SYSTEM_NAMESPACE

AUTHORIZATION_GROUP = "authorization.k8s.io"

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
CHANGE = ("update", "patch")

# What lies in a tenant's namespace and is no secret of anybody.
_OPEN = (
    "workloads",
    "replicas",
    "reservations",
    "quotas",
    "overrides",
    "commitments",
    "events",
    "decisions",
    "roles",
    "rolebindings",
    "workloadrevisions",
    "endpoints",
)
_HIDDEN = ("secrets", "tokens")
_PARTS = (
    "workloads/status",
    "workloads/scale",
    "replicas/status",
    "replicas/explanation",
    "replicas/log",
)
_OWN = ("workloads", "secrets", "overrides", "commitments")
_CLUSTER = (
    "nodes",
    "tenants",
    "priorityclasses",
    "regions",
    "schedulerpolicies",
    "grants",
    "leases",
    "revocations",
    "admissionpolicies",
)
# What operators keep: the plane itself, and what each tenant may have of it.
_RUN = (
    "nodes",
    "tenants",
    "priorityclasses",
    "regions",
    "schedulerpolicies",
    "grants",
    "quotas",
    "revocations",
    "admissionpolicies",
)

_VIEW = (Rule(_OPEN, READ), Rule(_PARTS, ("get",)))
_EDIT = (
    *_VIEW,
    Rule(_HIDDEN, READ),
    Rule(_OWN, WRITE),
    Rule(("workloads/scale",), CHANGE),
    Rule(("replicas",), ("delete",)),
    Rule(("replicas/eviction",), ("create",)),
    Rule(("replicas/exec",), ("create", "get")),
)

# Of one tenant; see `host/audit/serving`.
_AUDIT = Rule(("auditrecords",), ("list",))

PEOPLE: dict[str, tuple[Rule, ...]] = {
    "admin": (
        Rule((ALL,), (ALL,), (ALL,)),
        Rule(verbs=(ALL,), non_resource_urls=(ALL,)),
    ),
    "operator": (
        Rule((*_OPEN, *_CLUSTER), READ),
        Rule(("*/status", *_PARTS, "decisions/again"), ("get",)),
        Rule((*_RUN, "overrides", "commitments"), WRITE),
        # Not the template: whoever writes that reads what its work may read.
        Rule(("workloads/scale",), CHANGE),
        Rule(("replicas",), ("delete",)),
        Rule(("replicas/eviction",), ("create",)),
        # An operator's word that work is gone, and that an object need not be waited for.
        Rule(("replicas/state",), CHANGE),
        # Machines are let in by operators; people are not.
        Rule(("tokens",), (*READ, "create", "update", "patch", "delete")),
        Rule(("nodes",), (IMPERSONATE,)),
        Rule(("heartbeats", "pulses"), ("get",)),
        # Of servers that are gone for good.
        Rule(("leases",), ("delete",)),
        # What is wrong in the store, and an operator's word on what it should be.
        Rule(("quarantine",), ("get", "update")),
        # Which versions there are, and that the older ones do not come back.
        Rule(("upgrade",), ("get", "update")),
        Rule(verbs=("get",), non_resource_urls=("/metrics", "/audit")),
    ),
    "auditor": (
        Rule((*_OPEN, *_CLUSTER, "tokens"), READ),
        Rule(("*/status", *_PARTS), ("get",)),
        Rule(("subjectaccessreviews",), ("create",), (AUTHORIZATION_GROUP,)),
        Rule(verbs=("get",), non_resource_urls=("/audit", "/audit/records")),
    ),
    "monitor": (
        Rule(("pulses", "targets"), ("get", "list")),
        Rule(verbs=("get",), non_resource_urls=("/metrics", "/audit")),
    ),
    "tenant-admin": (
        *_EDIT,
        _AUDIT,
        Rule(("roles", "rolebindings", "tokens"), WRITE),
        # Their own tokens speak for names of the tenant alone; see `commit/access/escalation`.
        Rule(("serviceaccounts", "groups"), (IMPERSONATE,)),
    ),
    "tenant-editor": _EDIT,
    "tenant-viewer": _VIEW,
    # Who did what in the namespace, and read its Secrets; not what is in them.
    "tenant-auditor": (*_VIEW, _AUDIT),
    # Work refers to these by name, so everybody may look at them.
    "everybody": (
        Rule(("priorityclasses", "regions"), READ),
        Rule(
            ("selfsubjectaccessreviews", "selfsubjectrulesreviews"),
            ("create",),
            (AUTHORIZATION_GROUP,),
        ),
        Rule(("selfsubjectreviews",), ("create",), ("authentication.k8s.io",)),
        Rule(
            verbs=("get",),
            non_resource_urls=("/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version"),
        ),
    ),
}

# The group that has each of them by itself, in the whole cluster. Whose identity names tenants is a
# tenant-editor in their namespaces.
HELD_BY: dict[str, str] = {
    "admin": ADMINS,
    "operator": OPERATORS,
    "auditor": AUDITORS,
    "monitor": MONITORS,
    "everybody": AUTHENTICATED,
}
OF_TENANTS = "tenant-editor"

# What all controllers read.
_PLACES = ("nodes", "tenants", "regions", "priorityclasses")
_FOLLOWED = (*_OPEN, *_PLACES, "leases")
_LEASE = Rule(("leases",), ("update",))
_PULSE = Rule(("pulses",), ("create",))

COMPONENTS: dict[str, tuple[Rule, ...]] = {
    "node": (
        Rule(("nodes", "replicas", "priorityclasses", "regions"), READ),
        # Of those that work on the node refers to, by name.
        Rule(("secrets",), ("get",)),
        Rule(("replicas/state", "replicas/stage"), ("update",)),
        # Of those that are bound to it: `host/api/plane/service_tokens`.
        Rule(("replicas/token",), ("create",)),
        Rule(("nodes/registration",), ("create",)),
        Rule(("nodes/status", "replicas/status"), CHANGE),
    ),
    "scheduler": (
        Rule(("replicas/binding",), ("create",)),
        Rule(("replicas/stage", "replicas/pending"), ("update",)),
        Rule(("replicas/reservation",), ("create", "delete")),
        Rule(("replicas/eviction",), ("create",)),
        Rule(("reservations",), ("create", "update", "delete")),
        Rule(("replicas/status", "workloads/status"), CHANGE),
        Rule(("events", "decisions", "records"), ("create",)),
        # No Secrets and no tokens: it places work without knowing what is in it.
        Rule((*_OPEN, *_PLACES, "schedulerpolicies", "leases"), READ),
        _LEASE,
        _PULSE,
    ),
    "server": (
        Rule((ALL,), READ),
        Rule(("leases",), ("update", "delete")),
        Rule(("operations", "revocations"), ("delete",)),
        Rule(("quarantine",), ("create",)),
        Rule(("tokens/status",), ("update",)),
        Rule(("events",), ("create",)),
        Rule(("roles", "rolebindings"), ("create", "update", ESCALATE, BIND)),
    ),
    "controller": (
        Rule(_FOLLOWED, READ),
        Rule(("schedulerpolicies", "grants"), READ),
        _LEASE,
        _PULSE,
    ),
    "controller-workload": (
        Rule(("replicas",), ("create", "delete")),
        Rule(("replicas/eviction",), ("create",)),
        Rule(("replicas/state",), ("update",)),
        # Runs of cron jobs, and taking away the finalizer of what is empty.
        Rule(("workloads",), ("create", "update", "delete")),
        Rule(("workloads/status",), CHANGE),
    ),
    "controller-nodes": (
        Rule(("nodes/phase", "replicas/state"), ("update",)),
        Rule(("nodes/status", "regions/status"), CHANGE),
        Rule(("heartbeats",), ("get",)),
    ),
    "controller-repair": (
        Rule(("replicas/state",), ("update",)),
        Rule(("replicas/eviction",), ("create",)),
        Rule(("replicas/reservation", "reservations"), ("delete",)),
        Rule(("replicas/status", "workloads/status"), CHANGE),
    ),
    "controller-status": (Rule(("workloads/status",), CHANGE),),
    "controller-endpoints": (
        Rule(("endpoints",), ("create", "update", "delete")),
        Rule(("replicas/stage",), ("update",)),
        Rule(("replicas/status",), CHANGE),
    ),
    "controller-drain": (
        Rule(("replicas/eviction",), ("create",)),
        Rule(("nodes/status",), CHANGE),
    ),
    "controller-reserves": (
        Rule(("reservations",), ("create", "delete")),
        Rule(("workloads/status",), CHANGE),
    ),
    "controller-rollout": (
        Rule(("workloadrevisions",), ("create", "delete")),
        Rule(("replicas/eviction",), ("create",)),
        Rule(("workloads/status",), CHANGE),
    ),
    "controller-garbage": (
        # What has lost its owner, or waits for it; `commit/ledgers/leaks` wants each proven.
        # Replicas go with their workloads.
        Rule(CONTENTS, ("update", "delete")),
        # It reads for all controllers of its process, since no other may see all that it follows.
        Rule(_HIDDEN, READ),
        Rule(("replicas",), ("update",)),
        Rule(("tenants",), ("update",)),
        Rule(("tenants/status",), CHANGE),
        Rule(("operations",), ("delete",)),
        Rule(("events",), ("create",)),
    ),
    "controller-events": (Rule(("events",), ("create", "update")),),
    "controller-autoscale": (Rule(("workloads/status",), CHANGE),),
    "controller-policy": (Rule(("schedulerpolicies/status", "overrides/status"), CHANGE),),
    "controller-quota": (Rule(("quotas/status", "grants/status"), CHANGE),),
    "controller-review": (Rule(("commitments/status",), CHANGE),),
}

ROLES: dict[str, tuple[Rule, ...]] = {**PEOPLE, **COMPONENTS}

_OF_ACTOR = {Actor.AGENT: "node", Actor.SCHEDULER: "scheduler", Actor.AUTHORITY: "server"}


def built_in_roles(identity: Identity) -> tuple[tuple[str, str], ...]:
    """Which of these an identity has without any binding, and where each of them holds."""
    actors = acts_as(identity)
    if not actors:
        return ()
    if Actor.USER in actors:
        groups = (*identity.groups, AUTHENTICATED)
        held = [(role, "") for role, group in HELD_BY.items() if group in groups]
        # The system's own namespace is nobody's, and no name at all would be everywhere.
        tenants = (it for it in identity.tenants if it not in ("", SYSTEM_NAMESPACE))
        return (*held, *((OF_TENANTS, tenant) for tenant in tenants))
    role = _OF_ACTOR.get(actors[0])
    if role is not None:
        return ((role, ""),)
    return ((f"controller-{identity.name.removeprefix(CONTROLLER_PREFIX)}", ""), ("controller", ""))


@lru_cache(maxsize=8192)
def built_in_grants(identity: Identity) -> tuple[GrantedRule, ...]:
    """What an identity may do without any binding, on any server and however old its view is."""
    return tuple(
        GrantedRule(rule, where, role)
        for role, where in built_in_roles(identity)
        for rule in ROLES[role]
    )
