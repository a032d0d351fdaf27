"""The built-in roles, and who has them without a binding. The same on every server.

    people       admin, operator, auditor, monitor; tenant-admin, tenant-editor, tenant-viewer;
                 everybody
    components   node, scheduler, server; controller for all of them, controller-NAME for each

Servers write them as Role and RoleBinding objects of the system namespace when they start
(`host/server/caller_rights.py`). Only this table counts, so no change of an object can lock out an
administrator or extend a component. Bindings may grant the roles of people to others.

This table lists the kinds that a component may write; `commit/objects/field_writers.py` lists the
fields. A controller that writes a new kind needs a line here first.
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

# The resources in a tenant's namespace that hold no secrets.
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
# The resources that operators manage: the plane itself, and the limits of each tenant.
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

# The audit records of one tenant; see `host/audit/records_route.py`.
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
        # Not the template: its author can read whatever the work may read.
        Rule(("workloads/scale",), CHANGE),
        Rule(("replicas",), ("delete",)),
        Rule(("replicas/eviction",), ("create",)),
        # Confirming that work is gone, and removing an object without waiting for it.
        Rule(("replicas/state",), CHANGE),
        # Operators admit machines, not people.
        Rule(("tokens",), (*READ, "create", "update", "patch", "delete")),
        Rule(("nodes",), (IMPERSONATE,)),
        Rule(("heartbeats", "pulses"), ("get",)),
        # The leases of servers that are permanently gone.
        Rule(("leases",), ("delete",)),
        # Wrong records in the store, and their repair.
        Rule(("quarantine",), ("get", "update")),
        # The versions of all components, and raising the format so that older ones cannot return.
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
        # Their tokens identify only users of the tenant; see `commit/access/escalation.py`.
        Rule(("serviceaccounts", "groups"), (IMPERSONATE,)),
    ),
    "tenant-editor": _EDIT,
    "tenant-viewer": _VIEW,
    # Who did what in the namespace and who read its Secrets, not their contents.
    "tenant-auditor": (*_VIEW, _AUDIT),
    # Workloads refer to these by name, so every user may read them.
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

# The group that has each role in the whole cluster. An identity with tenants is a tenant-editor in
# their namespaces.
HELD_BY: dict[str, str] = {
    "admin": ADMINS,
    "operator": OPERATORS,
    "auditor": AUDITORS,
    "monitor": MONITORS,
    "everybody": AUTHENTICATED,
}
OF_TENANTS = "tenant-editor"

# The resources that all controllers read.
_PLACES = ("nodes", "tenants", "regions", "priorityclasses")
_FOLLOWED = (*_OPEN, *_PLACES, "leases")
_LEASE = Rule(("leases",), ("update",))
_PULSE = Rule(("pulses",), ("create",))

COMPONENTS: dict[str, tuple[Rule, ...]] = {
    "node": (
        Rule(("nodes", "replicas", "priorityclasses", "regions"), READ),
        # Only the Secrets that work on the node refers to, by name.
        Rule(("secrets",), ("get",)),
        Rule(("replicas/state", "replicas/stage"), ("update",)),
        # Only for replicas that are bound to it: `host/api/plane/service_token_routes.py`.
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
        # No Secrets and no tokens: placement does not need their contents.
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
        # Runs of cron jobs, and removing the finalizer of a workload without replicas.
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
        # Objects that lost their owner, or wait for it; `commit/ledgers/leaks.py` requires proof
        # for each. Replicas are deleted with their workloads.
        Rule(CONTENTS, ("update", "delete")),
        # It reads for all controllers of its process, because no other may read all these kinds.
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
    """The roles that an identity has without a binding, and where each applies."""
    actors = acts_as(identity)
    if not actors:
        return ()
    if Actor.USER in actors:
        groups = (*identity.groups, AUTHENTICATED)
        held = [(role, "") for role, group in HELD_BY.items() if group in groups]
        # The system namespace belongs to no tenant, and an empty name would mean everywhere.
        tenants = (it for it in identity.tenants if it not in ("", SYSTEM_NAMESPACE))
        return (*held, *((OF_TENANTS, tenant) for tenant in tenants))
    role = _OF_ACTOR.get(actors[0])
    if role is not None:
        return ((role, ""),)
    return ((f"controller-{identity.name.removeprefix(CONTROLLER_PREFIX)}", ""), ("controller", ""))


@lru_cache(maxsize=8192)
def built_in_grants(identity: Identity) -> tuple[GrantedRule, ...]:
    """The rules that an identity has without a binding, on any server and with any snapshot."""
    return tuple(
        GrantedRule(rule, where, role)
        for role, where in built_in_roles(identity)
        for rule in ROLES[role]
    )
