"""Patches: JSON, merge and apply, alone and as the authority decides them on a live object."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from holdfast.commit.apply.patch import json_patch, merge_patch
from holdfast.model.access.identity import Identity
from holdfast.model.encoding.json_guard import BODY_BYTES_MAX
from holdfast.model.encoding.wire import decode_tree, encode
from holdfast.model.errors import Conflict, Invalid
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Patch, PatchType
from tests.fuzz.nasty import numbers, texts, trees
from tests.fuzz.targets import Target, refused
from tests.plane import ADMIN, NODES, SCHEDULER, WORKLOADS, Plane

KEYS = (
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "resourceVersion",
    "uid",
    "spec",
    "replicas",
    "template",
    "command",
    "env",
    "value",
    "ports",
    "port",
    "resources",
    "cpu",
    "status",
    "conditions",
    "type",
)
ADA = Identity(name="ada", tenants=("acme",))
_DOCUMENT = {
    "metadata": {"name": "web", "labels": {"a": "1", "b": "2"}},
    "spec": {"replicas": 3, "template": {"command": ["sleep", "60"], "env": [{"name": "A"}]}},
}
_trees = trees(KEYS)
_pointers = st.lists(
    st.sampled_from((*KEYS, "0", "1", "-", "~0", "~1", "a")) | texts, max_size=5
).map(lambda steps: "".join(f"/{step}" for step in steps))
_operations = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(("add", "remove", "replace", "move", "copy", "test")),
            "path": _pointers,
        },
        optional={"from": _pointers, "value": _trees},
    )
    | _trees,
    max_size=5,
)
_objects = st.dictionaries(st.sampled_from(KEYS), _trees, max_size=4)
_elements = st.sampled_from(
    ("f:spec", "f:replicas", ".", 'k:{"name":"A"}', 'v:"x"', "i:0", "k:{", "v:", "f:")
)
_field_sets = st.recursive(
    st.just({}), lambda inner: st.dictionaries(_elements | texts, inner, max_size=3), max_leaves=6
)
# Trees that have the form of an object, so that they get past the first check.
_likely = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "name": st.just("web") | texts,
                "labels": st.dictionaries(texts, texts, max_size=3) | _trees,
                "annotations": st.dictionaries(texts, texts, max_size=3),
                "finalizers": st.lists(texts, max_size=3),
                "ownerReferences": st.lists(_objects, max_size=2),
                "managedFields": st.lists(
                    st.fixed_dictionaries(
                        {"manager": texts},
                        optional={"operation": texts, "fieldsV1": _field_sets},
                    ),
                    max_size=2,
                ),
                "resourceVersion": texts,
                "uid": texts,
                "generation": numbers,
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "replicas": numbers,
                "type": st.sampled_from(("Service", "Job", "CronJob", "")) | texts,
                "template": st.fixed_dictionaries(
                    {},
                    optional={
                        "command": st.lists(texts, max_size=3),
                        "env": st.lists(
                            st.fixed_dictionaries({"name": texts}, optional={"value": texts}),
                            max_size=3,
                        ),
                        "ports": st.lists(
                            st.fixed_dictionaries(
                                {"name": texts}, optional={"port": numbers, "protocol": texts}
                            ),
                            max_size=3,
                        ),
                        "resources": st.dictionaries(
                            st.sampled_from(("cpu", "memory", "disk")), numbers | texts, max_size=2
                        ),
                    },
                ),
            },
        ),
        "status": _trees,
    },
)


def _json_patch(operations: list[Any]) -> str:
    try:
        result = json_patch(_DOCUMENT, operations)
    except Invalid as error:
        return refused(error)
    except Conflict:
        return "stale"
    return "same" if result == _DOCUMENT else "changed"


def _merge_patch(patch: Any) -> str:
    try:
        result = merge_patch(_DOCUMENT, patch)
    except Invalid as error:
        return refused(error)
    assert merge_patch(result, patch) == result
    return "same" if result == _DOCUMENT else "changed"


class _Stage:
    """A plane with one workload, replaced when it has become too full of leftovers."""

    def __init__(self) -> None:
        self._uses = 0
        self._plane: Plane | None = None

    def plane(self) -> Plane:
        self._uses += 1
        if self._plane is None or self._uses % 50 == 0:
            self._plane = Plane()
            self._plane.tenant()
            self._plane.workload()
        return self._plane


_STAGE = _Stage()


def _decided(case: tuple[Any, ...]) -> str:
    """Whatever the patch: an answer, which can be read again if it is a yes."""
    identity, kind, body, name, subresource, manager, force, strict = case
    plane = _STAGE.plane()
    request = Patch(
        "workloads", "acme", name, kind, body, subresource, manager, force=force, strict=strict
    )
    first = plane.ask(identity, request)
    if isinstance(first, Refusal):
        assert len(first.message) < 20_000
        return str(first.reason.value)
    assert isinstance(first, Accepted), first
    for obj in first.objects:
        stored = encode(obj)
        assert len(stored) <= 2 * BODY_BYTES_MAX
        decode_tree(stored)
    if kind is PatchType.APPLY and not subresource:
        again = plane.ask(identity, request)
        # Applied twice is applied once.
        if isinstance(again, Accepted) and again.objects:
            assert again.objects[0].spec == first.objects[0].spec
    return "accepted"


_CASES = st.tuples(
    st.sampled_from((ADMIN, ADMIN, ADA, SCHEDULER, WORKLOADS, NODES)),
    st.sampled_from(tuple(PatchType)),
    st.one_of(_likely, _likely, _objects, _operations, _trees),
    st.sampled_from(("web", "web", "web", "new")) | texts,
    st.sampled_from(("", "", "", "status", "scale")) | texts,
    st.sampled_from(("m", "n")) | texts,
    st.booleans(),
    st.booleans(),
).filter(lambda case: _fits(case[1], case[2]))


def _fits(kind: PatchType, body: Any) -> bool:
    """The server lets no other body through."""
    return isinstance(body, list if kind is PatchType.JSON else dict)


def _tree(data: bytes, otherwise: Any) -> Any:
    """What the server makes of these bytes before it looks at a patch."""
    try:
        return decode_tree(data)
    except Invalid:
        return otherwise


def _case(data: bytes, rng: random.Random) -> tuple[Any, ...]:
    body = _tree(data, {})
    kind = PatchType.JSON if isinstance(body, list) else PatchType.MERGE
    if isinstance(body, dict) and rng.randrange(3):
        kind = PatchType.APPLY
    if not _fits(kind, body):
        kind, body = PatchType.MERGE, {}
    return (
        rng.choice((ADMIN, ADMIN, ADA, WORKLOADS)),
        kind,
        body,
        rng.choice(("web", "web", "new")),
        rng.choice(("", "", "", "status")),
        rng.choice(("m", "n")),
        bool(rng.randrange(2)),
        bool(rng.randrange(2)),
    )


_PATCHES = (
    (
        b'[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"test","path":"/spec/replicas",'
        b'"value":3},{"op":"copy","from":"/spec/template/env/0","path":"/spec/template/env/-"}]'
    ),
    (
        b'[{"op":"move","from":"/metadata/labels/a","path":"/metadata/labels/c"},{"op":"remove",'
        b'"path":"/spec/template/env"},{"op":"replace","path":"/spec/replicas","value":2}]'
    ),
)
_CHANGES = (
    (
        b'{"metadata":{"labels":{"a":null,"b":"c"}},"spec":{"replicas":2,"template":{"env":[{"name":"A",'
        b'"value":"x"}],"ports":[{"name":"http","port":80}],"resources":{"cpu":"250m"}}}}'
    ),
    (
        b'{"metadata":{"name":"web","annotations":{"k":"v"},"managedFields":[{"manager":"m",'
        b'"operation":"Apply","apiVersion":"holdfast.dev/v1","fieldsType":"FieldsV1","fieldsV1":'
        b'{"f:spec":{"f:template":{"f:env":{"k:{\\"name\\":\\"A\\"}":{".":{},"f:name":{}}}}}}}]},'
        b'"spec":{"template":{"command":["sleep","1"],"env":[{"name":"A"},{"name":"B"}]}}}'
    ),
    (
        b'{"metadata":{"finalizers":["a/b"],"ownerReferences":[{"kind":"Workload","name":"o","uid":"u"}],'
        b'"resourceVersion":"4","uid":"x"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    ),
    (
        b'{"spec":{"type":"Job","replicas":1,"template":{"command":["a"],"restart":"Never",'
        b'"files":[{"path":"a/b","content":"x"}],"tolerations":[{"key":"k","operator":"Exists"}]}}}'
    ),
)

TARGETS = (
    Target(
        "JSON patches",
        _operations,
        _json_patch,
        seeds=_PATCHES,
        of=lambda data, _: _tree(data, []) or [],
    ),
    Target(
        "merge patches", _trees, _merge_patch, seeds=_CHANGES, of=lambda data, _: _tree(data, {})
    ),
    Target(
        "decided patches",
        _CASES,
        _decided,
        steps_max=8_000_000,
        seeds=(*_PATCHES, *_CHANGES),
        of=_case,
    ),
)
