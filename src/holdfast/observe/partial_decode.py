"""Decodes a few fields of an object without decoding all of it.

The watch hub sees every change of every object and needs only the name, the labels and the fields
that watchers select by. A struct with just these is decoded in a fraction of the time, since the
decoder skips what the struct does not have. Absent fields have their defaults, as in the object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import msgspec

from holdfast.model.kind_declaration import Kind
from holdfast.model.selection.field_selector import field_text

_LABELS = ("metadata", "labels")
# The number of different field sets whose decoder is kept; clients choose the sets.
_SETS_MAX = 256
PartialReader = Callable[[bytes], tuple[dict[str, str], tuple[str, ...]]]


@cache
def partial_reader(kind: Kind, paths: tuple[tuple[str, ...], ...]) -> PartialReader:
    """A function that reads labels, and these fields as text, from the bytes of a stored object.

    The fields must be texts or enums; the function raises a decoding error where they are not.
    """
    tree: dict[str, Any] = {}
    for path in (_LABELS, *paths):
        level = tree
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = None
    decode = msgspec.json.Decoder(_slim(kind.struct, tree, None)).decode
    labels, texts = attrgetter(".".join(_LABELS)), attrgetter(*map(".".join, paths))

    def read(value: bytes) -> tuple[dict[str, str], tuple[str, ...]]:
        seen = decode(value)
        return labels(seen), texts(seen)

    return read


@lru_cache(maxsize=_SETS_MAX)
def thin_decoder(kind: Kind, paths: tuple[tuple[str, ...], ...]) -> Callable[[bytes], Any]:
    """A function that reads only these fields of an object, whatever their types are.

    The result has the same attributes as the object itself, as far as the paths lead.
    """
    tree: dict[str, Any] = {}
    for path in paths:
        level = tree
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = None
    return msgspec.json.Decoder(_thin(kind.struct, tree)).decode


def _thin(struct: type[Any], tree: dict[str, Any]) -> Any:
    types = get_type_hints(struct)
    fields: list[tuple[str, Any, Any]] = []
    names = {}
    for field in msgspec.structs.fields(struct):
        if field.name not in tree:
            continue
        names[field.name] = field.encode_name
        hint, below = types[field.name], tree[field.name]
        options = (hint, *get_args(hint))
        structs = [it for it in options if isinstance(it, type) and issubclass(it, msgspec.Struct)]
        # With several structs the right one is not known in advance: then it is read whole.
        if below is not None and len(structs) == 1:
            inner = _thin(structs[0], below)
            hint = inner | None if type(None) in options else inner
        default: Any = msgspec.NODEFAULT
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        elif field.default is not msgspec.NODEFAULT:
            default = field.default
        fields.append((field.name, hint, default))
    made = [it if it[2] is not msgspec.NODEFAULT else it[:2] for it in fields]
    return msgspec.defstruct(
        f"{struct.__name__}Thin", made, rename=names, frozen=True, kw_only=True
    )


def _slim(struct: type[Any], tree: dict[str, Any], default: Any) -> Any:
    """A struct with these fields alone. `default` is the value of the whole struct if absent."""
    types = get_type_hints(struct)
    fields: list[tuple[str, Any, Any]] = []
    names = {}
    for field in msgspec.structs.fields(struct):
        if field.name not in tree:
            continue
        names[field.name] = field.encode_name
        usual = _default(field, default)
        below = tree[field.name]
        if below is not None:
            slim = _slim(_struct_in(types[field.name]), below, usual)
            fields.append((field.name, slim, msgspec.field(default_factory=slim)))
        elif field.name == _LABELS[-1]:
            fields.append((field.name, dict[str, str], msgspec.field(default_factory=dict)))
        else:
            fields.append((field.name, str, field_text(usual, ())))
    return msgspec.defstruct(f"{struct.__name__}Glimpse", fields, rename=names, frozen=True)


def _default(field: msgspec.structs.FieldInfo, default: Any) -> Any:
    """The value of a field that is absent."""
    if default is not None:
        return getattr(default, field.name)
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default if field.default is not msgspec.NODEFAULT else None


def _struct_in(hint: Any) -> type[Any]:
    """The struct of a field, which may be optional."""
    options = (hint, *get_args(hint))
    return next(it for it in options if isinstance(it, type) and issubclass(it, msgspec.Struct))
