"""The JSON schema of every kind, from the same structs that the decoder uses.

`components` is the part of an OpenAPI v3 document that defines the types; OpenAPI v2, the YAML
reference and `kubectl explain` are derived from it. Where v2 cannot express a type, an extension
selects the substitute: `x-kubernetes-int-or-string` becomes a plain string.
"""

from __future__ import annotations

import re
import textwrap
from enum import Enum
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import NODEFAULT, inspect

from holdfast.model.encoding.list_maps import ATOMIC_STRUCTS, ListType, list_rule
from holdfast.model.encoding.struct_types import inner_types, struct_type
from holdfast.model.errors import invariant
from holdfast.model.meta import API_VERSION, INT_MAX
from holdfast.model.registry import KINDS

# The descriptions of a struct and its fields, read from its docstring.
#
# The convention is that of `meta.py`: first a sentence about the struct, then for each field a line
# `field: sentence`, which may continue on further lines. `kubectl explain` shows these sentences,
# so they are written for users.

_FIELD_LINE = re.compile(r"(?P<field>[a-z_][a-z0-9_]*): (?P<sentence>\S.*)")


def struct_description(cls: type[msgspec.Struct]) -> str:
    """The description of a struct: its docstring up to the first blank line, in one line."""
    return " ".join(_docstring(cls).partition("\n\n")[0].split())


@cache
def field_descriptions(cls: type[msgspec.Struct]) -> dict[str, str]:
    """The description of each field, by its Python name, including inherited fields."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if isinstance(owner, type) and issubclass(owner, msgspec.Struct):
            found |= _own_fields(owner)
    return {name: found[name] for name in cls.__struct_fields__ if name in found}


def _own_fields(cls: type[msgspec.Struct]) -> dict[str, str]:
    found: dict[str, str] = {}
    current = ""
    for line in _docstring(cls).splitlines()[1:]:
        match = _FIELD_LINE.fullmatch(line)
        if match is not None and match["field"] in cls.__struct_fields__:
            current = match["field"]
            found[current] = match["sentence"].strip()
        elif not line.strip():
            current = ""
        elif current:
            found[current] += " " + line.strip()
    return found


def _docstring(cls: type[msgspec.Struct]) -> str:
    # A class without a docstring does not inherit one in `__doc__`, as wanted here.
    first, _, rest = (cls.__doc__ or "").partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}"


Schema = dict[str, Any]

NAME_PREFIX = "dev.holdfast.v1."
REF_PREFIX = "#/components/schemas/"


def schema_name(cls: type[msgspec.Struct]) -> str:
    """The name of a struct's schema among the components."""
    return NAME_PREFIX + cls.__name__


def components() -> dict[str, Schema]:
    """The schema of every kind and of every struct inside one, by name, in the order of names."""
    found: dict[str, inspect.StructType] = {}
    for kind in KINDS:
        _collect(struct_type(kind.struct), found)
    return {NAME_PREFIX + name: _struct(found[name]) for name in sorted(found)}


def _collect(info: inspect.Type, found: dict[str, inspect.StructType]) -> None:
    if isinstance(info, inspect.StructType):
        known = found.setdefault(info.cls.__name__, info)
        invariant(known.cls is info.cls, f"two structs are called {info.cls.__name__}")
        if known is not info:
            return
    for inner in inner_types(info):
        _collect(inner, found)


def _struct(info: inspect.StructType) -> Schema:
    schema: Schema = {
        "type": "object",
        "description": struct_description(info.cls),
        "properties": {},
    }
    if info.tag_field is not None:
        schema["properties"] |= _identity(info)
        group, _, version = API_VERSION.partition("/")
        schema["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": info.tag, "version": version}
        ]
    for field in info.fields:
        if field.encode_name not in schema["properties"]:
            schema["properties"][field.encode_name] = _property(info.cls, field)
    required = [field.encode_name for field in info.fields if field.required]
    if required:
        schema["required"] = required
    if info.cls in ATOMIC_STRUCTS:
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _identity(info: inspect.StructType) -> Schema:
    """apiVersion and kind. The decoder accepts one value only, so the schema has an enum."""
    return {
        "apiVersion": {
            "type": "string",
            "enum": [API_VERSION],
            "description": field_descriptions(info.cls)["api_version"],
        },
        str(info.tag_field): {
            "type": "string",
            "enum": [info.tag],
            "description": "the kind of the object.",
        },
    }


def _property(cls: type[msgspec.Struct], field: inspect.Field) -> Schema:
    kind, nullable = _nullable(field.type)
    schema = _schema(kind)
    if "$ref" in schema:
        # OpenAPI v3.0 ignores everything beside a reference.
        schema = {"allOf": [schema]}
    if nullable:
        schema["nullable"] = True
    schema["description"] = field_descriptions(cls).get(field.name, "")
    default = _default(field)
    if default is not None:
        schema["default"] = default
    rule = list_rule(cls, field)
    if rule is not None:
        schema["x-kubernetes-list-type"] = str(rule.type)
        if rule.type is ListType.MAP:
            schema["x-kubernetes-list-map-keys"] = list(rule.keys)
    return schema


def _default(field: inspect.Field) -> Any:
    """A default worth showing; an empty text or list is not."""
    value = field.default
    if value is NODEFAULT or isinstance(value, msgspec.Struct) or value in ("", ()):
        return None
    return value.value if isinstance(value, Enum) else value


def _schema(info: inspect.Type) -> Schema:
    match info:
        case inspect.StructType():
            return {"$ref": REF_PREFIX + schema_name(info.cls)}
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema(info.item_type)}
        case inspect.DictType():
            return _map(info)
        case inspect.UnionType():
            return _union(info)
        case inspect.EnumType():
            return {"type": "string", "enum": [member.value for member in info.cls]}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case inspect.StrType():
            return _string(info)
        case inspect.IntType():
            return _integer(info)
    plain = _PLAIN.get(type(info))
    invariant(plain is not None, f"no schema for {info}: give it one before a struct uses it")
    return dict(cast(Schema, plain))


_PLAIN: dict[type[inspect.Type], Schema] = {
    inspect.FloatType: {"type": "number"},
    inspect.BoolType: {"type": "boolean"},
    inspect.DateTimeType: {"type": "string", "format": "date-time"},
}


def _map(info: inspect.DictType) -> Schema:
    if isinstance(info.value_type, inspect.AnyType):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "additionalProperties": _schema(info.value_type)}


def _union(info: inspect.UnionType) -> Schema:
    options = list(info.types)
    if any(isinstance(option, inspect.FloatType) for option in options):
        options = [option for option in options if not isinstance(option, inspect.IntType)]
    return {
        "anyOf": [_schema(option) for option in options],
        "x-kubernetes-int-or-string": True,
    }


def _nullable(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """A type without null, and whether null was in it."""
    if not isinstance(info, inspect.UnionType) or not info.includes_none:
        return info, False
    options = tuple(option for option in info.types if not isinstance(option, inspect.NoneType))
    return (options[0] if len(options) == 1 else inspect.UnionType(options)), True


def _string(info: inspect.StrType) -> Schema:
    limits = {
        "minLength": info.min_length,
        "maxLength": info.max_length,
        "pattern": info.pattern,
    }
    return {"type": "string"} | {word: value for word, value in limits.items() if value is not None}


def _integer(info: inspect.IntType) -> Schema:
    # The decoder bounds integers whose type does not.
    return {
        "type": "integer",
        "format": "int64",
        "minimum": -INT_MAX if info.ge is None else info.ge,
        "maximum": INT_MAX if info.le is None else info.le,
    }
