"""Which lists are merged as maps: keys identify their elements, not positions.

Server-side apply merges such lists element by element, so that two managers can each own some of a
workload's environment variables; the schema states this for clients; validation refuses two
elements with equal keys. All three ask here. The keys are declared by the struct of the elements,
because a list of conditions is a map everywhere. A list whose elements declare none is atomic: the
manager that applies it owns all of it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import inspect

from holdfast.model.kinds.template import SecretRef
from holdfast.model.meta import ObjectMeta, Part
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
    keys = list_keys(element.cls) if isinstance(element, inspect.StructType) else ()
    return ListRule(ListType.MAP, keys) if keys else _ATOMIC


def list_keys(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    """The keys that identify such a struct in a list; none if such lists are atomic."""
    return cls.list_keys if issubclass(cls, Part) else ()
