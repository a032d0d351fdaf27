"""Defaults are part of the API version: what is left out on the wire means the same for ever.

tests/golden/model-defaults.txt holds them. A line that changes or goes away changes every stored
object, and needs a new API version instead. New fields may wait for their line. To take them in:

    HOLDFAST_REWRITE_GOLDEN=1 pytest tests/unit/model/encoding/test_wire_defaults.py

and then read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from holdfast.model.registry import KINDS

GOLDEN = Path(__file__).parents[3] / "golden" / "model-defaults.txt"


def structs(kind: Any, seen: dict[str, inspect.StructType]) -> None:
    """Every struct that a type is made of, by name."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            known = seen.get(cls.__name__)
            assert known is None or known.cls is cls, f"two structs are called {cls.__name__}"
            if known is None:
                seen[cls.__name__] = kind
                for field in fields:
                    structs(field.type, seen)
        case inspect.UnionType(types=types):
            for each in types:
                structs(each, seen)
        case inspect.VarTupleType(item_type=item) | inspect.DictType(value_type=item):
            structs(item, seen)


def lines() -> Iterator[str]:
    seen: dict[str, inspect.StructType] = {}
    for kind in KINDS:
        structs(inspect.type_info(kind.struct), seen)
    for name, struct in sorted(seen.items()):
        for field in struct.fields:
            if field.required:
                yield f"{name}.{field.encode_name} is required"
                continue
            made = field.default_factory
            default = made() if made is not NODEFAULT else field.default
            yield f"{name}.{field.encode_name} = {msgspec.json.encode(default).decode()}"


def test_no_default_of_the_api_ever_changes() -> None:
    """Stored objects rely on what they leave out."""
    now = list(lines())
    if os.environ.get("HOLDFAST_REWRITE_GOLDEN"):
        GOLDEN.write_text("\n".join(now) + "\n")
    promised = GOLDEN.read_text().splitlines()
    assert len(promised) > 500
    assert [line for line in promised if line not in now] == []
