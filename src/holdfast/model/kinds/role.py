"""Role and RoleBinding: who may do what.

Those of the system namespace hold for the whole cluster.
"""

from __future__ import annotations

from holdfast.model.meta import Object, Part


class Rule(Part, frozen=True):
    """What may be done to what; `*` means all.

    api_groups: the API groups; empty means holdfast.dev.
    resources: plural names, also with a subresource such as workloads/scale.
    verbs: get, list, watch, create, update, patch, delete, bind and so on.
    resource_names: only objects of these names; empty means all.
    """

    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


class Role(Object, frozen=True, kw_only=True, tag="Role"):
    """A set of permissions.

    rules: what may be done to what.
    """

    rules: tuple[Rule, ...] = ()


class Subject(Part, frozen=True):
    """Who is meant.

    kind: User or Group.
    name: the name of the user or group.
    """

    kind: str
    name: str


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
