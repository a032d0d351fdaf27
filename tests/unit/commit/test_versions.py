"""Servers of several versions over one store: formats, and retries across versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.operations import Replayed, digest, recall
from holdfast.model import keys, plane_format
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import Object, ObjectMeta, Operation
from holdfast.model.plane_format import FORMAT, PlaneFormat
from holdfast.model.requests import REQUESTS, Accepted, Create
from holdfast.model.transaction import Compare, Put, Transaction
from tests.plane import ADMIN, Plane
from tests.unit.commit.test_authority_table import EXAMPLES, Furnished


def raised(plane: Plane, to: int) -> None:
    """A newer server has raised the format."""
    key = keys.plane_format()
    record = plane.store.get(key)
    assert record is not None
    put = Put(key, msgspec.json.encode({"format": to, "laterField": 1}))
    plane.store.txn(Transaction((Compare(key, record.modified),), (put,)))


def test_every_transaction_compares_the_format_and_the_first_one_writes_it() -> None:
    plane = Plane()
    plane.tenant("a")
    assert plane.read(keys.plane_format()) == PlaneFormat(FORMAT)
    plane.tenant("b")
    plane.node("n")
    written = [it for it in plane.transactions if it.writes]
    assert len(written) >= 3
    for transaction in written:
        assert keys.plane_format() in {it.key for it in transaction.compares}
    assert sum(keys.plane_format() in {it.key for it in t.writes} for t in written) == 1


def test_a_server_that_is_too_old_writes_nothing_not_even_what_it_had_decided() -> None:
    """It learns of the new format by the compare of the very transaction."""
    plane = Plane()
    plane.tenant("a")
    raised(plane, FORMAT + 1)
    before = plane.store.revision
    answer = plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="b"))))
    assert isinstance(answer, Unavailable)
    assert f"the plane has format {FORMAT + 1}" in answer.message
    assert plane.store.revision == before
    plane.authority = plane.new_authority()
    assert isinstance(plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="b")))), Unavailable)
    assert plane.store.revision == before


def test_a_newer_server_goes_on_in_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the old one until the new one is said to hold."""
    plane = Plane()
    plane.tenant("a")
    monkeypatch.setattr(plane_format, "FORMAT", FORMAT + 1)
    assert isinstance(plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="b")))), Accepted)
    raised(plane, FORMAT + 1)
    assert isinstance(plane.ask(ADMIN, Create(Tenant(ObjectMeta(name="c")))), Accepted)
    record = plane.store.get(keys.plane_format())
    assert record is not None
    assert b"laterField" in record.value


def _with_one_field_more(cls: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct as the next version has it."""
    config = cls.__struct_config__
    return msgspec.defstruct(
        cls.__name__,
        [("later_seconds", int, 0)],
        bases=(cls,),
        frozen=True,
        tag=config.tag,
        tag_field=config.tag_field,
        kw_only=True,
    )


def _in_the_next_version(value: Any) -> Any:
    """A request as a version sends it whose structs have one more field each."""
    match value:
        case msgspec.Struct():
            newer = _with_one_field_more(type(value))
            # Defaults are the same in both versions, and need not be built.
            fields = {
                it.name: _in_the_next_version(found)
                for it in msgspec.structs.fields(type(value))
                if (found := getattr(value, it.name)) is not it.default
            }
            return newer(**fields)
        case tuple():
            return tuple(_in_the_next_version(it) for it in value)
        case dict():
            return {key: _in_the_next_version(it) for key, it in value.items()}
    return value


@pytest.mark.parametrize("kind", list(REQUESTS), ids=lambda kind: kind.__name__)
def test_a_request_has_the_same_digest_in_every_version(kind: type[Any]) -> None:
    """So a retry at a server of another version is known again. [A2]"""
    _, request = EXAMPLES[kind](Furnished())
    newer = _in_the_next_version(request)
    assert type(newer) is not type(request)
    assert digest(newer) == digest(request)
    if "operation" in kind.__struct_fields__:
        other = msgspec.structs.replace(request, operation="something else")
        assert digest(other) != digest(request)


def test_an_operation_that_an_older_version_remembers_is_known_by_its_id() -> None:
    """[A2]"""
    past = Operation(id="op", digest="0123456789abcdef01234567", at=Plane().at())
    metadata = ObjectMeta(name="a", operations=(past,))
    assert isinstance(recall(metadata, "op", "2:mark"), Replayed)


def test_what_is_generated_is_another_version_and_an_object_too() -> None:
    """Or the test above would compare a request with itself."""
    newer = _in_the_next_version(Create(Tenant(ObjectMeta(name="a"))))
    assert isinstance(newer.object, Object)
    assert newer.object.metadata.later_seconds == 0
