"""Field selectors find objects by their plain fields, and refuse fields that do not exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.selection.field_selector import (
    REQUIREMENTS_MAX,
    TEXT_MAX,
    parse_field_selector,
    selects_fields,
)

BOUND = Replica(
    metadata=ObjectMeta(name="web-0-0", namespace="t"),
    spec=ReplicaSpec("web", "u-1", Template(), ordinal=3),
    status=ReplicaStatus(state=State.RUNNING, binding=Binding("node-a.example.com", "u-2")),
)
PENDING = Replica(metadata=ObjectMeta(name="web-1-0"), spec=ReplicaSpec("web", "u-1", Template()))


@pytest.mark.parametrize(
    "text, bound, pending",
    [
        ("", True, True),
        ("metadata.name=web-0-0", True, False),
        ("metadata.name==web-0-0", True, False),
        ("metadata.name!=web-0-0", False, True),
        ("status.binding.node=node-a.example.com", True, False),
        ("status.binding.node=", False, True),
        ("status.state=Running", True, False),
        ("spec.ordinal=3", True, False),
        ("spec.workload=web , status.state!=Running", False, True),
        ("metadata.name=web-0-0,metadata.name=web-1-0", False, False),
        ("metadata.name=web\\,0", False, False),
    ],
)
def test_objects_are_selected_by_their_fields(text: str, bound: bool, pending: bool) -> None:
    """All conditions must hold; what is not there counts as empty."""
    selector = parse_field_selector(text, Replica)
    assert (selects_fields(selector, BOUND), selects_fields(selector, PENDING)) == (bound, pending)


def test_events_are_found_by_what_they_are_about() -> None:
    """`kubectl describe` asks so."""
    event = Event(
        metadata=ObjectMeta(name="e"), involved_object=ObjectReference(name="a", kind="Node")
    )
    text = "involvedObject.name=a,involvedObject.kind=Node,involvedObject.uid="
    assert selects_fields(parse_field_selector(text, Event), event)


def test_booleans_are_written_as_json_does() -> None:
    """So that the text is the same in every client."""
    node = Node(metadata=ObjectMeta(), spec=NodeSpec(cordoned=True))
    assert selects_fields(parse_field_selector("spec.cordoned=true", Node), node)


@given(st.text(max_size=8))
def test_any_value_can_be_asked_for_with_escapes(value: str) -> None:
    """A backslash, a comma and an equals sign are escaped, as Kubernetes does."""
    escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    (requirement,) = parse_field_selector(f"metadata.name={escaped}", Node)
    assert requirement.value == value.rstrip()


@pytest.mark.parametrize(
    "text, says",
    [
        ("name", "must be a condition"),
        ("metadata.name", "must be a condition"),
        ("metadata.name=a=b", "must be a condition"),
        ("metadata.name=a\\", "must be a condition"),
        ("metadata.name=\\x", "must be a condition"),
        ("metadata.nmae=a", "must be a scalar field of Node"),
        ("metadata.labels=a", "must be a scalar field of Node"),
        ("spec=a", "must be a scalar field of Node"),
        ("__class__=a", "must be a condition"),
        ("spec.taints=a", "must be a scalar field"),
        ("metadata.name=a," * (REQUIREMENTS_MAX + 1), "at most 16 conditions"),
        ("a" * (TEXT_MAX + 1), "at most 4096 characters"),
        ("\\" * TEXT_MAX, "must be a condition"),
    ],
)
def test_a_wrong_selector_says_what_is_wrong(text: str, says: str) -> None:
    """A typing mistake is an error instead of an empty list."""
    with pytest.raises(Invalid) as caught:
        parse_field_selector(text, Node)
    assert says in caught.value.message
    assert caught.value.errors[0].path == "fieldSelector"
    assert len(caught.value.message) < 300


@given(st.text("metadata.nm=!,\\ ", max_size=30) | st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but Invalid is raised."""
    try:
        selector = parse_field_selector(text, Node)
    except Invalid as refusal:
        selector = refusal.errors  # type: ignore[assignment]
    assert isinstance(selector, tuple)
