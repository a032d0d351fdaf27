"""The schema says what the decoder does, and explains every field."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec import inspect

from holdfast.model.encoding.list_maps import ListRule, ListType, list_rule
from holdfast.model.encoding.schema import (
    NAME_PREFIX,
    REF_PREFIX,
    components,
    field_descriptions,
    schema_name,
    struct_description,
)
from holdfast.model.kinds.placement import Placement, Taint, Toleration
from holdfast.model.kinds.template import Port, Template
from holdfast.model.kinds.workload import WorkloadStatus
from holdfast.model.meta import ObjectMeta, Part
from holdfast.model.registry import KINDS

COMPONENTS = components()
PROPERTIES = [
    (name.removeprefix(NAME_PREFIX), key, schema)
    for name, component in COMPONENTS.items()
    for key, schema in component["properties"].items()
]


def schema_of(cls: type[msgspec.Struct]) -> dict[str, Any]:
    return COMPONENTS[schema_name(cls)]


def walk(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            yield from walk(inner)


def test_every_field_of_every_struct_is_explained() -> None:
    """`kubectl explain` has a sentence for each, and they all end like one."""
    silent = [f"{name}.{key}" for name, key, schema in PROPERTIES if not schema["description"]]
    assert silent == []
    unfinished = [
        f"{name}.{key}"
        for name, key, schema in PROPERTIES
        if not schema["description"].endswith((".", "?"))
    ]
    assert unfinished == []
    assert [name for name, schema in COMPONENTS.items() if not schema["description"]] == []


def test_a_sentence_may_go_on_over_lines() -> None:
    """What wraps is joined; what is about the whole stays apart."""

    class Example(msgspec.Struct):
        """One thing,
        told in two lines.

        Note: this is no field.
        first: a sentence
          that goes on: and on.
        second: another.

        Not part of it.
        """

        first: int
        second: int
        third: int = 0

    assert struct_description(Example) == "One thing, told in two lines."
    assert field_descriptions(Example) == {
        "first": "a sentence that goes on: and on.",
        "second": "another.",
    }


def test_generation_is_the_same_in_every_process() -> None:
    """Clients cache it by its hash."""
    program = (
        "import json; from holdfast.model.encoding.schema import components; "
        "print(json.dumps(components()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert run.stdout.strip() == json.dumps(COMPONENTS)


def test_every_kind_has_a_schema_that_names_it() -> None:
    """Group, version and kind join it to discovery. [A1]"""
    for kind in KINDS:
        schema = schema_of(kind.struct)
        assert schema["x-kubernetes-group-version-kind"] == [
            {"group": "holdfast.dev", "kind": kind.name, "version": "v1"}
        ]
        assert schema["properties"]["kind"]["enum"] == [kind.name]
        assert schema["properties"]["apiVersion"]["enum"] == ["holdfast.dev/v1"]


def test_every_reference_leads_somewhere() -> None:
    """And every schema is one by the rules of JSON Schema."""
    targets = {schema["$ref"] for schema in walk(COMPONENTS) if isinstance(schema.get("$ref"), str)}
    assert targets <= {REF_PREFIX + name for name in COMPONENTS}
    for schema in COMPONENTS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_part_that_has_choices_lists_them() -> None:
    """A default is one of the choices, and within the bounds."""
    for _, key, schema in PROPERTIES:
        if "default" in schema:
            assert jsonschema.Draft202012Validator(schema).is_valid(schema["default"]), key


@pytest.mark.parametrize(
    "cls, field, expected",
    [
        (Template, "env", {"type": "map", "keys": ["name"]}),
        (Template, "ports", {"type": "map", "keys": ["name"]}),
        (Template, "files", {"type": "map", "keys": ["path"]}),
        (Template, "command", {"type": "atomic", "keys": None}),
        (Placement, "tolerations", {"type": "atomic", "keys": None}),
        (WorkloadStatus, "conditions", {"type": "map", "keys": ["type"]}),
        (ObjectMeta, "ownerReferences", {"type": "map", "keys": ["uid"]}),
        (ObjectMeta, "finalizers", {"type": "set", "keys": None}),
    ],
)
def test_lists_say_how_they_are_merged(
    cls: type[msgspec.Struct], field: str, expected: dict[str, Any]
) -> None:
    """Server-side apply and its clients read the same table."""
    schema = schema_of(cls)["properties"][field]
    assert schema["x-kubernetes-list-type"] == expected["type"]
    assert schema.get("x-kubernetes-list-map-keys") == expected["keys"]


def test_keys_of_a_map_are_always_known() -> None:
    """A key that may be left out has a default that stands for it."""
    keyed = [cls for cls in Part.__subclasses__() if cls.list_keys]
    assert {Port, Taint} < set(keyed)
    for cls in keyed:
        schema = schema_of(cls)
        for key in cls.list_keys:
            assert key in schema["required"] or "default" in schema["properties"][key]
            assert schema["properties"][key]["type"] == "string"


def test_only_lists_have_a_rule() -> None:
    """Server-side apply asks for each field."""
    info = inspect.type_info(Toleration)
    assert isinstance(info, inspect.StructType)
    assert {list_rule(Toleration, field) for field in info.fields} == {None}
    node_spec = inspect.type_info(Placement)
    assert isinstance(node_spec, inspect.StructType)
    rules = {field.name: list_rule(Placement, field) for field in node_spec.fields}
    assert rules["zones"] == ListRule(ListType.ATOMIC)
    assert Taint.list_keys == ("key", "effect")


def test_what_takes_numbers_or_text_is_marked() -> None:
    """OpenAPI v2 cannot say "either", so a mark tells what to make of it there."""
    either = [schema for schema in walk(COMPONENTS) if "anyOf" in schema]
    assert either
    assert all(schema["x-kubernetes-int-or-string"] is True for schema in either)
    cpu = COMPONENTS["dev.holdfast.v1.Resources"]["properties"]["cpu"]
    assert cpu["anyOf"] == [{"type": "string"}, {"type": "number"}]


def test_times_and_integers_carry_their_format() -> None:
    """Clients make typed values of them."""
    meta = schema_of(ObjectMeta)["properties"]
    assert meta["creationTimestamp"]["format"] == "date-time"
    assert meta["generation"] == {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": 2**53,
        "description": "grows when the spec changes.",
        "default": 0,
    }
