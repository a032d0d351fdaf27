"""Documents: JSON, YAML, objects of every kind, batches, typed requests, protobuf."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from holdfast.host.api.objects import batch, yaml_text
from holdfast.host.api.plane import typed_request_routes
from holdfast.model.encoding import json_guard
from holdfast.model.encoding.wire import decode, encode
from holdfast.model.errors import HoldfastError, Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS, kind_named
from holdfast.model.validation import validate
from tests import hostile
from tests.documents import document
from tests.fuzz.nasty import damaged
from tests.fuzz.targets import Target, refused
from tests.objects import objects

SMALL = tuple(
    data for data in (document.make() for document in hostile.DOCUMENTS) if 0 < len(data) < 2_000
)
YAML = (
    (
        b"apiVersion: holdfast.dev/v1\nkind: Workload\nmetadata:\n  name: web\n  labels: {a: b}\n"
        b"spec:\n  replicas: 3\n  template:\n    command: [sleep, '60']\n    env:\n    - name: A\n"
        b'      value: "x\\n"\n'
    ),
    b"a: |\n  text\n  more\nb: >-\n  folded\n  text\n",
    b"- 1\n- 1.5\n- ~\n- yes\n- 0x10\n- 2026-11-16\n- .inf\n",
    b"{a: [b, {c: d}], 'e': \"f\\u0041\"}",
    b"? a\n: b\n",
    b"%YAML 1.1\n---\na: b\n...\n",
)
TYPED = (
    b'{"type":"AcquireLease","scope":"scheduler:one","duration_ms":10000}',
    b'{"type":"RenewLease","term":{"scope":"scheduler:one","epoch":1}}',
    (
        b'{"type":"Bind","target":{"namespace":"t","name":"web-0-0","uid":"u","number":1},"node":"n1",'
        b'"node_uid":"n","term":{"scope":"scheduler:one","epoch":1}}'
    ),
    b'{"type":"Move","target":{"namespace":"t","name":"w","uid":"u","number":1},"to":"Running"}',
    b'[{"type":"JudgeNode","node":"n1","uid":"u","word":"Mark","term":{"scope":"s","epoch":1}}]',
    b'[{"type":"Create","kind":"Replica","object":{}},{"type":"ForgetOperations","operations":[]}]',
)
REVIEWS = (
    b"k8s\x00\x12\x14\x12\x12\x0a\x10\x0a\x01t\x12\x03get\x2a\x06secret",
    b"k8s\x00\x12\x02\x08\x01",
    b'{"spec":{"resourceAttributes":{"verb":"get","resource":"workloads","namespace":"t"}}}',
    b'{"spec":{"namespace":"t"}}',
)
_WORKLOAD = kind_named("Workload")
RICH = (
    b'{"kind":"Workload","apiVersion":"holdfast.dev/v1","metadata":{"name":"web","namespace":"t",'
    b'"labels":{"a/b":"c"},"finalizers":["a.b/c"],"ownerReferences":[{"kind":"Workload","name":"a",'
    b'"uid":"u"}]},"spec":{"type":"CronJob","replicas":3,"cron":{"schedule":"*/5 * * * *"},'
    b'"template":{"command":["a","$(B)"],"env":[{"name":"B","value":"x"}],"ports":[{"name":"http",'
    b'"port":80}],"resources":{"cpu":"500m","memory":"1.5Gi"},"placement":{"regions":["eu-west"],'
    b'"nodeSelector":{"a":"b"}}}},"status":{}}'
)
GOOD = (RICH, *(json.dumps(document(kind.name)).encode() for kind in KINDS))


def _json(data: bytes) -> str:
    try:
        tree = json_guard.parse(data)
    except Invalid as error:
        return refused(error)
    assert json_guard.parse(json.dumps(tree, ensure_ascii=False).encode()) == tree
    return "read"


def _yaml(data: bytes) -> str:
    try:
        tree = yaml_text.decode_yaml(data)
    except Invalid as error:
        return refused(error)
    if isinstance(tree, dict):
        # What was read is JSON, which is YAML too.
        assert yaml_text.decode_yaml(json.dumps(tree).encode()) == tree
    return "read"


def _object(case: tuple[Kind, bytes]) -> str:
    kind, data = case
    try:
        found = decode(kind, data, strict=False).object
    except Invalid as error:
        return refused(error)
    assert decode(kind, encode(found), strict=True).object == found
    return "invalid" if validate(found) else "valid"


@st.composite
def _objects(draw: st.DrawFn) -> tuple[Kind, bytes]:
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(damaged([encode(draw(objects(kind.struct)))]))


def _batch(data: bytes) -> str:
    try:
        found = batch.split(_WORKLOAD, data)
    except HoldfastError:
        return "refused"
    return "one" if found is None else "many"


def _typed(data: bytes) -> str:
    try:
        found: Any = typed_request_routes.decode_requests(data)
    except HoldfastError as error:
        return refused(error)
    return "many" if isinstance(found, list) else "one"


def _kind(data: bytes) -> Kind:
    """The kind that an encoding is of, or any."""
    return next((kind for kind in KINDS if b'"kind":"%b"' % kind.name.encode() in data), _WORKLOAD)


_BATCHES = (b"[" + SMALL[0] + b"]", b'{"kind":"List","items":[{},{"a":[1]}]}', b"[{},[],0]", *SMALL)

TARGETS = (
    Target("json", damaged(SMALL), _json, seeds=SMALL),
    Target("yaml", damaged(YAML), _yaml, seeds=YAML),
    Target(
        "objects",
        _objects(),
        _object,
        seeds=GOOD,
        of=lambda data, rng: (rng.choice(KINDS) if not rng.randrange(9) else _kind(data), data),
    ),
    Target("batches", damaged(_BATCHES), _batch, seeds=_BATCHES),
    Target("typed requests", damaged(TYPED), _typed, seeds=TYPED),
)
