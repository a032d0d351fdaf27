"""Validates roles, bindings, tokens, revocations and secrets."""

from __future__ import annotations

import base64
import binascii
import re

from holdfast.model.access.credential_life import revocation_name
from holdfast.model.access.identity import SYSTEM_PREFIX
from holdfast.model.access.rights import IMPERSONATE
from holdfast.model.kinds.access import (
    Revocation,
    Role,
    RoleBinding,
    Rule,
    Subject,
    Token,
    TokenPurpose,
)
from holdfast.model.kinds.secret import Secret
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import after_creation, in_order
from holdfast.model.validation.names import secret_key

RULES_MAX = 256
LIST_MAX = 256
# Every permission check walks the groups of an identity, so a token names few.
GROUPS_MAX = 64
SECRET_KEYS_MAX = 1024
SECRET_BYTES_MAX = 1024 * 1024

_VERB = re.compile(r"\*|[a-z]{1,63}", re.ASCII)
_RESOURCE = re.compile(r"\*|[a-z]{1,63}(?:/(?:\*|[a-z]{1,63}))?|\*/[a-z]{1,63}", re.ASCII)
_PATH = re.compile(r"\*|/[!-)+-~]{0,255}\*?", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def role(obj: Role, at: FieldPath) -> None:
    at = at["rules"]
    if names.at_most(at, obj.rules, RULES_MAX):
        for index, rule in enumerate(obj.rules):
            _rule(at[index], rule)
            if rule.non_resource_urls:
                _paths(at[index], rule, obj.namespace)


def _paths(at: FieldPath, rule: Rule, namespace: str) -> None:
    """Only cluster-wide rules may have paths, and a rule has either paths or resources."""
    place = at["nonResourceURLs"]
    if namespace != SYSTEM_NAMESPACE:
        place.wrong(rule.non_resource_urls, f"must be left out outside {SYSTEM_NAMESPACE}")
    if rule.resources or rule.resource_names or rule.api_groups:
        place.wrong(rule.non_resource_urls, "must be left out in a rule about resources")
    if names.at_most(place, rule.non_resource_urls, LIST_MAX):
        for index, path in enumerate(rule.non_resource_urls):
            if not _PATH.fullmatch(path):
                place[index].wrong(path, "must be * or start with /; it may end with *")


def _rule(at: FieldPath, rule: Rule) -> None:
    for field, items, form, example in (
        ("verbs", rule.verbs, _VERB, "get, bind or *"),
        ("resources", rule.resources, _RESOURCE, "workloads, workloads/scale or *"),
    ):
        if not items and not (field == "resources" and rule.non_resource_urls):
            at[field].wrong(items, "must have at least one item: the rule would allow nothing")
        if not names.at_most(at[field], items, LIST_MAX):
            continue
        for index, item in enumerate(items):
            if not form.fullmatch(item):
                at[field][index].wrong(item, f"must be a plain word such as {example}")
    if names.at_most(at["apiGroups"], rule.api_groups, LIST_MAX):
        for index, group in enumerate(rule.api_groups):
            if group != "*" and not names.is_dotted(group):
                place = at["apiGroups"][index]
                place.wrong(group, "must be an API group such as holdfast.dev, or *")
    _resource_names(at["resourceNames"], rule)


def _resource_names(at: FieldPath, rule: Rule) -> None:
    """Names of objects; in a rule with verb impersonate also of users and groups."""
    if IMPERSONATE not in rule.verbs:
        names.names(at, rule.resource_names, LIST_MAX, dotted=True)
    elif names.at_most(at, rule.resource_names, LIST_MAX):
        for index, name in enumerate(rule.resource_names):
            text.token(at[index], name)
        names.unique(at, rule.resource_names)


def role_binding(obj: RoleBinding, at: FieldPath) -> None:
    subjects = at["subjects"]
    if names.at_most(subjects, obj.subjects, LIST_MAX):
        for index, subject in enumerate(obj.subjects):
            _subject(subjects[index], subject)
        names.unique(subjects, [(s.kind, s.namespace, s.name) for s in obj.subjects])
    names.name(at["roleRef"]["name"], obj.role_ref.name)
    if obj.role_ref.namespace not in ("", obj.namespace, SYSTEM_NAMESPACE):
        at["roleRef"]["namespace"].wrong(
            obj.role_ref.namespace, f"must be empty, the binding's own, or {SYSTEM_NAMESPACE}"
        )


def _subject(at: FieldPath, subject: Subject) -> None:
    text.token(at["name"], subject.name)
    if subject.kind not in ("User", "Group", "ServiceAccount"):
        at["kind"].wrong(subject.kind, "must be User, Group or ServiceAccount")
    if subject.kind == "ServiceAccount":
        if subject.namespace:
            names.name(at["namespace"], subject.namespace)
    elif subject.namespace:
        at["namespace"].wrong(subject.namespace, "must be left out except for a ServiceAccount")
    if subject.kind == "User" and subject.name.startswith(SYSTEM_PREFIX):
        rule = "must not be a component: components have built-in roles only"
        at["name"].wrong(subject.name, rule)


def tenant_prefix(namespace: str) -> str:
    """The prefix of the users and groups of a tenant's own tokens."""
    return f"tenant:{namespace}:"


def token(obj: Token, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    if not _HASH.fullmatch(spec.hash):
        # A wrong value here is likely to be the secret itself, so it is not shown.
        at["hash"].wrong(None, "must be sha256: and 64 lower-case hexadecimal digits")
    after_creation(at["expires"], spec.expires, obj)
    if spec.purpose is TokenPurpose.JOIN:
        _join(at, obj)
        return
    if spec.node:
        at["node"].wrong(spec.node, "must be left out for Bearer")
    if spec.single_use:
        at["singleUse"].wrong(
            True, "must be left out for Bearer: only a Join token has a single use"
        )
    text.token(at["user"], spec.user)
    if names.at_most(at["groups"], spec.groups, GROUPS_MAX):
        names.unique(at["groups"], spec.groups)
        for index, group in enumerate(spec.groups):
            text.token(at["groups"][index], group)
    if obj.namespace != SYSTEM_NAMESPACE:
        own_identities(at, obj)
    elif spec.user.startswith(SYSTEM_PREFIX):
        # A token can leak as text, and a component has more permissions than people.
        at["user"].wrong(
            spec.user, "must not be a component: components authenticate with certificates"
        )


def foreign_groups(obj: Token) -> tuple[str, ...]:
    """The groups of a token that do not belong to its own namespace."""
    prefix = tenant_prefix(obj.namespace)
    return tuple(group for group in obj.spec.groups if not group.startswith(prefix))


def speaks_for_others(obj: Token) -> bool:
    """Whether a tenant's token names a user or a group outside the tenant.

    The authenticator checks every token: one that an earlier version stored, or that was written
    directly to the store, gives no permissions that admission would have refused.
    """
    if obj.namespace == SYSTEM_NAMESPACE:
        return False
    own_user = obj.spec.user.startswith(tenant_prefix(obj.namespace))
    return not own_user or bool(foreign_groups(obj))


def own_identities(at: FieldPath, obj: Token) -> None:
    """Permission to write tokens in a namespace gives no identity outside that namespace."""
    prefix = tenant_prefix(obj.namespace)
    rule = f"must begin with {prefix} outside namespace {SYSTEM_NAMESPACE}"
    if obj.spec.user and not obj.spec.user.startswith(prefix):
        at["user"].wrong(obj.spec.user, rule)
    for index, group in enumerate(obj.spec.groups):
        if not group.startswith(prefix):
            at["groups"][index].wrong(group, rule)


def _join(at: FieldPath, obj: Token) -> None:
    """A join token admits its holder as a node, so it is cluster-wide and expires."""
    spec = obj.spec
    if obj.namespace != SYSTEM_NAMESPACE:
        at["purpose"].wrong("Join", f"must be Bearer outside namespace {SYSTEM_NAMESPACE}")
    if spec.expires is None:
        at["expires"].wrong(None, "must be given for Join")
    for field, given in (("user", spec.user), ("groups", spec.groups)):
        if given:
            at[field].wrong(given, "must be left out for Join: a node's name is its identity")
    if spec.node:
        names.dotted_name(at["node"], spec.node)


def token_update(old: Token, new: Token, at: FieldPath) -> None:
    """A revoked or used token stays so; a new token is cheap."""
    if old.spec.revoked and not new.spec.revoked:
        at["spec"]["revoked"].wrong(False, "cannot be undone")
    if old.status.used_at is not None:
        before, after = old.status, new.status
        for name, was, given in (
            ("usedAt", before.used_at, after.used_at),
            ("usedBy", before.used_by, after.used_by),
            ("key", before.key, after.key),
        ):
            if given != was:
                at["status"][name].wrong(given, "cannot be changed once the token was used")
    if old.spec.expires is not None and (
        new.spec.expires is None or new.spec.expires > old.spec.expires
    ):
        at["spec"]["expires"].wrong(new.spec.expires, "cannot be extended; create a new token")


def revocation(obj: Revocation, at: FieldPath) -> None:
    spec = obj.spec
    text.token(at["spec"]["user"], spec.user)
    wanted = revocation_name(spec.user)
    if text.is_token(spec.user) and obj.name != wanted:
        at["metadata"]["name"].wrong(obj.name, f"must be {wanted}, which follows from spec.user")
    text.sentence(at["spec"]["reason"], spec.reason)
    in_order(at["spec"]["expires"], spec.before, spec.expires, "spec.before")


def revocation_update(old: Revocation, new: Revocation, at: FieldPath) -> None:
    """A revoked credential stays revoked. Its user needs a new one."""
    for field, was, is_now in (
        ("before", old.spec.before, new.spec.before),
        ("expires", old.spec.expires, new.spec.expires),
    ):
        if was is not None and (is_now is None or is_now < was):
            at["spec"][field].wrong(is_now, f"must not be earlier than {was.isoformat()}")


def secret(obj: Secret, at: FieldPath) -> None:
    """Checks keys, encoding and size. No error ever contains a value."""
    size = 0
    for field, entries in (("data", obj.data), ("stringData", obj.string_data)):
        if not names.at_most(at[field], entries, SECRET_KEYS_MAX):
            continue
        for key, value in entries.items():
            place = at[field].entry(key)
            secret_key(place, key)
            size += len(value.encode()) if entries is obj.string_data else _decoded(place, value)
    if size > SECRET_BYTES_MAX:
        at["data"].wrong(None, f"must have at most {SECRET_BYTES_MAX} bytes in all, has {size}")
    text.sentence(at["type"], obj.type, needed=True, limit=names.DOTTED_MAX)


def _decoded(at: FieldPath, value: str) -> int:
    """The number of bytes that the base64 text encodes."""
    try:
        return len(base64.b64decode(value.encode(), validate=True))
    except (binascii.Error, ValueError):
        at.wrong(None, "must be base64")
        return 0
