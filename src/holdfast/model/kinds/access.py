"""Role and RoleBinding: who may do what.

Those of the system namespace hold for the whole cluster. `model/access/rights` says what they come
to.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.meta import Object, Part, Timestamp


class Rule(Part, frozen=True):
    """What may be done to what; `*` means all.

    api_groups: the API groups; empty means holdfast.dev.
    resources: plural names, also with a subresource such as workloads/scale.
    verbs: get, list, watch, create, update, patch, delete, bind and so on.
    resource_names: only objects of these names; empty means all.
    non_resource_urls: paths that are no resources, such as /metrics; only for the whole cluster.
    """

    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")


class Role(Object, frozen=True, kw_only=True, tag="Role"):
    """A set of permissions.

    rules: what may be done to what.
    """

    rules: tuple[Rule, ...] = ()


class Subject(Part, frozen=True):
    """Who is meant.

    kind: User, Group, or ServiceAccount for the user of a tenant's own token.
    name: the name of the user, the group or the service account.
    namespace: of a service account, where its tokens are; empty means the binding's own.
    """

    kind: str
    name: str
    namespace: str = ""


class RoleRef(Part, frozen=True):
    """The role that is given.

    name: the Role, in the binding's namespace or in the system namespace.
    namespace: where that Role lives; empty means the binding's own.
    """

    name: str
    namespace: str = ""


class RoleBinding(Object, frozen=True, kw_only=True, tag="RoleBinding"):
    """Gives a role to people or services.

    subjects: who gets it.
    role_ref: what they get.
    """

    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef


# Token: a bearer token or a node's join token. Only its hash is ever stored.


class TokenPurpose(StrEnum):
    BEARER = "Bearer"
    JOIN = "Join"


class TokenSpec(Part, frozen=True):
    """What the token is good for.

    purpose: Bearer identifies a person or service, Join admits one node.
    user: who the bearer is.
    node: the only node that may join with it; a node that is new to the plane if empty.
    groups: the groups that the bearer is in.
    hash: of the secret part; the secret itself is shown once and never stored.
    expires: when it ends.
    single_use: whether the first use ends it.
    revoked: whether it was taken back.
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
    """What became of it.

    used_at: when it was first used.
    used_by: the node that joined with it.
    key: hash of the public key that it was used for; the same key may ask for its answer again.
    """

    used_at: Timestamp | None = None
    used_by: str = ""
    key: str = ""


class Token(Object, frozen=True, kw_only=True, tag="Token"):
    """A bearer token or a node's join token.

    spec: what it is good for.
    status: what became of it.
    """

    spec: TokenSpec = TokenSpec()
    status: TokenStatus = TokenStatus()


# Revocation: from when on what was issued to somebody does not count any more.


class RevocationSpec(Part, frozen=True):
    """Whose certificates and tokens, and which of them.

    user: whose; a node is system:node:NAME.
    before: what was issued until then does not count; set by the server where it is left out.
    reason: why, for people.
    expires: when all of that has ended by itself; set by the server.
    """

    user: str
    before: Timestamp | None = None
    reason: str = ""
    expires: Timestamp | None = None


class Revocation(Object, frozen=True, kw_only=True, tag="Revocation"):
    """Ends all certificates and bearer tokens that were issued to somebody until a moment.

    Its name follows from the user, so that there is one for each.

    spec: whose, and which of them.
    """

    spec: RevocationSpec
