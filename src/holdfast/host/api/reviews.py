"""Access reviews: `kubectl auth can-i` and `kubectl auth whoami`, answered by the rules themselves.

Newer clients send them as Kubernetes protobuf and do not fall back to JSON, so the few fields that
a review has are read from that form too. Answers may be JSON always.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.authorise import may
from holdfast.host.api.resources import RESOURCES
from holdfast.model.errors import Invalid
from holdfast.model.identity import Identity
from holdfast.model.meta import API_GROUP
from holdfast.model.wire import decode_tree

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_ANY = "*"
# What the core names are of ours.
_FACADES = {"namespaces": "tenants", "events": "events", "pods": "replicas"}
_BY_PLURAL = {resource.kind.plural: resource.kind for resource in RESOURCES}


class Attributes(msgspec.Struct, frozen=True):
    """What a review asks about."""

    verb: str = ""
    group: str = ""
    resource: str = ""
    namespace: str = ""
    subresource: str = ""
    name: str = ""
    path: str = ""


def access(identity: Identity, content_type: str, body: bytes) -> bytes:
    """SelfSubjectAccessReview: may I do this?"""
    asked = _attributes(content_type, body)
    allowed, reason = _judge(identity, asked)
    return _review(
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        {"allowed": allowed, "reason": reason},
        {"resourceAttributes": msgspec.to_builtins(asked)},
    )


def rules(identity: Identity, content_type: str, body: bytes) -> bytes:
    """SelfSubjectRulesReview: what may I do here? Each verb is asked of the rules,
    not listed twice.
    """
    namespace = _namespace(content_type, body)
    found = []
    for resource in RESOURCES:
        where = namespace if resource.kind.namespaced else ""
        verbs = [verb for verb in resource.verbs if may(identity, verb, resource.kind, where)]
        if verbs:
            found.append(
                {"verbs": verbs, "apiGroups": [API_GROUP], "resources": [resource.kind.plural]}
            )
    open_to_all = ["/healthz", "/livez", "/readyz", "/version", "/openapi/*", "/api*"]
    status = {
        "resourceRules": found,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": open_to_all}],
        "incomplete": False,
    }
    return _review("authorization.k8s.io/v1", "SelfSubjectRulesReview", status, {})


def whoami(identity: Identity) -> bytes:
    """SelfSubjectReview: who am I?"""
    user = {"username": identity.name, "groups": [*identity.groups, "system:authenticated"]}
    return _review("authentication.k8s.io/v1", "SelfSubjectReview", {"userInfo": user}, {})


def _review(version: str, kind: str, status: Any, spec: Any) -> bytes:
    return msgspec.json.encode(
        {"kind": kind, "apiVersion": version, "metadata": {}, "spec": spec, "status": status}
    )


def _judge(identity: Identity, asked: Attributes) -> tuple[bool, str]:
    if asked.path:
        return identity.is_admin or asked.verb == "get", "non-resource paths are read-only"
    if asked.resource == _ANY or asked.verb == _ANY or asked.group == _ANY:
        return identity.is_admin, "only administrators may do everything"
    if asked.group == "" and asked.resource in _FACADES:
        kind = _BY_PLURAL[_FACADES[asked.resource]]
        return may(identity, asked.verb, kind, asked.namespace, asked.subresource), ""
    if asked.group not in ("", API_GROUP) or asked.resource not in _BY_PLURAL:
        return False, f"there is no resource {asked.resource!r} in group {asked.group!r}"
    kind = _BY_PLURAL[asked.resource]
    where = asked.namespace if kind.namespaced else ""
    return may(identity, asked.verb, kind, where, asked.subresource), ""


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
        raise Invalid("the body is not in the Kubernetes protobuf form", code="Malformed")
    return _part(body[len(_MAGIC) :], 2)


def _string(message: bytes, field: int) -> str:
    try:
        return _part(message, field).decode()
    except UnicodeDecodeError:
        raise Invalid("a text in the body is not UTF-8", code="Malformed") from None


def _part(message: bytes, wanted: int) -> bytes:
    """The last length-delimited field of this number, or nothing."""
    found, at = b"", 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                _, at = _varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(message, at)
                if tag >> 3 == wanted:
                    found = message[at : at + length]
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
