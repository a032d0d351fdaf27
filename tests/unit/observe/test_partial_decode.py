"""A partial decode of an object shows what the whole object would."""

from __future__ import annotations

import pytest

from holdfast.model.encoding.wire import decode_trusted, encode
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.event import Event, ObjectReference
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import KINDS, kind_of
from holdfast.model.selection.field_selector import field_text, parse_field_selector
from holdfast.observe.entries import EntryReader, kept_paths
from tests.unit.correct.views import node, replica


def whole(kind: Kind, data: bytes) -> tuple[str, ...]:
    """The same texts from all of the object."""
    obj = decode_trusted(kind.struct, data)
    paths = [parse_field_selector(f"{it}=x", kind.struct)[0] for it in kept_paths(kind)]
    return tuple(field_text(obj, path.attributes) for path in paths)


@pytest.mark.parametrize(
    "obj",
    [
        *(replica(state, labels) for state, labels in ((State.PENDING, 0), (State.BOUND, 1))),
        replica(State.UNKNOWN),
        node(),
        Event(
            ObjectMeta(name="e", namespace="acme", labels={"a": "1"}),
            involved_object=ObjectReference(kind="Workload", namespace="acme", name="web"),
            reason="Made",
        ),
    ],
)
def test_fields_and_labels_are_those_of_the_whole_object(obj: Object) -> None:
    """Also where they are at their defaults, or a part above them is missing."""
    data, kind = encode(obj), kind_of(obj)
    entry = EntryReader().read(kind, data, 3)
    assert entry.fields == whole(kind, data)
    assert entry.labels == obj.metadata.labels


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_can_be_read_partially_with_only_its_metadata(kind: Kind) -> None:
    data = b'{"kind":"%b","metadata":{"name":"x"}}' % kind.name.encode()
    assert EntryReader().read(kind, data, 3).fields[:2] == ("x", "")
