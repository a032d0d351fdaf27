"""What the types promise before any document arrives, on which the quick way in relies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, inspect

from holdfast.model.encoding.json_guard import DEPTH_MAX
from holdfast.model.encoding.struct_types import inner_types, struct_type
from holdfast.model.encoding.unknown_fields import integers_bounded
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import INT_MAX, Int, ManagedFields, ObjectMeta
from holdfast.model.registry import KINDS


def fields_of(info: inspect.Type) -> Iterator[tuple[type[msgspec.Struct], inspect.Field]]:
    if isinstance(info, inspect.StructType):
        yield from ((info.cls, field) for field in info.fields)
    for inner in inner_types(info):
        yield from fields_of(inner)


def takes_any_json(info: inspect.Type) -> bool:
    directly = isinstance(info, inspect.AnyType)
    return directly or any(
        takes_any_json(inner)
        for inner in inner_types(info)
        if not isinstance(inner, inspect.StructType)
    )


def depth_of(info: inspect.Type) -> int:
    container = isinstance(info, inspect.StructType | inspect.VarTupleType | inspect.DictType)
    return container + max(map(depth_of, inner_types(info)), default=0)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_only_managed_fields_take_any_json(kind: Kind) -> None:
    """The decoder measures the depth below this field alone, when a document proves itself."""
    info = inspect.type_info(kind.struct)
    found = {(cls, field.name) for cls, field in fields_of(info) if takes_any_json(field.type)}
    assert found == {(ManagedFields, "fields_v1")}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_types_keep_documents_within_the_depth(kind: Kind) -> None:
    """A document that decodes into the struct is never nested too deeply."""
    assert depth_of(inspect.type_info(kind.struct)) < DEPTH_MAX


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_description_is_that_of_msgspec_and_is_worked_out_once(kind: Kind) -> None:
    """Kinds share the descriptions of the structs inside them."""
    assert struct_type(kind.struct) == inspect.type_info(kind.struct)
    assert struct_type(kind.struct) is struct_type(kind.struct)
    [metadata] = [it.type for it in struct_type(kind.struct).fields if it.name == "metadata"]
    assert metadata is struct_type(ObjectMeta)


def test_a_struct_outside_of_the_kinds_is_described_too() -> None:
    """Ledgers and the structs of a newer version are no part of a kind."""
    assert struct_type(Bounded) == inspect.type_info(Bounded)
    assert struct_type(Bounded) is struct_type(Bounded)


class Bounded(msgspec.Struct):
    a: dict[str, Int]
    b: tuple[Annotated[int, Meta(ge=0, le=7)] | str, ...] = ()
    c: float = 0


class Unbounded(msgspec.Struct):
    inner: tuple[dict[str, int] | None, ...]


class HalfBounded(msgspec.Struct):
    a: Annotated[int, Meta(ge=0)]


class TooWide(msgspec.Struct):
    a: Annotated[int, Meta(ge=0, le=INT_MAX + 1)]


@pytest.mark.parametrize(
    "cls, expected",
    [(Bounded, True), (Unbounded, False), (HalfBounded, False), (TooWide, False)],
)
def test_integers_are_bounded_only_if_all_are(cls: type[msgspec.Struct], expected: bool) -> None:
    """One that is not makes the decoder look at the digits of every document."""
    assert integers_bounded(cls) is expected
