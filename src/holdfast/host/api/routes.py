"""Every route as one table: path, method, verb, kind, handler.

The routes of kinds are made here; the others stand beside their handlers. `app` looks requests up
here. Tests that must cover all routes are generated from this table too: a
route that is not in it does not exist. Paths are split at their slashes and followed through a
tree, so the last row takes no longer to find than the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from holdfast.commit.flow.request_classes import RequestPurpose
from holdfast.host.api.call import Call, Route, bad, reply
from holdfast.host.api.objects import core_names, patches, reads, scale, watches, write_routes
from holdfast.host.api.plane import (
    access_reviews,
    decision_routes,
    discovery,
    exec_routes,
    explanations,
    heartbeat_routes,
    log_routes,
    openapi,
    openapi_v2,
    quarantine_routes,
    scrape_targets,
    service_token_routes,
    tunnels,
    typed_request_routes,
    upgrade_routes,
)
from holdfast.host.api.resource_table import DECISIONS, collection_path
from holdfast.host.client.paths import GROUP
from holdfast.model.encoding.problems import excerpt
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import KINDS
from holdfast.model.validation.names import DOTTED_MAX

# A watch is a GET of a collection that asks for one; the tree knows it by this name.
WATCH = "WATCH"
PODS_PATH = "/api/v1/namespaces/{namespace}/pods"
PROTOBUF_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# The modules whose routes belong to no kind.
_PLANE = (
    typed_request_routes,
    heartbeat_routes,
    tunnels,
    quarantine_routes,
    upgrade_routes,
    decision_routes,
)
_REVIEWS = {
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": "access",
    "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": "rules",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": "access of",
    "/apis/authentication.k8s.io/v1/selfsubjectreviews": "whoami",
}
_ANSWERS = {
    "access": access_reviews.access,
    "rules": access_reviews.rules,
    "access of": access_reviews.access_of,
}


@cache
def table() -> tuple[Route, ...]:
    """All routes. Made once, since the OpenAPI documents among them take a while."""
    return (*(row for kind in KINDS for row in _of_kind(kind)), *_facades(), *_of_plane())


def _of_kind(kind: Kind) -> Iterator[Route]:
    collection = collection_path(kind)
    if kind.plural == DECISIONS:
        # Decisions are kept outside the store, and only schedulers make them.
        yield Route(f"{GROUP}/{kind.plural}", "GET", "list", decision_routes.list_, kind)
        yield Route(collection, "GET", "list", decision_routes.list_, kind)
        yield Route(f"{collection}/{{name}}", "GET", "get", decision_routes.get, kind)
        yield Route(
            f"{collection}/{{name}}/again", "GET", "get", decision_routes.again, kind, "again"
        )
        return
    if kind.namespaced:
        everywhere = f"{GROUP}/{kind.plural}"
        yield Route(everywhere, "GET", "list", reads.list_, kind)
        yield Route(everywhere, WATCH, "watch", watches.watch, kind)
    yield Route(collection, "GET", "list", reads.list_, kind)
    yield Route(collection, WATCH, "watch", watches.watch, kind)
    yield Route(collection, "POST", "create", write_routes.create, kind)
    yield Route(collection, "DELETE", "deletecollection", write_routes.delete_many, kind)
    item = f"{collection}/{{name}}"
    yield Route(item, "GET", "get", reads.get, kind)
    yield Route(item, "PUT", "update", write_routes.update, kind)
    yield Route(item, "PATCH", "patch", patches.patch, kind)
    yield Route(item, "DELETE", "delete", write_routes.delete, kind)
    if kind.status:
        yield Route(f"{item}/status", "GET", "get", reads.get, kind, "status")
        yield Route(f"{item}/status", "PUT", "update", write_routes.update, kind, "status")
        yield Route(f"{item}/status", "PATCH", "patch", patches.patch, kind, "status")
    if kind.scale:
        yield Route(f"{item}/scale", "GET", "get", scale.get, kind, "scale")
        yield Route(f"{item}/scale", "PUT", "update", scale.update, kind, "scale")
        yield Route(f"{item}/scale", "PATCH", "patch", scale.patch, kind, "scale")
    if kind.plural == "endpoints":
        for path in (f"{GROUP}/targets", collection.replace("/endpoints", "/targets")):
            yield Route(path, "GET", "list", scrape_targets.list_, kind)
    if kind.plural == "replicas":
        yield Route(
            f"{item}/binding", "POST", "create", typed_request_routes.binding, kind, "binding"
        )
        yield Route(f"{item}/token", "POST", "create", service_token_routes.create, kind, "token")
        path = f"{item}/explanation"
        yield Route(path, "GET", "get", explanations.get, kind, "explanation")
        yield from _looks_inside(item, kind)


def _looks_inside(item: str, kind: Kind, facade: str = core_names.OURS) -> Iterator[Route]:
    read = RequestPurpose.READ
    yield Route(f"{item}/log", "GET", "get", log_routes.read, kind, "log", facade, lasts=True)
    for method in ("GET", "POST"):
        run = exec_routes.run
        yield Route(f"{item}/exec", method, "create", run, kind, "exec", facade, read, lasts=True)


def _facades() -> Iterator[Route]:
    for path, kind, facade in (
        ("/api/v1/namespaces", core_names.TENANT_KIND, core_names.NAMESPACE),
        ("/api/v1/events", core_names.EVENT_KIND, core_names.EVENT),
        ("/api/v1/namespaces/{namespace}/events", core_names.EVENT_KIND, core_names.EVENT),
        ("/api/v1/pods", core_names.REPLICA_KIND, core_names.POD),
        (PODS_PATH, core_names.REPLICA_KIND, core_names.POD),
    ):
        yield Route(path, "GET", "list", reads.list_, kind, facade=facade)
        yield Route(path, WATCH, "watch", watches.watch, kind, facade=facade)
        if path not in ("/api/v1/events", "/api/v1/pods"):
            yield Route(f"{path}/{{name}}", "GET", "get", reads.get, kind, facade=facade)
    yield from _looks_inside(f"{PODS_PATH}/{{name}}", core_names.REPLICA_KIND, core_names.POD)


def _of_plane() -> Iterator[Route]:
    for module in _PLANE:
        yield from module.ROUTES
    for path, body in discovery.paths().items():
        yield Route(path, "GET", "discover", _document(body, "application/json"))
    for path, body in (
        ("/openapi/v3", openapi.v3_root()),
        (f"/openapi/v3/{openapi.GROUP_KEY}", openapi.v3_group()),
    ):
        yield Route(path, "GET", "discover", _document(body, "application/json"))
    yield Route("/openapi/v2", "GET", "discover", _document(openapi_v2.v2(), PROTOBUF_V2))
    for path in _REVIEWS:
        yield Route(path, "POST", "review", _review)


def _document(body: bytes, media_type: str) -> Any:
    async def document(call: Call) -> web.StreamResponse:
        call.demand_authenticated()
        return reply(200, body, {"Content-Type": media_type})

    return document


async def _review(call: Call) -> web.StreamResponse:
    call.demand_authenticated()
    body, which = await call.body(), _REVIEWS[call.route.path]
    if which == "whoami":
        return reply(201, access_reviews.whoami(call.identity))
    answer = _ANSWERS[which]
    return reply(201, answer(call.services.rights, call.identity, call.media_type, body))


class _Branch:
    """One node of the path tree, reached by a literal segment or by a variable."""

    __slots__ = ("names", "routes", "variable", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Branch] = {}
        self.variable: _Branch | None = None
        self.routes: dict[str, Route] = {}
        # The names of the path's variables, as the first route here has them: routes that differ in
        # a later segment may name the same variable differently.
        self.names: tuple[str, ...] = ()


class Router:
    """Finds routes. The result does not depend on the order of the table."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._root = _Branch()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        branch = self._root
        for word in route.path.strip("/").split("/"):
            if word.startswith("{"):
                if branch.variable is None:
                    branch.variable = _Branch()
                branch = branch.variable
            else:
                branch = branch.words.setdefault(word, _Branch())
        if not branch.routes:
            words = route.path.split("/")
            branch.names = tuple(word[1:-1] for word in words if word.startswith("{"))
        branch.routes[route.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """The routes of a path by method, and the values of its variables."""
        branch = self._root
        values: list[str] = []
        for word in path.strip("/").split("/"):
            following = branch.words.get(word)
            if following is None:
                following = branch.variable
                if following is None or not word:
                    return None
                values.append(_name(word))
            branch = following
        if not branch.routes:
            return None
        if not values:
            return branch.routes, {}
        return branch.routes, dict(zip(branch.names, values, strict=False))


def _name(word: str) -> str:
    """The value of a path variable. What cannot be a name is refused before any lookup."""
    if len(word) > 3 * DOTTED_MAX:
        bad(f"path: {excerpt(word)} must be a name of at most {DOTTED_MAX} characters")
    try:
        name = unquote(word, errors="strict") if "%" in word else word
    except UnicodeDecodeError:
        bad(f"path: {excerpt(word)} is not valid UTF-8")
    if len(name) > DOTTED_MAX or "/" in name or not name.isprintable() or name in (".", ".."):
        bad(
            f"path: {excerpt(name)} must be a name: printable, without a slash, at most "
            f"{DOTTED_MAX} characters"
        )
    return name
