"""Role, RoleBinding, Token and Revocation: authentication and authorization.

Roles and bindings of the system namespace apply to the whole cluster. `model/access/rights.py`
evaluates them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.kind_declaration import (
    OPERATORS,
    Kind,
    KindRules,
    Retention,
    Writers,
    count,
    moment,
    text,
)
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, Part, Timestamp


class Rule(Part, frozen=True):
    """The verbs that are allowed on resources; `*` means all.

    api_groups: the API groups; empty means holdfast.dev.
    resources: plural names, also with a subresource such as workloads/scale.
    verbs: get, list, watch, create, update, patch, delete, bind and so on.
    resource_names: only objects of these names; empty means all.
    non_resource_urls: paths that are not resources, such as /metrics; only in cluster-wide roles.
    """

    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class Role(Object, frozen=True, kw_only=True, tag="Role"):
    """A set of permissions.

    rules: the allowed verbs and resources.
    """

    rules: tuple[Rule, ...] = ()


class Subject(Part, frozen=True):
    """A user, group or service account.

    kind: User, Group, or ServiceAccount for the user of a tenant's own token.
    name: the name of the user, the group or the service account.
    namespace: the namespace of a service account's tokens; empty means the binding's own.
    """

    kind: str
    name: str
    namespace: str = ""


class RoleRef(Part, frozen=True):
    """The role that a binding grants.

    name: the Role, in the binding's namespace or in the system namespace.
    namespace: the namespace of the Role; empty means the binding's own.
    """

    name: str
    namespace: str = ""


class RoleBinding(Object, frozen=True, kw_only=True, tag="RoleBinding"):
    """Grants a role to people or services.

    subjects: who gets the role.
    role_ref: the role.
    """

    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef


# Token: a bearer token or a node's join token. Only its hash is ever stored.


class TokenPurpose(StrEnum):
    BEARER = "Bearer"
    JOIN = "Join"


class TokenSpec(Part, frozen=True):
    """What the token authenticates.

    purpose: Bearer identifies a person or service, Join admits one node.
    user: the user that the bearer is.
    node: the only node that may join with it; a node that is new to the plane if empty.
    groups: the groups that the bearer is in.
    hash: the hash of the secret part; the secret itself is shown once and never stored.
    expires: when it expires.
    single_use: whether it is valid for one use only.
    revoked: whether it is revoked.
    """

    purpose: TokenPurpose = TokenPurpose.BEARER
    user: str = ""
    groups: tuple[str, ...] = ()
    node: str = ""
    hash: str = ""
    expires: Timestamp | None = None
    single_use: bool = False
    revoked: bool = False


class TokenStatus(Part, frozen=True):
    """How the token was used.

    used_at: when it was first used.
    used_by: the node that joined with it.
    key: hash of the public key that it was used for; the same key may repeat the request.
    """

    used_at: Timestamp | None = None
    used_by: str = ""
    key: str = ""


class Token(Object, frozen=True, kw_only=True, tag="Token"):
    """A bearer token or a node's join token.

    spec: what it authenticates.
    status: how it was used.
    """

    spec: TokenSpec = TokenSpec()
    status: TokenStatus = TokenStatus()


# Revocation: ends the credentials that were issued to a user up to a time.


class RevocationSpec(Part, frozen=True):
    """The revoked certificates and tokens.

    user: their user; a node is system:node:NAME.
    before: credentials issued up to this time are revoked; set by the server if left out.
    reason: why, for users.
    expires: when all of those credentials have expired; set by the server.
    """

    user: str
    before: Timestamp | None = None
    reason: str = ""
    expires: Timestamp | None = None


class Revocation(Object, frozen=True, kw_only=True, tag="Revocation"):
    """Revokes all certificates and bearer tokens that were issued to a user up to a time.

    Its name follows from the user name, so that there is one for each user.

    spec: the user, and which credentials.
    """

    spec: RevocationSpec


def _role_rules() -> KindRules:
    from holdfast.model.validation import access

    return KindRules(access.role)


ROLE_KIND = Kind(
    Role,
    "roles",
    rules=_role_rules,
    # Servers write the objects that show what is built in.
    writers=Writers(spec=(*OPERATORS, Actor.AUTHORITY)),
    columns=(count("Rules", lambda o: len(o.rules), "how many rules it has"),),
    status=False,
    removal_order=8,
)


def _role_binding_rules() -> KindRules:
    from holdfast.model.validation import access

    return KindRules(access.role_binding)


ROLE_BINDING_KIND = Kind(
    RoleBinding,
    "rolebindings",
    rules=_role_binding_rules,
    writers=Writers(spec=(*OPERATORS, Actor.AUTHORITY)),
    columns=(
        text("Role", lambda o: o.role_ref.name, "what is given"),
        text("Subjects", lambda o: ",".join(s.name for s in o.subjects), "to whom"),
    ),
    status=False,
    immutable=("roleRef",),
    removal_order=7,
)

# A node whose answer was lost retries with the token that it has used; it is answered for this
# long.
TOKEN_RETENTION = Retention(3_600_000, "its single use")


def _token_rules() -> KindRules:
    from holdfast.model.validation import access

    return KindRules(access.token, update=access.token_update)


TOKEN_KIND = Kind(
    Token,
    "tokens",
    rules=_token_rules,
    retention=TOKEN_RETENTION,
    writers=Writers(
        spec=OPERATORS,
        status={
            "used_at": Actor.AUTHORITY,
            "used_by": Actor.AUTHORITY,
            "key": Actor.AUTHORITY,
        },
    ),
    columns=(
        text("Purpose", lambda o: o.spec.purpose.value, "Bearer or Join"),
        text("User", lambda o: o.spec.user or "-", "who the bearer is"),
        moment("Expires", lambda o: o.spec.expires, "when it ends"),
        text("Revoked", lambda o: str(o.spec.revoked).lower(), "whether it was taken back"),
    ),
    # Permission to update a token must not allow changing the identity that it stands for.
    immutable=(
        "spec.purpose",
        "spec.user",
        "spec.groups",
        "spec.node",
        "spec.hash",
        "spec.singleUse",
    ),
    is_secret=True,
    removal_order=6,
)


def _revocation_rules() -> KindRules:
    from holdfast.model.validation import access

    return KindRules(access.revocation, update=access.revocation_update)


REVOCATION_KIND = Kind(
    Revocation,
    "revocations",
    rules=_revocation_rules,
    # Servers remove it once every credential that it ended has expired: `ledgers/leaks.py`.
    writers=Writers(spec=OPERATORS, removers=(Actor.AUTHORITY,)),
    columns=(
        text("User", lambda o: o.spec.user, "whose certificates and tokens"),
        moment("Before", lambda o: o.spec.before, "those that were issued until then"),
        text("Reason", lambda o: o.spec.reason, "why"),
        moment("Expires", lambda o: o.spec.expires, "when all of them have ended anyway"),
    ),
    namespaced=False,
    short_names=("rvk",),
    dotted=True,
    status=False,
    immutable=("spec.user",),
)
