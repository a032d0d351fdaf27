"""The table of kinds: struct, names on the wire, scope, and immutable fields of each.

The server's routes, the decoder, the schema, the storage keys and the command line are derived from
this table. A kind that is not here does not exist, and a kind that is here exists everywhere.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import Missing
from holdfast.model.kinds.access import Revocation, Role, RoleBinding, Token
from holdfast.model.kinds.admissionpolicy import AdmissionPolicy
from holdfast.model.kinds.commitment import Commitment
from holdfast.model.kinds.decision import Decision
from holdfast.model.kinds.endpoints import Endpoints
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.region import Grant, Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadRevision
from holdfast.model.meta import Object

# The namespace of cluster-wide objects of namespaced kinds, such as cluster-wide roles.
SYSTEM_NAMESPACE = "holdfast-system"


class Kind(msgspec.Struct, frozen=True):
    """One kind.

    `namespaced` kinds belong to a tenant. `dotted` kinds may have dots in their names. An update
    that changes an `immutable` field is refused. `status` is whether it has a status subresource.
    """

    struct: type[Object]
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    dotted: bool = False
    status: bool = True
    scale: bool = False
    immutable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.struct.__name__

    @property
    def singular(self) -> str:
        return self.name.lower()


KINDS: tuple[Kind, ...] = (
    Kind(Workload, "workloads", short_names=("wl",), scale=True, immutable=("spec.type",)),
    Kind(Replica, "replicas", short_names=("rep",), immutable=("spec",)),
    Kind(
        Node,
        "nodes",
        namespaced=False,
        short_names=("no",),
        dotted=True,
        immutable=("spec.region", "spec.zone"),
    ),
    Kind(Reservation, "reservations", short_names=("rsv",), immutable=("spec",)),
    Kind(Quota, "quotas"),
    Kind(Tenant, "tenants", namespaced=False, short_names=("tn",)),
    Kind(
        PriorityClass,
        "priorityclasses",
        namespaced=False,
        short_names=("pc",),
        status=False,
        immutable=("spec.value",),
    ),
    Kind(Region, "regions", namespaced=False, short_names=("rg",)),
    Kind(
        SchedulerPolicy,
        "schedulerpolicies",
        namespaced=False,
        short_names=("sp",),
        immutable=("spec.filters", "spec.weights", "spec.demands", "spec.fallback"),
    ),
    Kind(
        Grant,
        "grants",
        namespaced=False,
        short_names=("gr",),
        immutable=("spec.tenant", "spec.region"),
    ),
    Kind(
        Override,
        "overrides",
        short_names=("ov",),
        # An override records a decision; only its end, its runbook and its postconditions may
        # change. Anything else needs a new override with its own reason.
        immutable=(
            "spec.type",
            "spec.scope",
            "spec.requester",
            "spec.reason",
            "spec.priorityClass",
            "spec.amounts",
        ),
    ),
    Kind(Lease, "leases", namespaced=False, status=False, immutable=("spec.scope",)),
    Kind(Commitment, "commitments", short_names=("cm",)),
    Kind(Event, "events", short_names=("ev",), dotted=True, status=False),
    Kind(Decision, "decisions", short_names=("dec",), status=False, immutable=("spec",)),
    Kind(Role, "roles", status=False),
    Kind(RoleBinding, "rolebindings", status=False, immutable=("roleRef",)),
    Kind(
        Token,
        "tokens",
        # Permission to update a token must not allow changing the identity that it stands for.
        immutable=(
            "spec.purpose",
            "spec.user",
            "spec.groups",
            "spec.node",
            "spec.hash",
            "spec.singleUse",
        ),
    ),
    Kind(
        Revocation,
        "revocations",
        namespaced=False,
        short_names=("rvk",),
        dotted=True,
        status=False,
        immutable=("spec.user",),
    ),
    Kind(
        AdmissionPolicy,
        "admissionpolicies",
        namespaced=False,
        short_names=("ap",),
        status=False,
    ),
    Kind(Secret, "secrets", status=False),
    Kind(
        WorkloadRevision,
        "workloadrevisions",
        short_names=("wr",),
        status=False,
        immutable=("spec",),
    ),
    Kind(Endpoints, "endpoints", short_names=("ep",), dotted=True, status=False),
)

_BY_NAME = {kind.name: kind for kind in KINDS}
_BY_PLURAL = {kind.plural: kind for kind in KINDS}
BY_STRUCT = {kind.struct: kind for kind in KINDS}


def kind_named(name: str) -> Kind:
    """The kind of this name, as in the `kind` field of an object."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise Missing(
            f"unknown kind {name!r} in holdfast.dev/v1; known kinds: {', '.join(_BY_NAME)}"
        ) from None


def kind_of_plural(plural: str) -> Kind:
    """The kind of this plural, as in a path."""
    try:
        return _BY_PLURAL[plural]
    except KeyError:
        raise Missing(f"unknown resource {plural!r} in holdfast.dev/v1") from None


def kind_of(obj: Object) -> Kind:
    """The kind of an object."""
    return BY_STRUCT[type(obj)]


def kind_of_struct(struct: type[Object]) -> Kind:
    """The kind that this struct declares."""
    return BY_STRUCT[struct]
