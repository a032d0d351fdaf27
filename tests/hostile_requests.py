"""Requests that no client sends by accident, as the bytes that go over the wire.

The documents of `tests/hostile.py` are about bodies alone; these are about everything around and
beside them: request lines, queries, headers, framing, patches, YAML, batches and the bodies of our
own components. `tests/live/test_hostile.py` sends each to a real server over TLS. Each is made when
it is asked for, since some are large.
"""

from __future__ import annotations

import gzip
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

MIB = 1 << 20
GROUP = "/apis/holdfast.dev/v1"
SPACE = f"{GROUP}/namespaces/t"
WORKLOADS = f"{SPACE}/workloads"
# The tests have made this one, so that patches have something to be about.
WEB = f"{WORKLOADS}/web"
ADMIN, ANONYMOUS, NODE, TENANT = "admin", "nobody", "system:node:n1", "ada"
JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
Wire = bytes | Iterable[bytes]


class Attack(NamedTuple):
    """One request.

    `codes` are the answers that are right, and `says` is in the sentence of the answer. `who` sends
    it. Where 200 is among the codes, it is a lot of work that asks for nothing.
    """

    name: str
    make: Callable[[], Wire]
    codes: tuple[int, ...]
    says: str = ""
    who: str = ADMIN


def raw(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as it is, with nothing added but a host."""
    lines = [f"{method} {target} HTTP/1.1", "Host: plane", *headers]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def sent(method: str, target: str, body: bytes, kind: str = JSON, *headers: str) -> bytes:
    """A request with a body and its true length."""
    told = (f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers)
    return raw(method, target, *told, body=body)


def get(target: str, *headers: str) -> Callable[[], bytes]:
    return lambda: raw("GET", target, *headers)


def query(target: str = WORKLOADS, **parameters: str) -> Callable[[], bytes]:
    text = "&".join(f"{key}={quote(value, safe='')}" for key, value in parameters.items())
    return get(f"{target}?{text}")


def post(body: object, target: str = WORKLOADS) -> Callable[[], bytes]:
    return lambda: sent("POST", target, encoded(body))


def patch(kind: str, body: object, target: str = WEB) -> Callable[[], bytes]:
    where = f"{target}?fieldManager=hostile" if kind == APPLY else target
    return lambda: sent("PATCH", where, encoded(body), kind)


def encoded(body: object) -> bytes:
    if callable(body):
        body = body()
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def token(**parts: object) -> str:
    """What our own continue tokens are made of."""
    return urlsafe_b64encode(json.dumps(parts).encode()).decode()


def meta(**metadata: object) -> dict[str, object]:
    """A workload that is good but for its metadata."""
    return {
        "kind": "Workload",
        "apiVersion": "holdfast.dev/v1",
        "metadata": {"name": "bad", "namespace": "t", **metadata},
        "spec": {"template": {"command": ["/bin/true"]}},
    }


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


PREFIX = "objects/workloads/t/"

PATHS = (
    Attack("dots as a name", get(f"{WORKLOADS}/.."), (400, 404)),
    Attack("escaped dots as a name", get(f"{WORKLOADS}/%2e%2e"), (400, 404)),
    Attack("escaped dots as a namespace", get(f"{GROUP}/namespaces/%2e%2e/workloads/web"), (400,)),
    Attack("an escaped NUL as a name", get(f"{WORKLOADS}/%00"), (400,), "path"),
    Attack("an escaped slash in a name", get(f"{WORKLOADS}/a%2Fb"), (400,), "path"),
    Attack("an escaped line break in a name", get(f"{WORKLOADS}/a%0d%0ab"), (400,), "path"),
    Attack("bytes that are no UTF-8 in a name", get(f"{WORKLOADS}/%ff%fe"), (400,), "UTF-8"),
    Attack("an overlong slash in a name", get(f"{WORKLOADS}/%c0%af"), (400,), "UTF-8"),
    Attack("raw bytes in a path", lambda: raw("GET", f"{WORKLOADS}/\udcff\udcfe"), (400,)),
    Attack("a surrogate in a path", get(f"{WORKLOADS}/%ed%a0%80"), (400,), "UTF-8"),
    Attack("a name of 12 KB", get(f"{WORKLOADS}/{'a' * 12_000}"), (400,), "path"),
    Attack("a path of 20 KB", get(f"{WORKLOADS}/{'a' * 20_000}"), (400, 431), "long"),
    Attack("5,000 steps", get(f"{WORKLOADS}{'/a' * 5_000}"), (404,)),
    Attack("8,000 slashes", get("/" * 8_000), (404,)),
    Attack("a path of another server", get("http://elsewhere/livez/x"), (400, 404)),
    Attack("a star for a path", lambda: raw("OPTIONS", "*"), (400, 404, 405)),
    Attack("a method of 9 KB", lambda: raw("A" * 9_000, WORKLOADS), (400, 405, 431)),
    Attack("an unknown method", lambda: raw("BREW", WORKLOADS), (400, 405)),
    Attack("TRACE", lambda: raw("TRACE", WORKLOADS), (405,)),
    Attack("health of nonsense", get("/livez?verbose=%ff&%00=1"), (200,), who=ANONYMOUS),
    Attack(
        "metrics by a body",
        lambda: sent("POST", "/metrics", b"[" * 99_999),
        (401, 405),
        who=ANONYMOUS,
    ),
    Attack(
        "an authority by a body", lambda: sent("PUT", "/ca", b"x" * MIB), (200, 405), who=ANONYMOUS
    ),
    Attack("CONNECT", lambda: raw("CONNECT", "elsewhere:443"), (400, 404, 405)),
)

QUERIES = (
    Attack("a query of 20 KB", get(f"{WORKLOADS}?a={'b' * 20_000}"), (400, 431), "long"),
    Attack("2,000 parameters", get(f"{WORKLOADS}?{'a&' * 2_000}"), (400,), "parameters"),
    Attack("a negative limit", query(limit="-1"), (400,), "limit: '-1'"),
    Attack("a limit of 30 digits", query(limit="9" * 30), (400,), "limit"),
    Attack("a limit in other digits", query(limit="\u0661"), (400,), "limit"),
    Attack("a limit that is infinite", query(limit="Infinity"), (400,), "limit"),
    Attack("a token of nonsense", query(**{"continue": "%%%"}), (400,), "continue"),
    Attack("a token of another list", query(**{"continue": token(revision=1, start="x")}), (400,)),
    Attack(
        "a token of secrets",
        query(**{"continue": token(revision=1, start="objects/secrets/t/")}),
        (400,),
        "continue",
    ),
    Attack(
        "a token from the future",
        query(**{"continue": token(revision=1 << 60, start=PREFIX)}),
        (400, 410),
    ),
    Attack(
        "a token of 2^200",
        query(**{"continue": token(revision=1 << 200, start=PREFIX)}),
        (400, 410),
    ),
    Attack(
        "a token with a surrogate",
        query(**{"continue": token(revision=1, start=f"{PREFIX}\ud800")}),
        (400, 410),
    ),
    Attack("a token of 12 KB", query(**{"continue": "A" * 12_000}), (400,), "continue"),
    Attack("a negative version", query(resourceVersion="-1"), (400,), "resourceVersion"),
    Attack("a version of words", query(resourceVersion="now"), (400,), "resourceVersion"),
    Attack("a version of 2^64", query(resourceVersion=str(1 << 64)), (400,), "resourceVersion"),
    Attack("a version of 4,000 digits", query(resourceVersion="9" * 4_000), (400,), "resourceV"),
    Attack(
        "a match of nothing", query(resourceVersionMatch="Exact"), (422,), "resourceVersionMatch"
    ),
    Attack("a watch with a word for a time", query(watch="1", timeoutSeconds="soon"), (400,)),
    Attack(
        "a watch of maybe",
        query(watch="1", sendInitialEvents="maybe"),
        (400,),
        "sendInitialEvents: 'maybe' must be true or false",
    ),
    Attack("a watch from no version", query(watch="1", resourceVersion="\U0001f600"), (400,)),
    Attack("a table of nonsense", get(f"{WORKLOADS}?includeObject=x", "Accept: text/x"), (406,)),
    Attack("a dry run of some", lambda: sent("POST", f"{WORKLOADS}?dryRun=Some", b"{}"), (422,)),
    Attack(
        "a validation of maybe",
        lambda: sent("POST", f"{WORKLOADS}?fieldValidation=Maybe", b"{}"),
        (422,),
        "fieldValidation",
    ),
    Attack(
        "a manager with a NUL",
        lambda: sent("POST", f"{WORKLOADS}?fieldManager=a%00b", encoded(meta())),
        (422,),
        "fieldManager",
    ),
    Attack(
        "a manager of 9 KB",
        lambda: sent("POST", f"{WORKLOADS}?fieldManager={'m' * 9_000}", encoded(meta())),
        (422,),
        "fieldManager",
    ),
    Attack(
        "a log since never", get(f"{SPACE}/replicas/x/log?sinceTime=never"), (400,), "sinceTime"
    ),
    Attack("a log of all lines ever", get(f"{SPACE}/replicas/x/log?tailLines=9999999999"), (400,)),
    Attack(
        "a command with a NUL",
        get(
            f"{SPACE}/replicas/x/exec?command=a%00b&stdout=1",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Protocol: v5.channel.k8s.io",
        ),
        (400,),
        "command",
    ),
)

SELECTORS = (
    Attack("1,000 labels", query(labelSelector=",".join(["a=b"] * 1_000)), (422,), "labelSelector"),
    Attack("labels of 12 KB", query(labelSelector="a" * 12_000), (422,), "labelSelector"),
    Attack("a label among 2,000 values", query(labelSelector=f"a in ({'b,' * 2_000}c)"), (422,)),
    Attack("8,000 spaces", get(f"{WORKLOADS}?labelSelector={'+' * 8_000}"), (200,)),
    Attack("8,000 spaces and a bracket", get(f"{WORKLOADS}?labelSelector={'+' * 8_000}("), (422,)),
    Attack("4,000 spaces in words", get(f"{WORKLOADS}?labelSelector={'a+' * 4_000}"), (422,)),
    Attack("a label of NUL", query(labelSelector="a=\0"), (422,), "labelSelector"),
    Attack("a label of brackets", query(labelSelector="(" * 4_000), (422,), "labelSelector"),
    Attack("4,000 exclamation marks", query(labelSelector="!" * 4_000), (422,), "labelSelector"),
    Attack("17 fields", query(fieldSelector=",".join(["metadata.name=a"] * 17)), (422,), "at most"),
    Attack("a field of 9 KB", query(fieldSelector="a" * 9_000), (422,), "fieldSelector"),
    Attack("4,000 backslashes", query(fieldSelector="\\" * 4_000), (422,), "fieldSelector"),
    Attack("4,000 commas", query(fieldSelector="," * 4_000), (200,)),
    Attack("an unknown field", query(fieldSelector="spec.a.b=1"), (422,), "scalar field"),
    Attack("a field of Python", query(fieldSelector="__class__=x"), (422,), "fieldSelector"),
)

HEADERS = (
    Attack("200 headers", get(WORKLOADS, *(f"X-{i}: a" for i in range(200))), (400, 431)),
    Attack("a header of 20 KB", get(WORKLOADS, f"X-Long: {'a' * 20_000}"), (400, 431), "long"),
    Attack("a header name of 20 KB", get(WORKLOADS, f"{'X' * 20_000}: a"), (400, 431), "long"),
    Attack("60 headers of 15 KB", get(WORKLOADS, *["X: " + "a" * 15_000] * 60), (400, 431)),
    Attack("a header with a NUL", get(WORKLOADS, "X-Nul: a\0b"), (400,)),
    Attack("a folded header", get(WORKLOADS, "X-Fold: a\r\n b"), (200, 400)),
    Attack("a header without a name", get(WORKLOADS, ": a"), (400,)),
    Attack("nothing that we could send", get(WORKLOADS, "Accept: image/png"), (406,)),
    Attack("8 KB of what to accept", get(WORKLOADS, f"Accept: {'a/b;q=1,' * 1_000}"), (406,)),
    Attack(
        "a token of raw bytes",
        get(WORKLOADS, "Authorization: Bearer a.b.\udcff\udcfe"),
        (401,),
        "token",
        ANONYMOUS,
    ),
    Attack(
        "a token of 7 KB",
        get(WORKLOADS, f"Authorization: Bearer {'a.' * 3_500}"),
        (401,),
        "",
        ANONYMOUS,
    ),
    Attack(
        "a token of dots", get(WORKLOADS, "Authorization: Bearer .."), (401,), "token", ANONYMOUS
    ),
    Attack("a password", get(WORKLOADS, "Authorization: Basic YTpi"), (401,), "", ANONYMOUS),
    Attack(
        "an operation of 300 characters",
        lambda: sent(
            "POST", WORKLOADS, encoded(meta()), JSON, f"X-Holdfast-Operation: {'o' * 300}"
        ),
        (422,),
        "operation",
    ),
    Attack(
        "an operation of raw bytes",
        lambda: sent("POST", WORKLOADS, encoded(meta()), JSON, "X-Holdfast-Operation: \udcff"),
        (422,),
        "operation",
    ),
    Attack("XML", lambda: sent("POST", WORKLOADS, b"<a/>", "text/xml"), (415,), "text/xml"),
    Attack("a form", lambda: sent("POST", WORKLOADS, b"a=b", "multipart/form-data"), (415,)),
    Attack(
        "a strategic merge",
        lambda: sent("PATCH", WEB, b"{}", "application/strategic-merge-patch+json"),
        (415,),
        "application/merge-patch+json",
    ),
    Attack(
        "a media type of 7 KB", lambda: sent("POST", WORKLOADS, b"{}", "a/" + "b" * 7_000), (415,)
    ),
    Attack(
        "a bomb of gzip",
        lambda: sent(
            "POST", WORKLOADS, gzip.compress(b"0" * (64 * MIB), 6), JSON, "Content-Encoding: gzip"
        ),
        (415,),
        "Content-Encoding",
    ),
    Attack(
        "a bomb of deflate",
        lambda: sent("POST", WORKLOADS, b"x\x9c" + b"\0" * 999, JSON, "Content-Encoding: deflate"),
        (415,),
        "Content-Encoding",
    ),
)


def _endless() -> Iterator[bytes]:
    """Chunks for as long as the server reads them, up to far more than it should."""
    yield raw("POST", WORKLOADS, "Content-Type: application/json", "Transfer-Encoding: chunked")
    for _ in range(64):
        yield chunks(b" " * (256 << 10))


def _smuggled(*headers: str, body: bytes = b"") -> Callable[[], bytes]:
    """A request in whose body or framing another one hides, which must never be served."""
    hidden = sent("POST", WORKLOADS, encoded(meta(name="smuggled")))
    return lambda: raw("POST", WORKLOADS, *headers, body=body + hidden)


FRAMING = (
    Attack("chunks without end", _endless, (413,), "at most"),
    Attack(
        "a length and chunks",
        _smuggled("Content-Length: 6", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        (400,),
    ),
    Attack("two lengths", _smuggled("Content-Length: 0", "Content-Length: 6"), (400,)),
    Attack("two lengths in one", _smuggled("Content-Length: 0, 6"), (400,)),
    Attack("a length with a sign", _smuggled("Content-Length: +0"), (400,)),
    Attack("a negative length", _smuggled("Content-Length: -1"), (400,)),
    Attack("a hexadecimal length", _smuggled("Content-Length: 0x0"), (400,)),
    Attack("a length of 30 digits", _smuggled(f"Content-Length: {'9' * 30}"), (400, 413)),
    Attack("a length of a terabyte", _smuggled("Content-Length: 1099511627776"), (413,), "at most"),
    Attack(
        "chunks and identity",
        _smuggled("Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
        (400,),
    ),
    Attack("chunks of x", _smuggled("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), (400,)),
    Attack(
        "a space before a colon",
        _smuggled("Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
        (400,),
    ),
    Attack(
        "a tab before chunked",
        _smuggled("Content-Length: 0", "Transfer-Encoding:\x0bchunked", body=b""),
        (400,),
    ),
    Attack("a chunk of nonsense", _smuggled("Transfer-Encoding: chunked", body=b"zz\r\n"), (400,)),
    Attack(
        "a chunk of 2^64",
        _smuggled("Transfer-Encoding: chunked", body=b"10000000000000000\r\n"),
        (400,),
    ),
    Attack(
        "a chunk with a negative size",
        _smuggled("Transfer-Encoding: chunked", body=b"-1\r\n"),
        (400,),
    ),
    Attack(
        "20 KB beside a chunk's size",
        lambda: raw(
            "POST",
            WORKLOADS,
            "Transfer-Encoding: chunked",
            body=b"1;" + b"a" * 20_000 + b"\r\nx\r\n0\r\n\r\n",
        ),
        (400, 431),
    ),
    Attack(
        "a trailer of 20 KB",
        _smuggled("Transfer-Encoding: chunked", body=b"0\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"),
        (400, 431),
    ),
    Attack("lines that end in LF", lambda: raw("GET", WEB).replace(b"\r\n", b"\n"), (200, 400)),
    Attack("HTTP/0.9", lambda: b"GET /livez/x\r\n\r\n", (400, 404)),
    Attack("HTTP/9.9", lambda: raw("GET", WEB).replace(b"HTTP/1.1", b"HTTP/9.9"), (400,)),
    Attack("HTTP/2 without asking", lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,)),
    Attack("nothing but noise", lambda: b"\x16\x03\x01" * 400 + b"\r\n\r\n", (400,)),
    Attack("1 MiB without a line's end", lambda: b"A" * MIB, (400, 431)),
)

ATTACKS: tuple[Attack, ...] = (*PATHS, *QUERIES, *SELECTORS, *HEADERS, *FRAMING)
