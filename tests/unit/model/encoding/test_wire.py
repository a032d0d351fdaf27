"""Decoding documents from clients, and encoding objects."""

from __future__ import annotations

import tracemalloc

import pytest

from holdfast.model.encoding.json_guard import BODY_BYTES_MAX, NODES_MAX
from holdfast.model.encoding.problems import PROBLEMS_MAX
from holdfast.model.encoding.wire import decode, decode_tree, decode_trusted, encode, prepare
from holdfast.model.errors import Invalid
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import TransitionRecord
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.meta import ManagedFields, ObjectMeta
from holdfast.model.registry import kind_named
from holdfast.model.validation import validate
from tests import hostile
from tests.hostile import DOCUMENTS, Hostile

MEMORY_MAX = 32 << 20
BY_DECODER = [document for document in DOCUMENTS if document.after == "decode"]
LATER = [document for document in DOCUMENTS if document.after != "decode"]


def refusal_of(document: Hostile) -> Invalid:
    with pytest.raises(Invalid) as caught:
        decode(kind_named(document.kind), document.make(), strict=document.strict)
    return caught.value


@pytest.mark.parametrize("document", BY_DECODER, ids=lambda document: document.name)
def test_a_hostile_document_is_refused_with_a_clear_message(document: Hostile) -> None:
    """Each gets Invalid that names the rule, in text that is short and safe to print. [B4]"""
    refusal = refusal_of(document)
    assert document.says in refusal.message
    assert refusal.message.isprintable()
    assert len(refusal.message) < 20_000
    assert 0 < len(refusal.errors) <= PROBLEMS_MAX


@pytest.mark.parametrize("document", LATER, ids=lambda document: document.name)
def test_what_is_well_typed_is_left_to_validation(document: Hostile) -> None:
    """The decoder judges form and validation meaning, so that each rule stands in one place."""
    decoded = decode(kind_named(document.kind), document.make(), strict=document.strict)
    assert decoded.warnings == ()
    text = "; ".join(map(str, validate(decoded.object)))
    assert document.says in text
    assert text.isprintable()
    assert len(text) < 20_000


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_no_document_takes_much_memory(document: Hostile) -> None:
    """The limits hold before memory is spent: whatever the answer, it needs less than 32 MiB."""
    data = document.make()
    tracemalloc.start()
    try:
        decode(kind_named(document.kind), data, strict=document.strict)
    except Invalid:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY_MAX


def test_there_are_enough_hostile_documents() -> None:
    """Forty are asked for; no two have the same name."""
    names = [document.name for document in DOCUMENTS]
    assert len(names) == len(set(names)) >= 40
    assert {hostile.NODES_MAX, hostile.BODY_MAX} == {NODES_MAX, BODY_BYTES_MAX}


@pytest.mark.parametrize(
    "text",
    ['"data":{"k":31337}', '"data":"31337"', '"data":{"k":' + "31337" * 9 + "}", '"type":31337'],
)
def test_no_error_shows_a_value_of_a_secret(text: str) -> None:
    """Also not when it stands where it does not belong, or breaks a limit."""
    with pytest.raises(Invalid) as caught:
        decode(Secret, hostile.secret(text), strict=True)
    assert "31337" not in caught.value.message
    assert all("31337" not in error.value for error in caught.value.errors)


def test_a_secret_taken_for_another_kind_stays_hidden() -> None:
    """The refusal stops at the kind and does not go on to show what it found."""
    with pytest.raises(Invalid) as caught:
        decode(Workload, hostile.secret('"data":{"k":"hunter2"},"spec":"hunter2"'), strict=True)
    assert [error.path for error in caught.value.errors] == ["kind"]


def test_defaults_fill_in_what_is_not_given() -> None:
    """An ordinary document is short."""
    decoded = decode(Workload, hostile.document(), strict=True)
    assert decoded.object.spec.replicas == 1
    assert decoded.object.spec.type is WorkloadType.SERVICE
    assert decoded.object.spec.template.command == ("/bin/true",)


def test_unknown_fields_are_pruned_with_a_warning() -> None:
    """Unless strict, a newer client can talk to an older server."""
    data = hostile.template('{"comand":["x"],"ports":[{"name":"a","hots":1}]}')
    decoded = decode(kind_named("Workload"), data, strict=False)
    assert decoded.unknown == ("spec.template.comand", "spec.template.ports[0].hots")
    assert decoded.warnings == (
        'unknown field "spec.template.comand"',
        'unknown field "spec.template.ports[0].hots"',
    )
    assert b"hots" not in encode(decoded.object)


def test_what_was_encoded_is_decoded_whole() -> None:
    """Large objects prove themselves too."""
    node = Node(
        metadata=ObjectMeta(
            name="a",
            labels={f"l{i}": "x" * 60 for i in range(900)},
            managed_fields=(ManagedFields("m", fields_v1={"f:spec": {"f:zone": {}}}),),
        ),
        spec=NodeSpec(capacity={"cpu": 1.5, "memory": "4Gi", "gpu": 2}),
    )
    assert len(encode(node)) > NODES_MAX
    assert decode(Node, encode(node), strict=True).object == node
    assert decode_trusted(Node, encode(node)) == node


def test_a_kind_may_be_left_out_of_a_document() -> None:
    """The path of a request names it already, as in Kubernetes."""
    decoded = decode(Node, b'{"metadata":{"name":"a"}}', strict=True)
    assert decoded.object == Node(metadata=ObjectMeta(name="a"))
    assert encode(decoded.object).startswith(b'{"kind":"Node",')


def test_preparing_changes_nothing_but_time() -> None:
    """A server calls it before it listens; it may be called again."""
    prepare()
    prepare()
    assert decode(Node, b'{"metadata":{}}', strict=True).object == Node(metadata=ObjectMeta())


def test_parts_are_read_by_the_same_rules() -> None:
    """Bodies that are no kinds of their own go through the same guard."""
    data = b'{"to":"Bound","by":"scheduler","at":"2027-01-01T00:00:00Z"}'
    assert decode(TransitionRecord, data, strict=True).object.by == "scheduler"
    with pytest.raises(Invalid, match="at: is required"):
        decode(TransitionRecord, b'{"to":"Bound","by":"scheduler"}', strict=True)


def test_a_tree_for_patches_keeps_nulls_and_hides_values() -> None:
    """Null means "remove" in a merge patch, and a patch may be one of a Secret."""
    assert decode_tree(b'{"metadata":{"labels":{"a":null}}}') == {
        "metadata": {"labels": {"a": None}}
    }
    with pytest.raises(Invalid, match=r"data\.k: \(hidden\)"):
        decode_tree(b'{"data":{"k":NaN}}')
