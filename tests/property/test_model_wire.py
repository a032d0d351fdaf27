"""What must hold for all objects and all bytes: nothing is lost, nothing but Invalid is raised."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.protocols import Validator

from holdfast.model.encoding.conform import conform
from holdfast.model.encoding.json_guard import DEPTH_MAX, NODES_MAX, measure, parse
from holdfast.model.encoding.schema import REF_PREFIX, components, schema_name
from holdfast.model.encoding.wire import decode, decode_trusted, encode, normal
from holdfast.model.errors import Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import INT_MAX, Object, Timestamp
from holdfast.model.registry import KINDS
from tests.objects import ANY_JSON, objects

# Each of these runs once per kind, so that a quarter of the usual examples is many still.
SOME = settings(max_examples=settings().max_examples // 4)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
ANY_KIND = st.sampled_from(KINDS)


def foreign(data: bytes) -> bytes:
    """The same document as another program might write it: other order, white space, escapes."""
    return json.dumps(json.loads(data), indent=2, sort_keys=True).encode()


@EVERY_KIND
@SOME
@given(data=st.data())
def test_an_object_survives_encoding_and_decoding(kind: Kind, data: st.DataObject) -> None:
    """However the bytes are written, and however they are read, the object is the same. [A2]

    Bytes that prove themselves stay the same as well, however often they are read and written.
    """
    obj = data.draw(objects(kind.struct))
    encoded = encode(obj)
    assert encode(decode_trusted(kind.struct, encoded)) == encoded
    assert decode(kind, encoded, strict=True).object == obj
    assert conform(kind.struct, parse(encoded), strict=True).object == obj
    decoded = decode(kind, foreign(encoded), strict=True)
    assert decoded.object == obj
    assert decoded.warnings == ()


def spelled_out(value: Any) -> Any:
    """An object as a tree that leaves no field out, shares no value with a default, and has its
    maps the other way round.
    """
    if isinstance(value, msgspec.Struct):
        fields = {
            field.encode_name: spelled_out(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
        }
        tag = value.__struct_config__.tag
        return fields if tag is None else {"kind": tag, **fields}
    if isinstance(value, tuple | list):
        return [spelled_out(item) for item in value]
    if isinstance(value, dict):
        return {key: spelled_out(item) for key, item in reversed(value.items())}
    return json.loads(msgspec.json.encode(value))


@EVERY_KIND
@SOME
@given(data=st.data())
def test_equal_objects_in_normal_form_have_equal_bytes(kind: Kind, data: st.DataObject) -> None:
    """Whether a sender spells out defaults or not, what is stored and digested is the same."""
    obj = data.draw(objects(kind.struct))
    tree = spelled_out(obj)
    verbose = msgspec.convert(tree, kind.struct)
    assert verbose == obj
    assert encode(normal(verbose)) == encode(normal(obj))
    assert normal(verbose) == obj
    assert encode(decode(kind, json.dumps(tree).encode(), strict=True).object) == encode(
        normal(obj)
    )


# Texts that would mislead a scan which takes what is inside a string for structure.
MISLEADING = st.text('[]{}",:\\/u0a\n', max_size=8)
MISLEADING_JSON = st.recursive(
    st.none() | st.integers(0, 99) | MISLEADING,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MISLEADING, inner, max_size=4),
    max_leaves=12,
)


def depth_of(tree: Any) -> int:
    if isinstance(tree, dict):
        return 1 + max(map(depth_of, tree.values()), default=0)
    return 1 + max(map(depth_of, tree), default=0) if isinstance(tree, list) else 0


def nodes_of(tree: Any) -> int:
    if isinstance(tree, dict):
        return 1 + sum(map(nodes_of, tree.values()))
    return 1 + sum(map(nodes_of, tree)) if isinstance(tree, list) else 1


@given(MISLEADING_JSON, st.integers(25, 36), st.booleans(), st.sampled_from([None, 2]))
def test_depth_is_measured_without_parsing(
    core: Any, levels: int, keyed: bool, indent: int | None
) -> None:
    """The scan of bytes finds exactly the depth that a parser finds."""
    tree = core
    for _ in range(levels):
        tree = {"[": tree} if keyed else [tree, "\\"]
    data = json.dumps(tree, indent=indent).encode()
    if depth_of(tree) <= DEPTH_MAX:
        measure(data)
    else:
        with pytest.raises(Invalid, match="nested deeper"):
            measure(data)


@given(MISLEADING_JSON, st.integers(-2, 2), st.sampled_from([None, 1]))
def test_nodes_are_counted_without_parsing(core: Any, beyond: int, indent: int | None) -> None:
    """The scan of bytes counts exactly the values that a parser makes."""
    padding = NODES_MAX + beyond - nodes_of([core, [], {}, ""])
    tree = [core, [], {}, "", *[0] * padding]
    data = json.dumps(tree, indent=indent).encode()
    if nodes_of(tree) <= NODES_MAX:
        measure(data)
    else:
        with pytest.raises(Invalid, match="at most 20000 values"):
            measure(data)


def read(kind: Kind, data: bytes, *, strict: bool) -> Object | Invalid:
    try:
        return decode(kind, data, strict=strict).object
    except Invalid as refusal:
        return refusal


def read_carefully(kind: Kind, data: bytes, *, strict: bool) -> Object | Invalid:
    try:
        return conform(kind.struct, parse(data), strict=strict).object
    except Invalid as refusal:
        return refusal


@given(ANY_KIND, st.binary(max_size=60) | MISLEADING.map(str.encode), st.booleans())
def test_any_bytes_are_read_or_refused(kind: Kind, data: bytes, strict: bool) -> None:
    """Whatever is sent, nothing but Invalid is raised."""
    answer = read(kind, data, strict=strict)
    assert isinstance(answer, kind.struct) or answer.message.isprintable()


@given(ANY_KIND, st.data(), st.booleans())
def test_damaged_bytes_are_read_or_refused(kind: Kind, data: st.DataObject, strict: bool) -> None:
    """A byte changed, lost or repeated anywhere gives an object that can be stored, or Invalid.

    The quick way in never takes what the careful one would refuse or read differently.
    """
    good = encode(data.draw(objects(kind.struct)))
    start = data.draw(st.integers(0, len(good) - 1))
    end = data.draw(st.integers(start, min(len(good), start + 9)))
    damaged = good[:start] + data.draw(st.binary(max_size=3)) + good[end:]
    answer, careful = (
        read(kind, damaged, strict=strict),
        read_carefully(kind, damaged, strict=strict),
    )
    if isinstance(answer, Invalid):
        assert answer.message.isprintable()
        assert isinstance(careful, Invalid)
    else:
        assert answer == careful
        assert decode(kind, encode(answer), strict=True).object == answer


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys or indexes."""
    found: list[tuple[Any, Any]] = []
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            found.append((tree, key))
            found += _places(tree[key])
    return found


