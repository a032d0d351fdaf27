"""Field selectors: `metadata.name=web-0,status.state!=Running`.

kubectl's `wait`, `delete` and `describe` depend on them, and an agent watches the replicas of its
own node with one. A path is resolved against the struct of the kind when the text is parsed, so
that a typo is an error instead of an empty list, and matching an object is fast.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

import msgspec
from msgspec import inspect

from holdfast.model.encoding.problems import excerpt
from holdfast.model.encoding.struct_types import struct_type
from holdfast.model.errors import FieldError, Invalid

TEXT_MAX = 4096
REQUIREMENTS_MAX = 16

# Kubernetes escapes characters that would end a value.
_TERM_END = re.compile(r"(?:[^\\,]|\\.)*", re.DOTALL)
_TERM = re.compile(r"(?P<path>[A-Za-z0-9.]+)(?P<sign>==|=|!=)(?P<value>(?:[^\\=,]|\\[\\=,])*)")
_ESCAPE = re.compile(r"\\(.)")
_PLAIN = (inspect.StrType, inspect.IntType, inspect.BoolType, inspect.EnumType, inspect.LiteralType)


class FieldRequirement(msgspec.Struct, frozen=True):
    """One condition. `attributes` lead from an object to the field that `path` names."""

    path: str
    attributes: tuple[str, ...]
    value: str
    equal: bool


FieldSelector = tuple[FieldRequirement, ...]


def parse_field_selector(
    text: str, cls: type[msgspec.Struct], path: str = "fieldSelector"
) -> FieldSelector:
    """Parses the conditions for one kind. An empty text selects everything."""
    if len(text) > TEXT_MAX:
        raise _wrong(path, text, f"must be at most {TEXT_MAX} characters long")
    terms = _terms(text)
    if len(terms) > REQUIREMENTS_MAX:
        raise _wrong(path, text, f"must have at most {REQUIREMENTS_MAX} conditions")
    return tuple(_requirement(term, cls, path) for term in terms)


def selects_fields(selector: FieldSelector, obj: msgspec.Struct) -> bool:
    """Whether an object meets every condition."""
    return all((field_text(obj, r.attributes) == r.value) is r.equal for r in selector)


def _terms(text: str) -> list[str]:
    """Splits the text at unescaped commas. As in Kubernetes, empty terms are ignored."""
    found, start = [], 0
    while start <= len(text):
        match = _TERM_END.match(text, start)
        end = match.end() if match is not None else start
        if text[end : end + 1] == "\\":
            # A trailing backslash escapes nothing; it stays in its term, which is refused.
            end += 1
        found.append(text[start:end])
        start = end + 1
    return [term.strip() for term in found if term.strip()]


def _requirement(term: str, cls: type[msgspec.Struct], path: str) -> FieldRequirement:
    match = _TERM.fullmatch(term)
    if match is None:
        raise _wrong(path, term, "must be a condition such as metadata.name=web-0 or a!=b")
    attributes = _attributes(cls).get(match["path"])
    if attributes is None:
        raise _wrong(path, match["path"], f"must be a scalar field of {cls.__name__}")
    value = _ESCAPE.sub(r"\1", match["value"])
    return FieldRequirement(match["path"], attributes, value, match["sign"] != "!=")


@cache
def _attributes(cls: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """Every scalar field of a struct, by its path on the wire."""
    found: dict[str, tuple[str, ...]] = {}
    for field in struct_type(cls).fields:
        for option in (
            field.type.types if isinstance(field.type, inspect.UnionType) else [field.type]
        ):
            if isinstance(option, _PLAIN):
                found[field.encode_name] = (field.name,)
            elif isinstance(option, inspect.StructType):
                for inner, attributes in _attributes(option.cls).items():
                    found[f"{field.encode_name}.{inner}"] = (field.name, *attributes)
    return found


def field_text(obj: object, attributes: tuple[str, ...]) -> str:
    """A field as selector text. An absent field is an empty text, as in Kubernetes."""
    for name in attributes:
        if obj is None:
            return ""
        obj = getattr(obj, name)
    if obj is None:
        return ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj.value) if isinstance(obj, Enum) else str(obj)


def _wrong(path: str, text: str, rule: str) -> Invalid:
    error = FieldError(path=path, value=excerpt(text), rule=rule)
    return Invalid(str(error), (error,))
