"""Whole requests, as bytes, to a server in this process: no answer is ever our own failure."""

from __future__ import annotations

import asyncio
import atexit
import json
from typing import Any

from hypothesis import strategies as st

from holdfast.store.memory import MemoryStore
from tests.fuzz.documents import REVIEWS, SMALL, TYPED, YAML
from tests.fuzz.nasty import damaged, texts, words
from tests.fuzz.targets import Target
from tests.unit.host.api.api_rig import APPLY, GROUP, MERGE, WEB, ApiRig

ANSWER_S = 60.0
# What is no request is waited for in vain; the server's own patience is tested elsewhere.
MORE_S = 0.05
PATHS = (
    f"{GROUP}/namespaces/acme/workloads",
    f"{GROUP}/namespaces/acme/workloads/web",
    f"{GROUP}/namespaces/acme/workloads/web/status",
    f"{GROUP}/namespaces/acme/workloads/web/scale",
    f"{GROUP}/namespaces/acme/replicas/web-0-0/binding",
    f"{GROUP}/namespaces/acme/replicas/web-0-0/log",
    f"{GROUP}/namespaces/acme/replicas/web-0-0/exec",
    f"{GROUP}/workloads",
    f"{GROUP}/nodes",
    f"{GROUP}/nodes/n1/renewals",
    f"{GROUP}/nodes/n1/summons",
    f"{GROUP}/nodes/n1/visits/x",
    f"{GROUP}/requests",
    f"{GROUP}/bindings",
    f"{GROUP}/pulses",
    f"{GROUP}/records",
    f"{GROUP}/heartbeats",
    f"{GROUP}/targets",
    "/api/v1/namespaces",
    "/api/v1/namespaces/acme/pods",
    "/api/v1/namespaces/acme/events",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/openapi/v2",
    "/version",
)
PARAMETERS = (
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "labelSelector",
    "fieldSelector",
    "timeoutSeconds",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "includeObject",
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
    "gracePeriodSeconds",
    "propagationPolicy",
    "results",
    "container",
    "tailLines",
    "limitBytes",
    "sinceSeconds",
    "sinceTime",
    "follow",
    "command",
    "stdout",
    "port",
)
HEADERS = (
    "Accept",
    "Authorization",
    "Content-Encoding",
    "Content-Type",
    "Expect",
    "If-Match",
    "Range",
    "Upgrade",
    "User-Agent",
    "X-Holdfast-Operation",
)
VALUES = (
    "application/json",
    "application/json-patch+json",
    MERGE,
    APPLY,
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "websocket",
    "gzip",
    "100-continue",
    "bytes=0-1",
    "Bearer a.b.c",
    "1",
    "true",
    "All",
    "Strict",
    "Exact",
    "0",
    "metadata.name=web",
    "a in (b)",
)
USERS = ("admin", "ada", "system:node:n1", "system:scheduler:one", "system:controller:nodes", "")

_values = st.sampled_from(VALUES) | texts


