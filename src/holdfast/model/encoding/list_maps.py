"""Which lists are merged as maps: keys identify their elements, not positions.

Server-side apply merges such lists element by element, so that two managers can each own some of a
workload's environment variables; the schema states this for clients; validation refuses two
elements with equal keys. All three use this table. A list that is not named here is atomic: the
manager that applies it owns all of it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import inspect

from holdfast.model.kinds.endpoints import Endpoint
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Taint
from holdfast.model.kinds.region import Pool
from holdfast.model.kinds.template import EnvVar, File, Port, SecretRef
from holdfast.model.meta import Condition, ObjectMeta, OwnerReference
from holdfast.model.selection.selectors import LabelSelector


class ListType(StrEnum):
    """How a list is merged, in Kubernetes' terms."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class ListRule(msgspec.Struct, frozen=True):
    """How one list is merged. `keys` are the wire names that identify the elements of a map."""

    type: ListType = ListType.ATOMIC
    keys: tuple[str, ...] = ()


# By the struct of the elements, because a list of conditions is a map everywhere. A key is required
# or has a default.
KEYS_OF_ELEMENTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Condition: ("type",),
    Device: ("id",),
    Endpoint: ("replica",),
    EnvVar: ("name",),
    File: ("path",),
    OwnerReference: ("uid",),
    Pool: ("name",),
    Port: ("name",),
    Taint: ("key", "effect"),
}

# Lists of scalars whose order does not matter, by struct and field.
SETS: frozenset[tuple[type[msgspec.Struct], str]] = frozenset({(ObjectMeta, "finalizers")})

# Structs that are merged as a whole: half of a selector would select the wrong objects.
ATOMIC_STRUCTS: frozenset[type[msgspec.Struct]] = frozenset({LabelSelector, SecretRef})

_ATOMIC = ListRule()


def list_rule(cls: type[msgspec.Struct], field: inspect.Field) -> ListRule | None:
    """How a list field of a struct is merged; None if the field is not a list."""
    if not isinstance(field.type, inspect.VarTupleType):
        return None
    if (cls, field.name) in SETS:
        return ListRule(ListType.SET)
    element = field.type.item_type
    if isinstance(element, inspect.StructType) and element.cls in KEYS_OF_ELEMENTS:
        return ListRule(ListType.MAP, KEYS_OF_ELEMENTS[element.cls])
    return _ATOMIC
