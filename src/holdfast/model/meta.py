"""What all objects have in common: metadata, conditions, owners, and how parts are declared.

Every struct of the wire is a `Part`: frozen, so that caches, snapshots and the simulator share it
without copies; camelCase on the wire; fields at their default are left out. A part's docstring
explains each field on a line `field: sentence`; `encoding/schema.py` copies these sentences into
the JSON schema, and `kubectl explain` shows them.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

API_GROUP = "holdfast.dev"
API_VERSION: Final = "holdfast.dev/v1"
# What belongs to a workload carries its name, for selectors.
WORKLOAD_LABEL: Final = "holdfast.dev/workload"

# Beyond 2^53 a JSON number loses digits in JavaScript, jq and every float-based reader.
INT_MAX = 2**53

Int = Annotated[int, Meta(ge=-INT_MAX, le=INT_MAX)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[int, Meta(ge=0, le=315_360_000)]
Millis = Annotated[int, Meta(ge=0, le=INT_MAX)]
Revision = Annotated[int, Meta(ge=0, le=INT_MAX)]

# As people write amounts: "500m", "1.5Gi", 2. `quantity.py` turns them into exact integers.
Quantity = str | Int | float

Timestamp = Annotated[datetime, Meta(tz=True)]


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Any struct inside an object."""

    # The wire names that identify it in a list of its kind, which is then merged as a map
    # (`encoding/list_maps.py`). A key is required or has a default.
    list_keys: ClassVar[tuple[str, ...]] = ()


class OwnerReference(Part, frozen=True):
    """The object this one belongs to and goes away with.

    api_version: the owner's API version.
    kind: the owner's kind.
    name: the owner's name, in the same namespace unless the owner is cluster-scoped.
    uid: the owner's uid; a later object of the same name is not the owner.
    controller: whether the owner is the one that manages this object.
    block_owner_deletion: whether foreground deletion of the owner waits for this object.
    """

    list_keys = ("uid",)

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ManagedFields(Part, frozen=True, omit_defaults=False):
    """Who last set which fields, for server-side apply.

    All of it is always written: clients look for the operation and the version by name.

    manager: the name the client gave itself.
    operation: Apply for server-side apply, Update for everything else.
    api_version: the version the fields are written in.
    time: when the set of fields last changed.
    fields_type: always FieldsV1.
    fields_v1: the set of fields as a tree of `f:name` and `k:{key}` entries.
    subresource: the subresource that was written, such as status.
    """

    manager: str
    operation: str = "Update"
    api_version: str = API_VERSION
    time: Timestamp | None = None
    fields_type: str = "FieldsV1"
    fields_v1: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")
    subresource: str = ""


class Operation(Part, frozen=True):
    """An accepted operation, kept so that a repetition is answered and not performed again.

    id: identity, uid, transition number and intent.
    digest: the digest of the request; the same id with another digest is an error.
    at: when it was accepted.
    result: "created" for an apply that created the object; empty for a create.
    revision: the store revision by which it had been accepted; 0 until the next write of the
    object. Wall clocks do not affect it, so its age decides when the operation is forgotten.
    """

    id: str
    digest: str
    at: Timestamp
    result: str = ""
    revision: Revision = 0


class ObjectMeta(Part, frozen=True):
    """Name, version, owners and life of an object.

    name: unique among the objects of its kind and namespace; it never changes.
    generate_name: a prefix from which the server makes a unique name when none is given.
    namespace: the tenant it belongs to; empty for cluster-scoped kinds.
    uid: unique in space and time, given by the server.
    resource_version: changes with every write; opaque to clients.
    generation: grows when the spec changes.
    creation_timestamp: when it was accepted.
    deletion_timestamp: when deletion was requested; it is removed once the finalizers are gone.
    deletion_grace_period_seconds: how long the work may take to stop after deletion.
    labels: short values to select by.
    annotations: longer values that nothing selects by.
    owner_references: the objects it goes away with.
    finalizers: the components that must agree before it is removed.
    managed_fields: who set which fields.
    operations: the last accepted operations, so that a repeated one is not performed again.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Revision = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    deletion_grace_period_seconds: Seconds | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    managed_fields: tuple[ManagedFields, ...] = ()
    operations: tuple[Operation, ...] = ()


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Part, frozen=True):
    """One aspect of an object's state, as one owner last saw it.

    type: the aspect, for example Ready.
    status: True, False or Unknown.
    observed_generation: the generation of the spec that this refers to.
    last_transition_time: when the status last changed.
    reason: a stable CamelCase identifier for programs.
    message: a sentence for users.
    """

    list_keys = ("type",)

    type: str
    status: ConditionStatus
    observed_generation: Revision = 0
    last_transition_time: Timestamp | None = None
    reason: str = ""
    message: str = ""


# The finalizers that keep a deleted object until its controller has done its part. The commit adds
# them, and only their controllers may remove them.
#
# Of owners that are deleted after, or without, what they own.
FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
# Of workloads, until all replicas are released.
REPLICAS_FINALIZER = "holdfast.dev/replicas"
# Of tenants, until all their objects are gone.
CONTENTS_FINALIZER = "holdfast.dev/contents"


class Object(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="kind"):
    """An API object. Its kind is its tag on the wire; spec is desired, status observed.

    metadata: name, version, owners and life.
    api_version: the API group and version of the kind.
    """

    metadata: ObjectMeta
    api_version: Literal["holdfast.dev/v1"] = API_VERSION

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace


AnyObject = TypeVar("AnyObject", bound=Object)


def spec_of(obj: Object | None) -> Any:
    """The spec of an object of any kind; None if there is no object, or its kind has no spec."""
    return getattr(obj, "spec", None)


def status_of(obj: Object) -> Any:
    """The status of an object of any kind; None if its kind has none."""
    return getattr(obj, "status", None)


def conditions_of(obj: Object) -> tuple[Condition, ...] | None:
    """The conditions of an object of any kind; None if its kind has none."""
    return getattr(status_of(obj), "conditions", None)


def with_condition(
    conditions: tuple[Condition, ...], new: Condition, at: datetime
) -> tuple[Condition, ...]:
    """The conditions with `new` in place of the one of its type.

    Its time moves only when its status changes.

    Returning the same tuple when nothing changed lets a caller skip the write, which is what keeps
    a converged system silent.
    """
    for index, old in enumerate(conditions):
        if old.type != new.type:
            continue
        since = old.last_transition_time if old.status is new.status else at
        placed = msgspec.structs.replace(new, last_transition_time=since)
        if placed == old:
            return conditions
        return (*conditions[:index], placed, *conditions[index + 1 :])
    return (*conditions, msgspec.structs.replace(new, last_transition_time=at))


def condition(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of this type, if there is one."""
    return next((c for c in conditions if c.type == kind), None)