def _quoted(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return "".join(
        chr(it) if 48 <= it <= 122 and it not in b"<>\\^`[]" else f"%{it:02x}" for it in data
    )


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    """The head and the body of a request, of which most parts make sense."""
    method = draw(st.sampled_from(("GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "BREW")))
    path = draw(st.sampled_from(PATHS))
    if not draw(st.integers(0, 5)):
        path += "/" + _quoted(draw(texts))
    pairs = draw(st.lists(st.tuples(st.sampled_from(PARAMETERS), _values), max_size=3))
    query = "&".join(f"{key}={_quoted(value)}" for key, value in pairs)
    body = (
        draw(damaged((*SMALL, *TYPED, *YAML, json.dumps(WEB).encode(), b"")))
        if method != "GET"
        else b""
    )
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1", "Host: plane"]
    lines += [f"X-Test-User: {draw(st.sampled_from(USERS))}", "Connection: close"]
    for name, value in draw(st.lists(st.tuples(st.sampled_from(HEADERS), _values), max_size=2)):
        lines.append(f"{name}: {value}")
    if body or draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode("utf-8", "surrogatepass")
    return head + b"\r\n\r\n" + body


_NOISE = words(
    "GET ", "/", " HTTP/1.1", "\r\n", "\r\n\r\n", "Host: a", "Content-Length: 1", "0"
).map(lambda text: text.encode("utf-8", "surrogatepass") + b"\r\n\r\n")


class _Server:
    """A rig that lives as long as this process, on a loop that runs while a request is open."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._rig: ApiRig | None = None

    def ask(self, data: bytes, patience_s: float) -> bytes:
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._runner.run(self._start())
            atexit.register(self._end)
        return self._runner.run(self._ask(data, patience_s))

    async def _start(self) -> None:
        self._rig = ApiRig(MemoryStore())
        await self._rig.__aenter__()
        await self._rig.tenant()
        assert (await self._rig.create(WEB)).code == 201

    def _end(self) -> None:
        if self._runner is not None and self._rig is not None:
            self._runner.run(self._rig.__aexit__())
            self._runner.close()

    async def _ask(self, data: bytes, patience_s: float) -> bytes:
        assert self._rig is not None
        port = int(self._rig.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            async with asyncio.timeout(patience_s):
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(it[15:])
                        for it in head.lower().split(b"\r\n")
                        if it.startswith(b"content-length:")
                    ),
                    0,
                )
                body = await reader.readexactly(length) if not data.startswith(b"HEAD") else b""
        except asyncio.IncompleteReadError as error:
            return error.partial
        except TimeoutError:
            assert patience_s < ANSWER_S, "no answer"
            return b""
        finally:
            writer.transport.abort()
        return head + body


_SERVER = _Server()
# The version that a client names may be one that another server has and this one not yet.
_NOT_YET = 504


def _answered(data: bytes) -> str:
    return _judged(_SERVER.ask(data, ANSWER_S))


def _heard(data: bytes) -> str:
    return _judged(_SERVER.ask(data, MORE_S))


def _judged(said: bytes) -> str:
    if not said:
        return "ended"
    code = int(said.split()[1])
    body: Any = said.partition(b"\r\n\r\n")[2]
    assert code < 500 or code == _NOT_YET, said
    if code >= 400 and body:
        assert json.loads(body)["kind"] == "Status", said
    return str(code)


_REVIEW = "/apis/authorization.k8s.io/v1/selfsubject{}reviews"


def _reviews(case: tuple[bytes, str, str]) -> bytes:
    body, kind, which = case
    head = f"POST {_REVIEW.format(which)} HTTP/1.1\r\nHost: plane\r\nContent-Type: {kind}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


_KINDS = ("application/vnd.kubernetes.protobuf", "application/json")
_WHICH = ("access", "rules")
_END = b"\r\n\r\n"
_HEADS = tuple(
    b"%b HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % parts
    for parts in (
        (
            b"GET /apis/holdfast.dev/v1/namespaces/acme/workloads?limit=1&labelSelector=a",
            b"Accept: */*",
        ),
        (b"GET /apis/holdfast.dev/v1/nodes?continue=e30=", b"Authorization: Bearer a.b.c"),
        (b"DELETE /apis/holdfast.dev/v1/namespaces/acme/workloads/x", b"Content-Length: 0"),
        (
            b"GET /api/v1/namespaces/acme/pods/x/log?tailLines=1&sinceTime=2026",
            b"Connection: close",
        ),
        (
            b"PATCH /apis/holdfast.dev/v1/namespaces/acme/workloads/web",
            b"Transfer-Encoding: chunked",
        ),
    )
)
_REVIEWS = st.tuples(
    damaged(REVIEWS),
    st.sampled_from(_KINDS),
    st.sampled_from(_WHICH),
).map(_reviews)

TARGETS = (
    Target("requests", _requests(), _answered, steps_max=16_000_000),
    Target(
        "access reviews",
        _REVIEWS,
        _answered,
        steps_max=16_000_000,
        seeds=REVIEWS,
        of=lambda data, rng: _reviews((data, rng.choice(_KINDS), rng.choice(_WHICH))),
    ),
    Target("noise", _NOISE, _heard, steps_max=16_000_000),
    Target(
        "heads", _NOISE, _heard, steps_max=16_000_000, seeds=_HEADS, of=lambda data, _: data + _END
    ),
)
