"""The built-in roles, and who has them without a binding. The same on every server.

    people       admin, operator, auditor, monitor; tenant-admin, tenant-editor, tenant-viewer;
                 everybody
    components   node, scheduler, server; controller for all of them, controller-NAME for each

Servers write them as Role and RoleBinding objects of the system namespace when they start
(`host/server/caller_rights.py`). Only this table counts, so no change of an object can lock out an
administrator or extend a component. Bindings may grant the roles of people to others.

Who may send a request is declared with the request (`model/requests.py`), who writes a status or a
kind of people with the kind (`model/kinds/`); both become rules here. Besides, this table lists the
kinds that a component may read and write as a whole.
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
from holdfast.model.lifecycle import CONTROLLERS, Actor
from holdfast.model.registry import CONTENTS, KINDS, SYSTEM_NAMESPACE
from holdfast.model.requests import REQUESTS

AUTHORIZATION_GROUP = "authorization.k8s.io"

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
CHANGE = ("update", "patch")


def _requests_of(*actors: Actor) -> tuple[Rule, ...]:
    """The rules for the requests that all of these actors send. What every controller sends is in
    the role that all of them have, and not in that of each.
    """
    verbs: dict[str, dict[str, None]] = {}
    for request in REQUESTS:
        is_of_each = set(actors) <= set(request.senders)
        is_of_more = set(actors) < set(CONTROLLERS) <= set(request.senders)
        if request.needs is not None and is_of_each and not is_of_more:
            verbs.setdefault(request.needs.what, {})[request.needs.verb] = None
    return tuple(Rule((what,), tuple(found)) for what, found in verbs.items())


def _statuses_of(*actors: Actor) -> tuple[Rule, ...]:
    """The rule for the statuses of which an actor writes a part. Servers never patch one."""
    written = [kind for kind in KINDS if set(actors) <= set(kind.writers.of_status)]
    verbs = ("update",) if actors == (Actor.AUTHORITY,) else CHANGE
    return (Rule(tuple(f"{kind.plural}/status" for kind in written), verbs),) if written else ()


def _objects_of(*actors: Actor) -> tuple[Rule, ...]:
    """The rules for the kinds that a controller makes and removes as a whole. Events, which all
    components may write, and what controller:garbage collects are listed below.
    """
    if actors == (Actor.GARBAGE,) or not set(actors) < set(CONTROLLERS):
        return ()
    (actor,), found = actors, []
    for kind in (kind for kind in KINDS if len(kind.writers.spec) <= 1):
        writers = kind.writers
        verbs = {
            "create": actor in (*writers.spec, *writers.makers),
            "update": actor in writers.spec and "spec" not in kind.immutable,
            "delete": actor in (*writers.spec, *writers.removers),
        }
        if any(verbs.values()):
            found.append(Rule((kind.plural,), tuple(verb for verb, may in verbs.items() if may)))
    return tuple(found)


# The resources in a tenant's namespace that hold no secrets, those that do, and those that its
# people write; the resources of the cluster.
_OPEN = tuple(kind.plural for kind in KINDS if kind.namespaced and not kind.is_secret)
_HIDDEN = tuple(kind.plural for kind in KINDS if kind.is_secret)
_OWN = tuple(kind.plural for kind in KINDS if kind.writers.spec == (Actor.USER,))
_CLUSTER = tuple(kind.plural for kind in KINDS if not kind.namespaced)
# The resources that operators manage: the plane itself, and the limits of each tenant.
_RUN = tuple(
    kind.plural for kind in KINDS if kind.writers.spec == (Actor.OPERATOR,) and not kind.is_secret
)
_PARTS = (
    "workloads/status",
    "workloads/scale",
    "replicas/status",
    "replicas/explanation",
    "replicas/log",
)

_VIEW = (Rule(_OPEN, READ), Rule(_PARTS, ("get",)))
_EDIT = (
    *_VIEW,
    Rule(_HIDDEN, READ),
    Rule(_OWN, WRITE),
    Rule(("workloads/scale",), CHANGE),
    Rule(("replicas",), ("delete",)),
    Rule(("replicas/exec",), ("create", "get")),
    *_requests_of(Actor.USER),
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
        # Operators admit machines, not people.
        Rule(("tokens",), (*READ, "create", "update", "patch", "delete")),
        Rule(("nodes",), (IMPERSONATE,)),
        Rule(("heartbeats", "pulses"), ("get",)),
        # The leases of servers that are permanently gone.
        Rule(("leases",), ("delete",)),
        # Wrong records in the store, and the versions of all components.
        Rule(("quarantine", "upgrade"), ("get",)),
        Rule(verbs=("get",), non_resource_urls=("/metrics", "/audit")),
        *_requests_of(Actor.OPERATOR),
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
_PULSE = Rule(("pulses",), ("create",))

_WRITES: dict[str, tuple[Rule, ...]] = {
    "node": (
        Rule(("nodes", "replicas", "priorityclasses", "regions"), READ),
        # Only the Secrets that work on the node refers to, and the records of its gangs, by name.
        Rule(("secrets", "reservations"), ("get",)),
        # Only for replicas that are bound to it: `host/api/plane/service_token_routes.py`.
        Rule(("replicas/token",), ("create",)),
    ),
    "scheduler": (
        Rule(("events", "decisions", "records"), ("create",)),
        # No Secrets and no tokens: placement does not need their contents.
        Rule((*_OPEN, *_PLACES, "schedulerpolicies", "leases"), READ),
        _PULSE,
    ),
    "server": (
        Rule((ALL,), READ),
        Rule(("revocations",), ("delete",)),
        Rule(("events",), ("create",)),
        Rule(("roles", "rolebindings"), ("create", "update", ESCALATE, BIND)),
    ),
    "controller": (
        Rule(_FOLLOWED, READ),
        Rule(("schedulerpolicies", "grants"), READ),
        _PULSE,
    ),
    # Removing the finalizer of a workload without replicas.
    "controller-workload": (Rule(("workloads",), ("update",)),),
    "controller-nodes": (Rule(("heartbeats",), ("get",)),),
    "controller-garbage": (
        # Objects that lost their owner, or wait for it; `commit/ledgers/leaks.py` requires proof
        # for each. Replicas are deleted with their workloads.
        Rule(CONTENTS, ("update", "delete")),
        # It reads for all controllers of its process, because no other may read all these kinds.
        Rule(_HIDDEN, READ),
        Rule(("replicas",), ("update",)),
        Rule(("tenants",), ("update",)),
        Rule(("events",), ("create",)),
    ),
    "controller-events": (Rule(("events",), ("create", "update")),),
}

_OF_ACTOR = {Actor.AGENT: "node", Actor.SCHEDULER: "scheduler", Actor.AUTHORITY: "server"}
_SENDERS = {
    **{role: (actor,) for actor, role in _OF_ACTOR.items()},
    "controller": CONTROLLERS,
    **{actor.value.replace(":", "-"): (actor,) for actor in CONTROLLERS},
}
COMPONENTS: dict[str, tuple[Rule, ...]] = {
    role: (
        *_WRITES.get(role, ()),
        *_objects_of(*actors),
        *_statuses_of(*actors),
        *_requests_of(*actors),
    )
    for role, actors in _SENDERS.items()
}

ROLES: dict[str, tuple[Rule, ...]] = {**PEOPLE, **COMPONENTS}


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
