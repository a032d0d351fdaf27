"""Hostile bodies beside documents: YAML, patches, metadata, batches, reviews, typed requests.

The second part of what `tests/live/test_hostile.py` sends; `tests/hostile_requests.py` is the first
and says what an attack is.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.hostile_requests import (
    ANONYMOUS,
    APPLY,
    GROUP,
    JSON_PATCH,
    MERGE,
    MIB,
    NODE,
    WEB,
    WORKLOADS,
    Attack,
    encoded,
    meta,
    patch,
    post,
    sent,
)


def laughs(levels: int) -> bytes:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines).encode()


YAML = (
    Attack("a billion laughs", patch(APPLY, laughs(9)), (400,), "anchors"),
    Attack("an alias without an anchor", patch(APPLY, b"a: *b"), (400,)),
    Attack("an anchor that holds itself", patch(APPLY, b"&a [*a]"), (400,), "anchors"),
    Attack("merge keys", patch(APPLY, b"spec:\n  <<: {replicas: 3}\n"), (400, 422), "<<"),
    Attack(
        "a tag of Python", patch(APPLY, b"!!python/object/apply:os.system [id]"), (400,), "tags"
    ),
    Attack("a tag of bytes", patch(APPLY, b"a: !!binary AAAA"), (400,), "tags"),
    Attack("a tag of one's own", patch(APPLY, b"%TAG ! tag:a,2000:\n---\n!b {}"), (400,), "tags"),
    Attack("477 KiB of flat YAML", patch(APPLY, b"a: b\n" * 97_000), (413,), "at most"),
    Attack("127 KiB of keys", patch(APPLY, lambda: _keys(127 << 10)), (400,), "values"),
    Attack("127 KiB of items", patch(APPLY, b"- a\n" * 32_000), (400,), "values"),
    Attack("127 KiB of [", patch(APPLY, b"[" * (127 << 10)), (400,), "deeper"),
    Attack("127 KiB of {", patch(APPLY, b"{" * (127 << 10)), (400,)),
    Attack("127 KiB of ? ", patch(APPLY, b"? " * (63 << 10)), (400,)),
    Attack("127 KiB of - ", patch(APPLY, b"- " * (63 << 10)), (400,), "deeper"),
    Attack("127 KiB of lines", patch(APPLY, b"\n" * (127 << 10)), (400,)),
    Attack("127 KiB of comments", patch(APPLY, b"#\n" * (63 << 10)), (400,)),
    Attack("127 KiB of quotes", patch(APPLY, b"'" * (127 << 10)), (400,)),
    Attack("127 KiB of one text", patch(APPLY, b'a: "' + b"x\\n" * 42_000 + b'"'), (400, 422)),
    Attack("127 KiB of folded text", patch(APPLY, b"a: >\n" + b"  x\n" * 31_000), (400, 422)),
    Attack("127 KiB of spaces", patch(APPLY, b"a:" + b" " * 129_000 + b"b"), (400, 422)),
    Attack("30,000 documents", patch(APPLY, b"---\n" * 32_000), (400,), "one document"),
    Attack("YAML with a key twice", patch(APPLY, b"spec: {}\nspec: {}"), (400,), "duplicate"),
    Attack("YAML with no number", patch(APPLY, b"spec: {replicas: .nan}"), (400, 422), "replicas"),
    Attack("YAML without end", patch(APPLY, b"spec: {replicas: .inf}"), (400, 422), "replicas"),
    Attack("YAML of 2^53 + 1", patch(APPLY, b"spec: {replicas: 9007199254740993}"), (400, 422)),
    Attack("YAML with a surrogate", patch(APPLY, b'a: "\\ud800"'), (400,)),
    Attack("YAML with a NUL", patch(APPLY, b'metadata: {labels: {a: "\\0"}}'), (400,), "NUL"),
    Attack("YAML with a raw NUL", patch(APPLY, b"a: \0"), (400,)),
    Attack("YAML that is no UTF-8", patch(APPLY, b"a: \xc0\xaf"), (400,), "UTF-8"),
    Attack("YAML in UTF-16", patch(APPLY, "a: b".encode("utf-16")), (400,)),
    Attack("YAML with a list for a key", patch(APPLY, b"? [a, b]\n: c"), (400,), "keys"),
    Attack("YAML with a map for a key", patch(APPLY, b"? {a: b}\n: c"), (400,), "keys"),
    Attack("YAML of nothing", patch(APPLY, b""), (400,)),
    Attack("YAML of a text", patch(APPLY, b"just text"), (400,)),
)


def _keys(size: int) -> bytes:
    return "".join(f"k{i}: 1\n" for i in range(size // 10)).encode()


def _operations(count: int, **operation: object) -> list[dict[str, object]]:
    return [operation] * count


PATCHES = (
    Attack("1,001 operations", patch(JSON_PATCH, _operations(1_001, op="test", path="")), (422,)),
    Attack("no operation at all", patch(JSON_PATCH, [{"path": "/a"}]), (422,), "op must be one of"),
    Attack("an operation of lists", patch(JSON_PATCH, [[]] * 900), (422,), "operation 0"),
    Attack("an unknown operation", patch(JSON_PATCH, [{"op": "x" * 900, "path": ""}]), (422,)),
    Attack("the end of no list", patch(JSON_PATCH, [{"op": "remove", "path": "/-"}]), (422,)),
    Attack("a lone ~", patch(JSON_PATCH, [{"op": "remove", "path": "/~"}]), (422,), "~0 or ~1"),
    Attack(
        "a pointer 40 deep",
        patch(JSON_PATCH, [{"op": "add", "path": "/a" * 40, "value": 1}]),
        (422,),
        "steps",
    ),
    Attack(
        "a pointer of 100 KB",
        patch(JSON_PATCH, [{"op": "remove", "path": "/" + "a" * 100_000}]),
        (422,),
    ),
    Attack("a pointer of numbers", patch(JSON_PATCH, [{"op": "remove", "path": 1}]), (422,)),
    Attack(
        "an index of 10^18",
        patch(JSON_PATCH, [{"op": "remove", "path": f"/spec/template/command/{10**18}"}]),
        (422,),
        "index",
    ),
    Attack(
        "a test of much",
        patch(JSON_PATCH, [{"op": "test", "path": "/spec", "value": {"a": [0] * 18_000}}]),
        (409, 422),
    ),
    Attack(
        "copies of copies",
        patch(
            JSON_PATCH,
            [
                {"op": "copy", "from": "/spec", "path": "/spec/a"},
                {"op": "copy", "from": "/spec", "path": "/spec/b"},
            ]
            * 400,
        ),
        (422,),
    ),
    Attack(
        "a value moved into itself",
        patch(JSON_PATCH, [{"op": "move", "from": "/spec", "path": "/spec/a"}]),
        (422,),
        "into itself",
    ),
    Attack("an object for operations", patch(JSON_PATCH, {"op": "add"}), (400,), "must be a list"),
    Attack(
        "19,000 values in one",
        patch(
            JSON_PATCH,
            [{"op": "replace", "path": "/spec/template/command", "value": [0] * 19_000}],
        ),
        (422,),
    ),
    Attack(
        "19,000 nulls",
        patch(MERGE, {"metadata": {"labels": {f"k{i}": None for i in range(19_000)}}}),
        (200,),
    ),
    Attack(
        "nulls 31 deep",
        patch(MERGE, lambda: b'{"spec":' + b'{"a":' * 30 + b"null" + b"}" * 31),
        (200,),
    ),
    Attack(
        "19,000 labels",
        patch(MERGE, {"metadata": {"labels": {f"k{i}": "v" for i in range(19_000)}}}),
        (422,),
        "labels",
    ),
    Attack("a list as a merge", patch(MERGE, [1]), (400,), "must be an object"),
    Attack("a merge that renames", patch(MERGE, {"metadata": {"name": "other"}}), (422,), "rename"),
    Attack("a merge with NaN", patch(MERGE, b'{"spec":{"replicas":NaN}}'), (400,), "NaN"),
    Attack(
        "a forced merge", lambda: sent("PATCH", f"{WEB}?force=1", b"{}", MERGE), (422,), "force"
    ),
    Attack(
        "an apply of managed fields",
        patch(APPLY, {"metadata": {"managedFields": [{"manager": "m"}] * 5_000}}),
        (422,),
        "managedFields",
    ),
    Attack(
        "an apply of 19,000 unknown fields",
        patch(APPLY, {f"k{i}": 1 for i in range(19_000)}),
        (422,),
    ),
    Attack(
        "an apply of a list with twins",
        patch(APPLY, {"spec": {"template": {"env": [{"name": "A"}] * 5_000}}}),
        (422,),
        "duplicate",
    ),
    Attack("an unnamed apply", lambda: sent("PATCH", WEB, b"{}", APPLY), (422,), "fieldManager"),
    Attack(
        "a scale of infinity",
        lambda: sent("PUT", f"{WEB}/scale", b'{"spec":{"replicas":Infinity}}'),
        (400,),
        "no infinities",
    ),
    Attack(
        "a scale of 1e300",
        lambda: sent("PUT", f"{WEB}/scale", b'{"spec":{"replicas":1e300}}'),
        (400,),
        "spec.replicas",
    ),
    Attack(
        "a scale of 2^53",
        lambda: sent("PUT", f"{WEB}/scale", b'{"spec":{"replicas":9007199254740992}}'),
        (422,),
        "replicas",
    ),
)


def _managed(count: int) -> list[dict[str, object]]:
    return [
        {"manager": f"m{i}", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        for i in range(count)
    ]


METADATA = (
    Attack(
        "2,000 managers", post(lambda: encoded(meta(managedFields=_managed(2_000)))), (400, 422)
    ),
    Attack(
        "managed fields 29 deep",
        post(
            lambda: encoded(meta(managedFields=[{"fieldsV1": "@"}])).replace(
                b'"@"', b'{"f:a":' * 28 + b"{}" + b"}" * 28
            )
        ),
        (400, 422),
    ),
    Attack(
        "2,000 owners",
        post(meta(ownerReferences=[{"kind": "Workload", "name": "a", "uid": "u"}] * 2_000)),
        (400, 422),
        "ownerReferences",
    ),
    Attack("19,000 finalizers", post(meta(finalizers=["a/b"] * 19_000)), (422,), "finalizers"),
    Attack(
        "19,000 annotations",
        post(meta(annotations={f"k{i}": "v" * 30 for i in range(19_000)})),
        (422,),
        "annotations",
    ),
    Attack(
        "a name of 300 to go on from",
        post(meta(name="", generateName="a" * 300)),
        (422,),
        "metadata",
    ),
    Attack("dots to go on from", post(meta(name="", generateName="../")), (422,), "metadata"),
    Attack("no name at all", post(meta(name="")), (422,), "metadata.name"),
    Attack(
        "a version of nonsense",
        lambda: sent("PUT", WEB, encoded(meta(name="web", resourceVersion="x" * 900))),
        (409, 422),
    ),
    Attack(
        "a uid of another",
        lambda: sent("PUT", WEB, encoded(meta(name="web", uid="x" * 900))),
        (409, 422),
    ),
    Attack("an object in another namespace", post(meta(namespace="other")), (400,), "namespace"),
)


def _batch(item: bytes, count: int) -> Callable[[], bytes]:
    return post(lambda: b"[" + b",".join([item] * count) + b"]")


REQUESTS = f"{GROUP}/requests"
_CREATE = b'{"type":"Create"}'

BATCHES = (
    Attack("100,000 objects", _batch(b"{}", 100_000), (400, 413), "objects"),
    Attack("500,000 numbers", _batch(b"0", 500_000), (400, 413)),
    Attack("340,000 lists", _batch(b"[]", 340_000), (400, 413)),
    Attack(
        "100,000 objects in a List",
        post(lambda: b'{"kind":"List","items":[' + b",".join([b"{}"] * 100_000) + b"]}"),
        (400, 413),
        "objects",
    ),
    Attack("1 MiB of [ to a collection", post(b"[" * (MIB - 1)), (400, 413)),
    Attack(
        "58,000 creates",
        lambda: sent("POST", REQUESTS, b"[" + b",".join([_CREATE] * 58_000) + b"]"),
        (400, 413),
    ),
    Attack(
        "a create and 400,000 numbers",
        lambda: sent("POST", REQUESTS, b"[" + _CREATE + b",0" * 400_000 + b"]"),
        (400, 413),
    ),
    Attack(
        "100,000 binds",
        lambda: sent("POST", f"{GROUP}/bindings", b"[" + b",".join([b"{}"] * 100_000) + b"]"),
        (400, 413),
        "values",
    ),
    Attack(
        "an unknown request",
        lambda: sent("POST", REQUESTS, b'{"type":"Obey"}'),
        (400,),
        "request",
    ),
    Attack(
        "a request with a surrogate",
        lambda: sent(
            "POST", REQUESTS, b'{"type":"AcquireLease","scope":"\\ud800","duration_ms":1}'
        ),
        (400, 422),
    ),
    Attack(
        "a lease with a NUL",
        lambda: sent(
            "POST",
            REQUESTS,
            b'{"type":"AcquireLease","scope":"scheduler:a\\u0000","duration_ms":1000}',
        ),
        (400, 422),
    ),
    Attack(
        "a lease of 2^70 ms",
        lambda: sent(
            "POST",
            REQUESTS,
            b'{"type":"AcquireLease","scope":"scheduler:a","duration_ms":1180591620717411303424}',
        ),
        (400, 422),
    ),
    Attack(
        "a renewal of another node",
        lambda: sent("POST", f"{GROUP}/nodes/n1/renewals", b'{"node":"n2"}'),
        (400, 403),
        "",
        NODE,
    ),
    Attack(
        "options 10,000 deep",
        lambda: sent("DELETE", WEB, b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        (400,),
    ),
    Attack(
        "a grace of -1 s",
        lambda: sent("DELETE", WEB, b'{"gracePeriodSeconds":-1}'),
        (400, 422),
        "grace",
    ),
    Attack(
        "a grace of 2^62 s",
        lambda: sent("DELETE", WEB, b'{"gracePeriodSeconds":4611686018427387904}'),
        (400, 422),
        "grace",
    ),
    Attack(
        "options given twice",
        lambda: sent("DELETE", WEB, b'{"gracePeriodSeconds":30,"gracePeriodSeconds":0}'),
        (400,),
        "gracePeriodSeconds",
    ),
    Attack(
        "an unknown policy",
        lambda: sent("DELETE", WEB, b'{"propagationPolicy":"Burn"}'),
        (422,),
        "propagationPolicy",
    ),
)

_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PROTOBUF = "application/vnd.kubernetes.protobuf"


def _envelope(inner: bytes) -> bytes:
    """The object inside Kubernetes' own envelope, under the field that holds it."""
    length, size = b"", len(inner)
    while size > 0x7F:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return b"k8s\x00\x12" + length + bytes((size,)) + inner


