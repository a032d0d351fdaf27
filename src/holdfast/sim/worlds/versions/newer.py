"""The next version, generated: structs with one more field, and one more value of an enum.

A server or a component of that version runs the same code. While it takes a step, what it reads is
decoded by its own structs, which are made from ours; everything it writes of them has the new
field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.commit.objects.deletion import FINALIZERS
from holdfast.commit.objects.field_writers import WRITERS
from holdfast.commit.record_encoding import DECODERS, encode
from holdfast.model import keys, plane_format
from holdfast.model.encoding import wire
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.workload import Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import Object
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.registry import BY_STRUCT, kind_named, kind_of_plural, kind_of_struct
from holdfast.model.validation.table import RULES

# The next version knows one format more.
NEXT_FORMAT = plane_format.FORMAT + 1
FIELD = b'"laterSeconds":30'
_SECONDS = 30


class Later(StrEnum):
    """What the next version adds to the types of workloads."""

    MESH = "Mesh"


def _set(self: Any) -> None:
    """The next version gives the field a value wherever it writes the struct."""
    if not self.later_seconds:
        msgspec.structs.force_setattr(self, "later_seconds", _SECONDS)


def _read(self: Any) -> None:
    """The next version also knows one more value; the known ones stay ours."""
    _set(self)
    if type(self.type) is str:
        known = Later.MESH if self.type == Later.MESH else WorkloadType(self.type)
        msgspec.structs.force_setattr(self, "type", known)


def _with_field(cls: type[Any], made: Any = _set, *more: Any) -> type[Any]:
    """The struct with one more field."""
    config = cls.__struct_config__
    return msgspec.defstruct(
        cls.__name__,
        [*more, ("later_seconds", int, 0)],
        bases=(cls,),
        frozen=True,
        kw_only=True,
        rename="camel",
        omit_defaults=config.omit_defaults,
        namespace={"__post_init__": made},
    )


def _of(cls: type[Any], spec: type[Any]) -> type[Any]:
    """The object with this spec."""
    return msgspec.defstruct(
        cls.__name__,
        [("spec", spec)],
        bases=(cls,),
        frozen=True,
        kw_only=True,
        rename="camel",
        tag=cls.__name__,
        tag_field="kind",
    )


_WORKLOAD_SPEC = _with_field(WorkloadSpec, _read, ("type", Any, WorkloadType.SERVICE))
_OBJECTS: dict[type[Object], type[Any]] = {
    Workload: _of(Workload, _WORKLOAD_SPEC),
    Replica: _of(Replica, _with_field(ReplicaSpec)),
}
GROWN: dict[str, type[Any]] = {
    **{keys.kind_prefix(kind_of_struct(cls)): grown for cls, grown in _OBJECTS.items()},
    f"{keys.LEDGERS}node/": _with_field(NodeLedger),
}
_NEWER = {prefix: msgspec.json.Decoder(cls) for prefix, cls in GROWN.items()}


_TABLES: tuple[dict[Any, Any], ...] = (BY_STRUCT, WRITERS, RULES, FINALIZERS)


@contextmanager
def next_version() -> Iterator[None]:
    """Inside this context, records are decoded as the next version does, and the tables that are
    keyed by type know its structs. Afterwards nothing of it remains in this process.
    """
    ours = {prefix: DECODERS[prefix] for prefix in _NEWER}
    DECODERS.update(_NEWER)
    plane_format.FORMAT = NEXT_FORMAT
    for table in _TABLES:
        table.update({grown: table[cls] for cls, grown in _OBJECTS.items() if cls in table})
    try:
        yield
    finally:
        plane_format.FORMAT = NEXT_FORMAT - 1
        DECODERS.update(ours)
        for table in _TABLES:
            for grown in _OBJECTS.values():
                table.pop(grown, None)


def struct_of(plural: str, *, is_newer: bool) -> type[Object]:
    """The struct by which a component of either version decodes objects of a kind."""
    ours = kind_of_plural(plural).struct
    return _OBJECTS.get(ours, ours) if is_newer else ours


def read_object(obj: Object) -> Object:
    """An object as a reader with the present `DECODERS` receives it over the wire."""
    found: Object = _decoder(obj).decode(encode(obj))
    return found


def read_object_from_client(obj: Object, *, strict: bool) -> Object:
    """An object as a server with the present `DECODERS` takes it from a client.

    Raises Invalid for one that the server does not accept.
    """
    found: Object = wire.decode(_decoder(obj).type, encode(obj), strict=strict).object
    return found


def _decoder(obj: Object) -> msgspec.json.Decoder[Any]:
    return DECODERS[keys.kind_prefix(kind_named(type(obj).__name__))]