def _has_null(tree: Any) -> bool:
    if isinstance(tree, dict | list):
        return any(map(_has_null, tree.values() if isinstance(tree, dict) else tree))
    return tree is None


def _is_time(value: object) -> bool:
    try:
        msgspec.convert(value, Timestamp)
    except msgspec.ValidationError:
        return not isinstance(value, str)
    return True


def _without_nullable(schema: Any) -> Any:
    """The same schema in plain JSON Schema, which has no word `nullable`."""
    if isinstance(schema, list):
        return [_without_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _without_nullable(item) for key, item in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain


_SCHEMAS = {"components": {"schemas": _without_nullable(components())}}
_FORMATS = jsonschema.FormatChecker(formats=())
_FORMATS.checks("date-time")(_is_time)


def validator(kind: Kind) -> Validator:
    schema = {**_SCHEMAS, "$ref": REF_PREFIX + schema_name(kind.struct)}
    return jsonschema.Draft202012Validator(schema, format_checker=_FORMATS)


VALIDATORS = {kind.name: validator(kind) for kind in KINDS}


@EVERY_KIND
@SOME
@given(data=st.data())
def test_every_object_is_valid_by_its_schema(kind: Kind, data: st.DataObject) -> None:
    """What Holdfast writes, a client that trusts the schema can read."""
    VALIDATORS[kind.name].validate(json.loads(encode(data.draw(objects(kind.struct)))))


@given(ANY_KIND, st.data())
def test_the_decoder_and_the_schema_agree(kind: Kind, data: st.DataObject) -> None:
    """With any value put anywhere, both accept the document or both refuse it.

    Null is left aside: it means "not given" to the decoder, for which schemas have no word.
    """
    tree = json.loads(encode(data.draw(objects(kind.struct))))
    container, key = data.draw(st.sampled_from(_places(tree)))
    container[key] = data.draw(ANY_JSON.filter(lambda value: not _has_null(value)))
    accepted = VALIDATORS[kind.name].is_valid(tree)
    kept = copy.deepcopy(tree)
    try:
        conform(kind.struct, tree, strict=False)
    except Invalid:
        assert not accepted or _beyond_schema(tree)
    else:
        assert accepted
    assert tree == kept


def _beyond_schema(tree: Any) -> bool:
    """Whether a document has what only the decoder bounds: integers given as quantities."""
    return any(
        isinstance(container[key], int) and abs(container[key]) > INT_MAX
        for container, key in _places(tree)
    )
