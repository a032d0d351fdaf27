"""Role-based access control as in Kubernetes: rules only allow, and the default is to deny.

`commit/access/authorize.py` calls these functions on the records that its transaction compares; the
HTTP server and the access reviews (`host/server/caller_rights.py`) call them on their latest
snapshot. The built-in roles are in `roles.py`. A rule never decides who owns a field or a
transition: `commit/objects/field_writers.py` and the lifecycle table check that after
authorization.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from holdfast.model.access.identity import SYSTEM_PREFIX, Identity
from holdfast.model.kinds.access import Role, RoleBinding, RoleRef, Rule, Subject
from holdfast.model.meta import API_GROUP, Part
from holdfast.model.registry import SYSTEM_NAMESPACE

ALL = "*"
# Where a grant applies, if not in one namespace: in the whole cluster, or in all tenants.
EVERYWHERE = ""
EVERY_TENANT = "*"
# The group of all authenticated users.
AUTHENTICATED = "system:authenticated"
# The label of the objects that show the built-in roles and bindings.
BUILT_IN_LABEL = "holdfast.dev/built-in"
# The verbs for granting permissions that one does not have, and for impersonation.
ESCALATE, BIND, IMPERSONATE = "escalate", "bind", "impersonate"


class Permission(msgspec.Struct, frozen=True, gc=False):
    """The permission that a request needs. Without a name it covers all objects, or a new one."""

    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    group: str = API_GROUP

    @property
    def what(self) -> str:
        """The resource and subresource as rules name them."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class GrantedRule(msgspec.Struct, frozen=True):
    """A rule that an identity has: where it applies, and the role that it comes from."""

    rule: Rule
    where: str = EVERYWHERE
    role: str = ""


class AccessLedger(Part, frozen=True):
    """The roles and bindings of one namespace, so that a decision reads them as one record.

    `roles` holds the rules by role. `given` holds, by subject and binding, the role that the
    binding grants, as NAMESPACE/NAME. Built-in roles and bindings are left out: they are the same
    everywhere.
    """

    roles: dict[str, tuple[Rule, ...]] = {}
    given: dict[str, dict[str, str]] = {}


NOTHING = AccessLedger()


# Whether a grant allows a permission --------------------------------------------------------------


def find_grant(grants: Iterable[GrantedRule], permission: Permission) -> GrantedRule | None:
    """The first grant that allows the permission; None if none does."""
    what, namespace = permission.what, permission.namespace
    for grant in grants:
        if grant.where and not is_in_reach(grant.where, namespace):
            continue
        if _permits(grant.rule, permission, what):
            return grant
    return None


def is_in_reach(where: str, namespace: str) -> bool:
    """Whether a grant for `where` applies in a namespace. An empty one means the whole cluster."""
    if where in (EVERYWHERE, namespace):
        return True
    return where == EVERY_TENANT and namespace not in ("", SYSTEM_NAMESPACE)


def _permits(rule: Rule, permission: Permission, what: str) -> bool:
    if permission.verb not in rule.verbs and ALL not in rule.verbs:
        return False
    if what not in rule.resources and not _by_wildcard(rule.resources, permission):
        return False
    groups = rule.api_groups or (API_GROUP,)
    if permission.group not in groups and ALL not in groups:
        return False
    # A rule for certain names does not allow creating an object, whose name is not known yet.
    return not rule.resource_names or permission.name in rule.resource_names


def _by_wildcard(resources: tuple[str, ...], permission: Permission) -> bool:
    """`*` matches all, `*/scale` that subresource of all, `workloads/*` all of one resource."""
    if ALL in resources:
        return True
    if not permission.subresource:
        return False
    return (
        f"{ALL}/{permission.subresource}" in resources
        or f"{permission.resource}/{ALL}" in resources
    )


def find_path_grant(grants: Iterable[GrantedRule], verb: str, path: str) -> GrantedRule | None:
    """The first grant that allows a verb on a non-resource path; None if none does."""
    for grant in grants:
        rule = grant.rule
        if grant.where or (verb not in rule.verbs and ALL not in rule.verbs):
            continue
        if any(_leads_to(pattern, path) for pattern in rule.non_resource_urls):
            return grant
    return None


