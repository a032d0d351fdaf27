"""Privilege escalation: which roles, bindings and tokens a caller may write.

Admission asks after authorization has allowed the caller to write such an object at all. As in
Kubernetes, a role may contain only rules that its writer holds in the same scope, unless the writer
may `escalate` roles; a binding may grant only such a role, unless its writer may `bind` it. A token
of the system namespace can stand for any identity, so its creator must be allowed to `impersonate`
its user, its groups, or the node that it admits. A token of a tenant's namespace stands only for
that tenant's own names, which validation enforces; its creator must be allowed to `impersonate`
that service account and those groups in the namespace.

All of it is decided on records that the transaction compares, so a permission that is revoked at
the same moment cannot be used.
"""

from __future__ import annotations

from holdfast.commit.access.authorize import grants_in, is_permitted
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.access.rights import (
    BIND,
    BUILT_IN_LABEL,
    ESCALATE,
    EVERYWHERE,
    IMPERSONATE,
    NOTHING,
    AccessLedger,
    Permission,
    first_uncovered,
    reference,
    rules_of,
)
from holdfast.model.access.roles import HELD_BY, PEOPLE, ROLES, built_in_grants
from holdfast.model.errors import FieldError
from holdfast.model.kinds.access import Role, RoleBinding, Rule, Token, TokenPurpose
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of
from holdfast.model.validation.access import GROUPS_MAX, foreign_groups


def escalation_refusal(
    draft: Draft, context: Context, old: Object | None, new: Object
) -> Refusal | None:
    """Refuse a change that would grant more than the caller's own permissions."""
    match new:
        case Role():
            same = isinstance(old, Role) and old.rules == new.rules
            return built_in_refusal(context, new, old) or (
                None if same else _role_refusal(draft, context, new)
            )
        case RoleBinding():
            same = isinstance(old, RoleBinding) and old.subjects == new.subjects
            return built_in_refusal(context, new, old) or (
                None if same else _binding_refusal(draft, context, new)
            )
        case Token() if old is None:
            return _token_refusal(draft, context, new)
    return None


# What is built in ---------------------------------------------------------------------------------


def is_built_in(obj: Object) -> bool:
    """Whether an object shows a built-in role or binding, or has the name of one."""
    if not isinstance(obj, Role | RoleBinding):
        return False
    names = ROLES if isinstance(obj, Role) else HELD_BY
    reserved = obj.namespace == SYSTEM_NAMESPACE and obj.name in names
    return reserved or BUILT_IN_LABEL in obj.metadata.labels


def built_in_refusal(context: Context, obj: Object, old: Object | None) -> Refusal | None:
    """Refuse a change to the objects that show what is built in: only servers write them."""
    built_in = is_built_in(obj) or (old is not None and is_built_in(old))
    if not built_in or context.is_actor(Actor.AUTHORITY):
        return None
    what = kind_of(obj).singular
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{what} {obj.name}: is built in: its name and the label {BUILT_IN_LABEL} are reserved; "
        "create one of your own, in this namespace for the whole cluster or in a tenant's",
        {"name": obj.name, "label": BUILT_IN_LABEL},
    )


# Roles and bindings -------------------------------------------------------------------------------


def _where(namespace: str) -> str:
    return EVERYWHERE if namespace == SYSTEM_NAMESPACE else namespace


def _missing(draft: Draft, context: Context, rules: tuple[Rule, ...], namespace: str) -> str:
    """The first permission in these rules that the caller does not have in the namespace."""
    held = (*built_in_grants(context.identity), *grants_in(draft, context.identity, namespace))
    return first_uncovered(held, rules, _where(namespace))


def _role_refusal(draft: Draft, context: Context, role: Role) -> Refusal | None:
    missing = _missing(draft, context, role.rules, role.namespace)
    permission = Permission(ESCALATE, "roles", namespace=role.namespace, name=role.name)
    if not missing or is_permitted(draft, context.identity, permission):
        return None
    return _no(context, f"role {role.name}", missing, "escalate roles", role.namespace)


def _binding_refusal(draft: Draft, context: Context, binding: RoleBinding) -> Refusal | None:
    role = reference(binding.role_ref, binding.namespace)
    place, _, name = role.partition("/")
    if is_permitted(
        draft, context.identity, Permission(BIND, "roles", namespace=binding.namespace, name=name)
    ):
        return None
    own = draft.ledger(AccessLedger, keys.access_ledger(binding.namespace)) or NOTHING
    system = draft.ledger(AccessLedger, keys.access_ledger(SYSTEM_NAMESPACE)) or NOTHING
    rules = rules_of(role, own, system, PEOPLE)
    if not rules and draft.object(Role, place, name) is None and name not in PEOPLE:
        # The later creator of the role would decide what this binding grants.
        return Refusal(
            Reason.MISSING,
            f"roleRef.name: there is no role {name!r} in namespace {place}",
            {"name": name, "field": "roleRef.name"},
        )
    missing = _missing(draft, context, rules, binding.namespace)
    if not missing:
        return None
    return _no(context, f"rolebinding {binding.name}", missing, f"bind {name}", binding.namespace)


def _no(context: Context, what: str, missing: str, instead: str, namespace: str) -> Refusal:
    where = "in the whole cluster" if namespace == SYSTEM_NAMESPACE else f"in {namespace}"
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{what}: would allow to {missing} {where}, which {context.identity.name} may not do; "
        f"this requires that permission, or the permission to {instead}",
        {"missing": missing, "namespace": namespace},
    )


# Tokens -------------------------------------------------------------------------------------------


def needed_impersonations(token: Token) -> list[Permission]:
    """The permissions that a token's creator needs: one for each name that the token stands for.

    The bindings of a tenant decide, now or later, what its users and groups may do. So the
    permission to stand for them is scoped to that namespace. Validation refuses any other group in
    such a token; this rule does not rely on it.
    """
    spec, place = token.spec, token.namespace
    if place == SYSTEM_NAMESPACE and spec.purpose is TokenPurpose.JOIN:
        return [Permission(IMPERSONATE, "nodes", name=spec.node)]
    if place == SYSTEM_NAMESPACE:
        wanted = [Permission(IMPERSONATE, "users", name=spec.user)]
        return wanted + [Permission(IMPERSONATE, "groups", name=group) for group in spec.groups]
    foreign = frozenset(foreign_groups(token))
    wanted = [Permission(IMPERSONATE, "serviceaccounts", namespace=place, name=spec.user)]
    for group in spec.groups:
        where = EVERYWHERE if group in foreign else place
        wanted.append(Permission(IMPERSONATE, "groups", namespace=where, name=group))
    return wanted


def _token_refusal(draft: Draft, context: Context, token: Token) -> Refusal | None:
    """Refuse a token for a user or group that the caller may not impersonate."""
    identity, count = context.identity, len(token.spec.groups)
    if count > GROUPS_MAX:
        # Each group costs a scan of the caller's permissions, and validation comes later.
        text = f"must have at most {GROUPS_MAX} items, has {count}"
        error = FieldError("spec.groups", "", text)
        return Refusal(Reason.INVALID, f"token {token.name}: {error}", causes=(error,))
    for permission in needed_impersonations(token):
        if not is_permitted(draft, identity, permission):
            whom = f"{permission.resource} {permission.name}".strip()
            where = f" in {permission.namespace}" if permission.namespace else ""
            return Refusal(
                Reason.NOT_ALLOWED,
                f"token {token.name}: would stand for {whom}, which {identity.name} may not "
                f"{IMPERSONATE}{where}",
                {"missing": f"{IMPERSONATE} {whom}"},
            )
    return None
