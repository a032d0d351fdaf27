"""Role and RoleBinding: who may do what.

Those of the system namespace hold for the whole cluster. `model/rights` says what they come to.
"""

from __future__ import annotations

import msgspec

from holdfast.model.meta import Object, Part


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
