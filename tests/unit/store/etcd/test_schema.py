"""The restated protocol: what the type checker believes, and what goes over the wire."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast.store.etcd import messages as pb
from holdfast.store.etcd import schema

_PYTHON = {
    "bool": "bool",
    "bytes": "bytes",
    "int32": "int",
    "int64": "int",
    "string": "str",
    "uint64": "int",
}


def _in_stub() -> dict[str, dict[str, str]]:
    """Fields and their types by message, as `messages.pyi` declares them."""
    text = Path(pb.__file__).with_suffix(".pyi").read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found[node.name] = {
                ast.unparse(line.target): ast.unparse(line.annotation)
                for line in node.body
                if isinstance(line, ast.AnnAssign)
            }
    return found


def _in_schema() -> dict[str, dict[str, str]]:
    found = {}
    for message, fields in schema.parse(schema.SCHEMA).items():
        found[message] = {}
        for _, marked, name in fields:
            kind = marked.rstrip("*?")
            python = _PYTHON.get(kind, kind)
            found[message][name] = f"MutableSequence[{python}]" if marked[-1] == "*" else python
    return found


def test_the_type_checker_knows_what_is_built() -> None:
    """A field in one file only would be a lie to mypy, or invisible to it."""
    assert _in_stub() == _in_schema()
    for name in _in_schema():
        assert getattr(pb, name).DESCRIPTOR.name == name


# Written down by hand from protobuf's encoding and etcd's published field numbers.
WIRE = [
    (
        pb.Compare(result=pb.COMPARE_EQUAL, target=pb.TARGET_MOD, key=b"k", mod_revision=7),
        b"\x10\x02\x1a\x01k\x30\x07",
    ),
    # A compare with zero, "must be absent", has to be sent although zero is the default.
    (pb.Compare(target=pb.TARGET_MOD, key=b"k", mod_revision=0), b"\x10\x02\x1a\x01k\x30\x00"),
    (
        pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=b"v")),
        b"\x12\x06\x0a\x01k\x12\x01v",
    ),
    (
        pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"k")),
        b"\x1a\x03\x0a\x01k",
    ),
    (
        pb.WatchRequest(
            create_request=pb.WatchCreateRequest(key=b"k", start_revision=300, fragment=True)
        ),
        b"\x0a\x08\x0a\x01k\x18\xac\x02\x40\x01",
    ),
]


@pytest.mark.parametrize("message, data", WIRE)
def test_requests_are_encoded_as_etcd_expects(message: pb.Compare, data: bytes) -> None:
    assert message.SerializeToString() == data


def test_answers_are_read_and_unknown_fields_skipped() -> None:
    """A newer server may say more than we understand."""
    kv = b"\x0a\x01k\x10\x02\x18\x03\x20\x04\x2a\x01v\x30\x09"
    answer = pb.WatchResponse.FromString(
        b"\x0a\x02\x18\x05\x38\x01\x5a"
        + bytes([len(kv) + 4])
        + b"\x08\x01\x12"
        + bytes([len(kv)])
        + kv
    )
    assert answer.header.revision == 5
    assert answer.fragment
    event = answer.events[0]
    assert event.kind == pb.EVENT_DELETE
    assert (event.kv.key, event.kv.value) == (b"k", b"v")
    assert (event.kv.create_revision, event.kv.mod_revision, event.kv.version) == (2, 3, 4)
