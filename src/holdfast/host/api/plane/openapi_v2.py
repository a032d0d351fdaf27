"""OpenAPI v2 as protobuf, which kubectl fetches for every update, whatever its version.

It is made from the v3 document. The messages are those of gnostic's OpenAPIv2.proto, written by
hand: a dozen fields of a dozen messages, encoded once, do not justify a code generator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

import holdfast
from holdfast.host.api.plane.openapi import document
from holdfast.model.encoding.schema import REF_PREFIX, Schema

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_LENGTH_DELIMITED = 2
_V2_REF = "#/definitions/"
_EXTENSIONS = "x-"


def v2() -> bytes:
    """The whole document, encoded."""
    source = document()
    info = _text(1, "Holdfast") + _text(2, holdfast.__version__)
    paths = b"".join(
        _message(2, _text(1, path) + _message(2, _path_item(item)))
        for path, item in source["paths"].items()
    )
    schemas = source["components"]["schemas"]
    definitions = _named(1, ((name, _schema(schema)) for name, schema in schemas.items()))
    return _text(1, "2.0") + _message(2, info) + _message(8, paths) + _message(9, definitions)


# The wire format
# -----------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode()) if text else b""


def _bool(field: int, value: bool) -> bytes:
    return _varint(field << 3) + b"\x01" if value else b""


def _any(value: Any) -> bytes:
    """An Any is YAML, and JSON is YAML."""
    return _text(2, msgspec.json.encode(value).decode() + "\n")


def _named(field: int, pairs: Iterable[tuple[str, bytes]]) -> bytes:
    return b"".join(_message(field, _text(1, name) + _message(2, body)) for name, body in pairs)


def _extensions(field: int, source: Schema) -> bytes:
    return _named(
        field,
        ((word, _any(value)) for word, value in source.items() if word.startswith(_EXTENSIONS)),
    )


# Schemas
# ---------------------------------------------------------------------------------------------


def _schema(source: Schema) -> bytes:
    source = _flattened(source)
    if "$ref" in source:
        return _text(1, source["$ref"].replace(REF_PREFIX, _V2_REF)) + _text(
            4, source.get("description", "")
        )
    parts = [
        _text(2, source.get("format", "")),
        _text(4, source.get("description", "")),
        _message(5, _any(source["default"])) if "default" in source else b"",
        b"".join(_text(19, name) for name in source.get("required", ())),
        b"".join(_message(20, _any(value)) for value in source.get("enum", ())),
    ]
    more = source.get("additionalProperties")
    if isinstance(more, dict):
        parts.append(_message(21, _message(1, _schema(more))))
    if "type" in source:
        parts.append(_message(22, _text(1, source["type"])))
    if "items" in source:
        parts.append(_message(23, _message(1, _schema(source["items"]))))
    properties = source.get("properties")
    if properties:
        named = _named(1, ((name, _schema(value)) for name, value in properties.items()))
        parts.append(_message(25, named))
    return b"".join(parts) + _extensions(31, source)


def _flattened(source: Schema) -> Schema:
    """What v2 can say: a wrapped reference is a plain one, and an alternative is a string."""
    if "allOf" in source:
        rest = {word: value for word, value in source.items() if word == "description"}
        return {**source["allOf"][0], **rest}
    if "anyOf" in source:
        rest = {w: v for w, v in source.items() if w in ("description", "default")}
        return {"type": "string", "format": "int-or-string", **rest}
    return source


# Paths
# -----------------------------------------------------------------------------------------------

_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_PARAMETER = {"query": 3, "path": 4}
# The number of the field `type` differs between query and path parameters.
_TYPE_FIELD = {"query": 6, "path": 5}


def _path_item(item: Schema) -> bytes:
    operations = b"".join(
        _message(_METHODS[method], _operation(operation))
        for method, operation in item.items()
        if method in _METHODS
    )
    shared = b"".join(_message(9, _parameter(p)) for p in item.get("parameters", ()))
    return operations + shared


def _operation(operation: Schema) -> bytes:
    parameters = b"".join(_message(8, _parameter(p)) for p in operation["parameters"])
    ok = _message(1, _text(1, "OK"))
    responses = _message(1, _text(1, "200") + _message(2, ok))
    return (
        _text(3, operation["description"])
        + _text(5, operation["operationId"])
        + parameters
        + _message(9, responses)
        + _extensions(13, operation)
    )


def _parameter(parameter: Schema) -> bytes:
    where = parameter["in"]
    body = (
        _bool(1, parameter.get("required", False))
        + _text(2, where)
        + _text(3, parameter["description"])
        + _text(4, parameter["name"])
        + _text(_TYPE_FIELD[where], parameter["schema"]["type"])
    )
    non_body = _message(2, _message(_PARAMETER[where], body))
    return _message(1, non_body)