REVIEWS = (
    Attack(
        "400,000 fields of protobuf",
        lambda: sent("POST", _ACCESS, _envelope(b"\x08\x01" * 400_000), _PROTOBUF),
        (400, 413),
    ),
    Attack(
        "protobuf that never ends",
        lambda: sent("POST", _ACCESS, b"k8s\x00" + b"\x80" * 9_000, _PROTOBUF),
        (400,),
    ),
    Attack("protobuf of nothing", lambda: sent("POST", _ACCESS, b"k8s", _PROTOBUF), (400,)),
    Attack(
        "a review 40 deep", lambda: sent("POST", _ACCESS, b'{"a":' * 40 + b"1" + b"}" * 40), (400,)
    ),
    Attack(
        "a join of 17 KB",
        lambda: sent("POST", "/join", json.dumps({"node": "a" * 17_000, "request": ""}).encode()),
        (413,),
        "bytes",
        ANONYMOUS,
    ),
    Attack(
        "a join of a bad name",
        lambda: sent("POST", "/join", b'{"node":"../x","request":"","token":"t"}'),
        (422,),
        "node",
        ANONYMOUS,
    ),
    Attack(
        "a join without a key",
        lambda: sent("POST", "/join", b'{"node":"n9","request":"-----BEGIN","token":"t"}'),
        (401,),
        "token",
        ANONYMOUS,
    ),
    Attack(
        "a join of deep JSON",
        lambda: sent("POST", "/join", b"[" * 9_000),
        (400,),
        "JSON",
        ANONYMOUS,
    ),
    Attack(
        "an anonymous body",
        lambda: sent("POST", WORKLOADS, b"[" * (MIB - 9)),
        (401,),
        "",
        ANONYMOUS,
    ),
    Attack("a forward of a person", lambda: sent("POST", "/forward", b"{}\n"), (403, 404)),
)

ATTACKS: tuple[Attack, ...] = (*YAML, *PATCHES, *METADATA, *BATCHES, *REVIEWS)
