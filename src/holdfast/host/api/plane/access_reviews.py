"""Access reviews: `kubectl auth can-i` and `kubectl auth whoami`, answered by the rules themselves.

A question is checked against the roles (`host/server/caller_rights`), against permissions that only
certain actors can ever have (`commit/access/visibility`), and against what the API offers. Newer
clients send reviews as Kubernetes protobuf and do not fall back to JSON, so the few fields of a
review are read from that form too. The response may always be JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.access.visibility import exclusive_actors
from holdfast.host.api.resource_table import RESOURCES, ApiResource
from holdfast.host.server.authentication import identity_of
from holdfast.host.server.caller_rights import Rights
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.access.rights import (
    ALL,
    AUTHENTICATED,
    BIND,
    ESCALATE,
    IMPERSONATE,
    Permission,
    is_in_reach,
)
from holdfast.model.access.roles import AUTHORIZATION_GROUP
from holdfast.model.encoding.wire import decode_tree
from holdfast.model.errors import Forbidden, Invalid
from holdfast.model.kinds.access import Rule
from holdfast.model.meta import API_GROUP
from holdfast.model.refusal import Reason
from holdfast.model.validation.access import GROUPS_MAX

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
# Far more than any part of a review has.
FIELDS_MAX = 256
_CORE = ""
# Open to every caller, also without authentication.
OPEN_PATHS = ("/healthz", "/livez", "/readyz")
# The kind behind each core name, and the subresources and verbs that it offers.
_FACADES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "namespaces": ("tenants", {"": ("get", "list", "watch")}),
    "events": ("events", {"": ("get", "list", "watch")}),
    "pods": (
        "replicas",
        {"": ("get", "list", "watch"), "log": ("get",), "exec": ("create", "get")},
    ),
}
_BY_PLURAL = {resource.kind.plural: resource for resource in RESOURCES}
# Requests of components without a path of their own, and resources that are not kinds.
_REQUESTED: dict[str, tuple[str, ...]] = {
    "replicas/eviction": ("create",),
    "replicas/state": ("update",),
    "replicas/stage": ("update",),
    "replicas/pending": ("update",),
    "replicas/reservation": ("create", "delete"),
    "nodes/registration": ("create",),
    "nodes/phase": ("update",),
    "heartbeats": ("get",),
    "pulses": ("get", "create"),
    "records": ("create",),
    "operations": ("delete",),
    "targets": ("list",),
    "roles": (BIND, ESCALATE),
    "users": (IMPERSONATE,),
    "groups": (IMPERSONATE,),
    "nodes": (IMPERSONATE,),
    "serviceaccounts": (IMPERSONATE,),
}
_REVIEWS = {
    (AUTHORIZATION_GROUP, "selfsubjectaccessreviews"),
    (AUTHORIZATION_GROUP, "selfsubjectrulesreviews"),
    (AUTHORIZATION_GROUP, "subjectaccessreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
}


class Attributes(msgspec.Struct, frozen=True):
    """What a review asks about."""

    verb: str = ""
    group: str = ""
    resource: str = ""
    namespace: str = ""
    subresource: str = ""
    name: str = ""
    path: str = ""


def access(rights: Rights, identity: Identity, content_type: str, body: bytes) -> bytes:
    """SelfSubjectAccessReview: may I do this?"""
    return _access(rights, identity, "SelfSubjectAccessReview", _attributes(content_type, body), {})


def access_of(rights: Rights, identity: Identity, content_type: str, body: bytes) -> bytes:
    """SubjectAccessReview: may another user do this? Raises Forbidden if the caller may not ask."""
    may_ask = Permission("create", "subjectaccessreviews", group=AUTHORIZATION_GROUP)
    if not rights.may(identity, may_ask):
        raise Forbidden(
            f'subjectaccessreviews is forbidden: User "{identity.name}" cannot create resource '
            f'"subjectaccessreviews" in API group "{AUTHORIZATION_GROUP}"',
            code=Reason.NOT_ALLOWED,
        )
    user, groups = _subject(content_type, body)
    # A review need not list the group of authenticated users; every subject belongs to it.
    subject = identity_of(user, tuple(group for group in groups if group != AUTHENTICATED))
    about = {"user": user, "groups": list(groups)}
    asked = _attributes(content_type, body)
    return _access(rights, subject, "SubjectAccessReview", asked, about)


def _access(
    rights: Rights, identity: Identity, kind: str, asked: Attributes, about: dict[str, Any]
) -> bytes:
    allowed, reason = judge(rights, identity, asked)
    spec = {**about, "resourceAttributes": msgspec.to_builtins(asked)}
    status = {"allowed": allowed, "reason": reason}
    return _review(f"{AUTHORIZATION_GROUP}/v1", kind, status, spec)


def rules(rights: Rights, identity: Identity, content_type: str, body: bytes) -> bytes:
    """SelfSubjectRulesReview: what may I do here?"""
    namespace = _namespace(content_type, body)
    grants = [it for it in rights.grants(identity) if is_in_reach(it.where, namespace)]
    found = [_resource_rule(it.rule) for it in grants if it.rule.resources]
    for name, (_, parts) in _FACADES.items():
        for part, verbs in parts.items():
            asked = Attributes(group=_CORE, resource=name, subresource=part, namespace=namespace)
            may = [
                verb
                for verb in verbs
                if judge(rights, identity, msgspec.structs.replace(asked, verb=verb))[0]
            ]
            if may:
                what = f"{name}/{part}" if part else name
                found.append({"verbs": may, "apiGroups": [_CORE], "resources": [what]})
    paths = [it.rule for it in grants if not it.where and it.rule.non_resource_urls]
    status: dict[str, Any] = {
        "resourceRules": found,
        "nonResourceRules": [
            {"verbs": ["get"], "nonResourceURLs": list(OPEN_PATHS)},
            *({"verbs": it.verbs, "nonResourceURLs": it.non_resource_urls} for it in paths),
        ],
        "incomplete": False,
    }
    if identity.node is not None:
        status |= {
            "incomplete": True,
            "evaluationError": "these rules apply only to the agent's own node and what is bound "
            "to it",
        }
    return _review(f"{AUTHORIZATION_GROUP}/v1", "SelfSubjectRulesReview", status, {})


def _resource_rule(rule: Rule) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verbs": rule.verbs,
        "apiGroups": rule.api_groups or (API_GROUP,),
        "resources": rule.resources,
    }
    return found | ({"resourceNames": rule.resource_names} if rule.resource_names else {})


def whoami(identity: Identity) -> bytes:
    """SelfSubjectReview: who am I?"""
    user = {"username": identity.name, "groups": [*identity.groups, AUTHENTICATED]}
    return _review("authentication.k8s.io/v1", "SelfSubjectReview", {"userInfo": user}, {})


def _review(version: str, kind: str, status: Any, spec: Any) -> bytes:
    return msgspec.json.encode(
        {"kind": kind, "apiVersion": version, "metadata": {}, "spec": spec, "status": status}
    )


# The answer ------------------------------------------------------------------------------------


def judge(rights: Rights, identity: Identity, asked: Attributes) -> tuple[bool, str]:
    """Whether an identity could do what is asked about, and for a no its reason if known."""
    if not acts_as(identity):
        return False, "the user is not authenticated"
    if asked.path:
        if asked.path in OPEN_PATHS and asked.verb == "get":
            return True, "open to every caller"
        return rights.may_path(identity, asked.verb, asked.path), ""
    if (asked.group, asked.resource) in _REVIEWS:
        wanted = Permission(asked.verb, asked.resource, "", "", asked.name, asked.group)
        return asked.verb in ("create", ALL) and rights.may(identity, wanted), ""
    if ALL in (asked.verb, asked.resource, asked.group):
        group = asked.group or API_GROUP
        where = asked.namespace
        wanted = Permission(asked.verb, asked.resource, asked.subresource, where, asked.name, group)
        return rights.may(identity, wanted), ""
    return _judge_named(rights, identity, asked)


def _judge_named(rights: Rights, identity: Identity, asked: Attributes) -> tuple[bool, str]:
    """The answer for one resource and one verb, without wildcards."""
    plural = asked.resource
    is_core = asked.group == _CORE and plural in _FACADES
    what = f"{plural}/{asked.subresource}" if asked.subresource else plural
    if is_core:
        plural, parts = _FACADES[plural]
        offered = parts.get(asked.subresource, ())
    else:
        offered = _offered(_BY_PLURAL.get(plural), asked.subresource, what)
    if asked.group not in (_CORE, API_GROUP) or not offered:
        return False, f"the API has no resource {what!r} in group {asked.group!r}"
    if asked.verb not in offered:
        return False, f"{what} does not support the verb {asked.verb!r}"
    kind = _BY_PLURAL[plural].kind if plural in _BY_PLURAL else None
    where = asked.namespace if kind is None or kind.namespaced else ""
    # The creator chooses the name, so rules with resourceNames do not apply to creates.
    name = "" if asked.verb == "create" and not asked.subresource else asked.name
    wanted = Permission(asked.verb, plural, asked.subresource, where, name)
    only = exclusive_actors(identity, kind, wanted) if kind is not None else ()
    if only:
        return False, f"only {', '.join(only)} may {asked.verb} {wanted.what}, whatever the roles"
    return rights.may(identity, wanted), ""


def _offered(resource: ApiResource | None, subresource: str, what: str) -> tuple[str, ...]:
    """The verbs that a resource or a subresource supports."""
    more = _REQUESTED.get(what, ())
    if resource is None:
        return more
    if not subresource:
        return (*resource.verbs, *more)
    parts = {part.name: part.verbs for part in resource.subresources}
    return (*parts.get(subresource, ()), *more)


# Reading a review
# --------------------------------------------------------------------------------------


def _attributes(content_type: str, body: bytes) -> Attributes:
    if content_type.startswith(PROTOBUF):
        inner = _part(_raw(body), 2)
        resource, other = _part(inner, 1), _part(inner, 2)
        return Attributes(
            namespace=_string(resource, 1),
            verb=_string(resource, 2) or _string(other, 2),
            group=_string(resource, 3),
            resource=_string(resource, 5),
            subresource=_string(resource, 6),
            name=_string(resource, 7),
            path=_string(other, 1),
        )
    spec = _dict(_dict(decode_tree(body)).get("spec"))
    about = {**_dict(spec.get("resourceAttributes")), **_dict(spec.get("nonResourceAttributes"))}
    known = {k: v for k, v in about.items() if k in Attributes.__struct_fields__}
    return msgspec.convert({k: v for k, v in known.items() if isinstance(v, str)}, Attributes)


def _subject(content_type: str, body: bytes) -> tuple[str, tuple[str, ...]]:
    """The user and groups that a SubjectAccessReview asks about."""
    if content_type.startswith(PROTOBUF):
        inner = _part(_raw(body), 2)
        user, groups = _string(inner, 3), tuple(_texts(inner, 4))
    else:
        spec = _dict(_dict(decode_tree(body)).get("spec"))
        user, listed = spec.get("user", ""), spec.get("groups")
        groups = tuple(listed) if isinstance(listed, list) else ()
    if not isinstance(user, str) or not all(isinstance(group, str) for group in groups):
        raise Invalid("spec.user, spec.groups: must be strings")
    if len(groups) > GROUPS_MAX:
        raise Invalid(f"spec.groups: must have at most {GROUPS_MAX} items, not {len(groups)}")
    if not user and not groups:
        raise Invalid("spec.user: required unless spec.groups is given")
    return user, groups


def _namespace(content_type: str, body: bytes) -> str:
    if content_type.startswith(PROTOBUF):
        return _string(_part(_raw(body), 2), 1)
    namespace = _dict(_dict(decode_tree(body)).get("spec")).get("namespace")
    return namespace if isinstance(namespace, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _raw(body: bytes) -> bytes:
    """The object inside the envelope."""
    if not body.startswith(_MAGIC):
        raise Invalid("the body is not Kubernetes protobuf", code="Malformed")
    return _part(body[len(_MAGIC) :], 2)


def _string(message: bytes, field: int) -> str:
    return _text(_part(message, field))


def _texts(message: bytes, field: int) -> list[str]:
    return [_text(part) for part in _parts(message, field)]


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise Invalid("a string in the body is not valid UTF-8", code="Malformed") from None


def _part(message: bytes, wanted: int) -> bytes:
    """The last length-delimited field of this number, or nothing."""
    found = _parts(message, wanted)
    return found[-1] if found else b""


def _parts(message: bytes, wanted: int) -> list[bytes]:
    """All length-delimited fields of this number."""
    found: list[bytes] = []
    at = fields = 0
    while at < len(message):
        fields += 1
        if fields > FIELDS_MAX:
            raise Invalid(f"the body must have at most {FIELDS_MAX} fields", code="Malformed")
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                if tag >> 3 == wanted:
                    found.append(message[at : at + length])
                at += length
            case 5:
                at += 4
            case _:
                raise Invalid("the body is not protobuf", code="Malformed")
    if at != len(message):
        raise Invalid("the body ends within a field", code="Malformed")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise Invalid("the body ends within a number", code="Malformed")