def _leads_to(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith(ALL) else path == pattern


# Whether a caller has all the permissions that it would grant -------------------------------------


def first_uncovered(grants: Iterable[GrantedRule], rules: Iterable[Rule], where: str) -> str:
    """The first permission of the rules that the grants do not cover `where`; empty if none."""
    held = [grant.rule for grant in grants if is_in_reach(grant.where, where)]
    for rule in rules:
        for part in _parts(rule):
            if not any(_covers(mine, part) for mine in held):
                return _sentence(part)
    return ""


def _parts(rule: Rule) -> Iterator[Rule]:
    """Splits a rule into parts of one verb, one resource and one name."""
    names: tuple[str, ...] = rule.resource_names or ("",)
    for verb in rule.verbs:
        for path in rule.non_resource_urls:
            yield Rule(verbs=(verb,), non_resource_urls=(path,))
        for group in rule.api_groups or (API_GROUP,):
            for resource in rule.resources:
                for name in names:
                    only = (name,) if name else ()
                    yield Rule((resource,), (verb,), (group,), only)


def _covers(mine: Rule, part: Rule) -> bool:
    """Whether one rule allows all that a part of another allows."""
    if not _has(mine.verbs, part.verbs[0]):
        return False
    if part.non_resource_urls:
        return any(_covers_path(path, part.non_resource_urls[0]) for path in mine.non_resource_urls)
    if not _has(mine.api_groups or (API_GROUP,), part.api_groups[0]):
        return False
    if mine.resource_names and not set(part.resource_names) & set(mine.resource_names):
        return False
    wanted = part.resources[0]
    resource, _, subresource = wanted.partition("/")
    return _has(mine.resources, wanted) or (
        bool(subresource)
        and (f"{ALL}/{subresource}" in mine.resources or f"{resource}/{ALL}" in mine.resources)
    )


def _has(mine: tuple[str, ...], wanted: str) -> bool:
    return wanted in mine or ALL in mine


def _covers_path(mine: str, wanted: str) -> bool:
    return _leads_to(mine, wanted.removesuffix(ALL)) if mine.endswith(ALL) else mine == wanted


def _sentence(part: Rule) -> str:
    if part.non_resource_urls:
        return f"{part.verbs[0]} {part.non_resource_urls[0]}"
    named = f" named {part.resource_names[0]}" if part.resource_names else ""
    group = part.api_groups[0]
    of = "" if group == API_GROUP else f" of group {group}"
    return f"{part.verbs[0]} {part.resources[0]}{of}{named}"


# What the roles and bindings of a namespace grant -------------------------------------------------


@lru_cache(maxsize=8192)
def subjects_of(identity: Identity) -> tuple[str, ...]:
    """The subjects of bindings that match this identity.

    Components have only their built-in roles: no binding can extend the permissions of a
    controller.
    """
    if identity.name.startswith(SYSTEM_PREFIX) or not identity.name.strip():
        return ()
    groups = (f"Group:{group}" for group in (*identity.groups, AUTHENTICATED))
    return (f"User:{identity.name}", *groups)


def service_account(namespace: str, name: str) -> str:
    """The user of a tenant's own token, which a binding names as a service account."""
    return f"tenant:{namespace}:{name}"


def workload_account(namespace: str, workload: str) -> str:
    """The user of the replicas of a workload, when they use their service token.

    A binding names it as the ServiceAccount `workload:NAME` of the namespace.
    """
    return service_account(namespace, f"workload:{workload}")


def workloads_group(namespace: str) -> str:
    """The group of all workloads of a tenant that use service tokens."""
    return service_account(namespace, "workloads")


def subject_key(subject: Subject, namespace: str) -> str:
    """The ledger's key for a subject of a binding in this namespace."""
    if subject.kind == "ServiceAccount":
        return f"User:{service_account(subject.namespace or namespace, subject.name)}"
    return f"{subject.kind}:{subject.name}"


def reference(of: RoleRef, namespace: str) -> str:
    """The ledger's name for the role of a binding in this namespace."""
    return f"{of.namespace or namespace}/{of.name}"


def with_role(ledger: AccessLedger, name: str, rules: tuple[Rule, ...] | None) -> AccessLedger:
    """The ledger after a role was written, or deleted if `rules` is None."""
    rest = {it: kept for it, kept in ledger.roles.items() if it != name}
    roles = rest if rules is None else {**rest, name: rules}
    return AccessLedger(roles=dict(sorted(roles.items())), given=ledger.given)


def with_binding(
    ledger: AccessLedger, namespace: str, name: str, binding: RoleBinding | None
) -> AccessLedger:
    """The ledger after a binding was written, or deleted if it is None."""
    given = {
        subject: {it: role for it, role in roles.items() if it != name}
        for subject, roles in ledger.given.items()
    }
    if binding is not None:
        role = reference(binding.role_ref, namespace)
        for subject in binding.subjects:
            key = subject_key(subject, namespace)
            given[key] = {**given.get(key, {}), name: role}
    found = {key: dict(sorted(roles.items())) for key, roles in sorted(given.items()) if roles}
    return AccessLedger(roles=ledger.roles, given=found)


def ledger_of(
    namespace: str, roles: Iterable[Role], bindings: Iterable[RoleBinding]
) -> AccessLedger:
    """The ledger of a namespace from its objects, without the built-in ones."""
    rules = {role.name: role.rules for role in roles if is_custom(role)}
    given: dict[str, dict[str, str]] = {}
    for binding in bindings:
        if is_custom(binding):
            role = reference(binding.role_ref, namespace)
            for subject in binding.subjects:
                given.setdefault(subject_key(subject, namespace), {})[binding.name] = role
    return AccessLedger(
        roles=dict(sorted(rules.items())),
        given={key: dict(sorted(roles.items())) for key, roles in sorted(given.items())},
    )


def is_custom(obj: Role | RoleBinding) -> bool:
    """Whether a role or a binding is not one of the built-in ones."""
    return BUILT_IN_LABEL not in obj.metadata.labels


def granted_rules(
    identity: Identity,
    namespace: str,
    own: AccessLedger,
    system: AccessLedger,
    built_in: Mapping[str, tuple[Rule, ...]],
) -> Iterator[GrantedRule]:
    """Yields the rules that the bindings of a namespace grant an identity.

    They apply in that namespace; those of the system namespace apply everywhere. `own` is that
    namespace's ledger, `system` the one of the system namespace.
    """
    where, given = EVERYWHERE if namespace == SYSTEM_NAMESPACE else namespace, own.given
    if not given:
        return
    for subject in subjects_of(identity):
        # No binding here names most groups of most users.
        roles = given.get(subject)
        if roles is None:
            continue
        for role in roles.values():
            for rule in rules_of(role, own, system, built_in):
                yield GrantedRule(rule, where, role)


def rules_of(
    role: str,
    own: AccessLedger,
    system: AccessLedger,
    built_in: Mapping[str, tuple[Rule, ...]],
) -> tuple[Rule, ...]:
    """The rules of a role that a ledger names; empty if the role does not exist."""
    namespace, _, name = role.partition("/")
    if namespace != SYSTEM_NAMESPACE:
        return own.roles.get(name, ())
    found = system.roles.get(name)
    return found if found is not None else built_in.get(name, ())
