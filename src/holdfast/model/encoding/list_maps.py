"""Which lists are really maps: their elements are told apart by keys, not by position.

Server-side apply merges such lists element by element, so that two managers can each own some of
a workload's environment variables; the schema tells clients the same; validation refuses two
elements with equal keys. All three read this table. A list that is not named here is atomic: who
applies it owns all of it.
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
    """How a list is merged, in the words of Kubernetes."""

    ATOMIC = "atomic"
    SET = "set"
    MAP = "map"


class ListRule(msgspec.Struct, frozen=True):
    """How one list is merged. `keys` are wire names and tell the elements of a map apart."""

    type: ListType = ListType.ATOMIC
    keys: tuple[str, ...] = ()


# By the struct of the elements, since a list of conditions is a map wherever it stands. A key is
# required, or has a default that stands for it where it is left out.
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

# Lists of plain values whose order means nothing, by struct and field.
SETS: frozenset[tuple[type[msgspec.Struct], str]] = frozenset({(ObjectMeta, "finalizers")})

# Structs that only make sense whole: half of a selector selects something nobody asked for.
ATOMIC_STRUCTS: frozenset[type[msgspec.Struct]] = frozenset({LabelSelector, SecretRef})

_ATOMIC = ListRule()


def list_rule(cls: type[msgspec.Struct], field: inspect.Field) -> ListRule | None:
    """How a field of a struct is merged; None where the field is no list."""
    if not isinstance(field.type, inspect.VarTupleType):
        return None
    if (cls, field.name) in SETS:
        return ListRule(ListType.SET)
    element = field.type.item_type
    if isinstance(element, inspect.StructType) and element.cls in KEYS_OF_ELEMENTS:
        return ListRule(ListType.MAP, KEYS_OF_ELEMENTS[element.cls])
    return _ATOMIC
