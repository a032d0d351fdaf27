"""Print docs/matrix.md: which identity may use which route. `make matrix-page` rewrites it.

Routes come from the router, permissions from `matrix_rows.py`. This finds a route without a row and
a row without a route; a test fails on either.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from holdfast.host.api.call import Route
from holdfast.host.api.objects import core_names
from holdfast.host.api.plane.typed_request_routes import TYPED
from holdfast.host.api.routes import table
from holdfast.host.client.paths import GROUP
from tools.matrix_rows import GROUPS, IDENTITIES, ROWS, TURNED_AWAY, UNKNOWN

PAGE = Path(__file__).parent.parent / "docs" / "matrix.md"
# Every request of a component has its own row, although all share one route; some have several,
# since the permission depends on their content.
_SORTS = {"Move": ("Failed", "Unknown", "Released"), "ReportStage": ("Ready", "Queued", "Serving")}
REQUESTS = (
    *(
        f"{it.__name__}:{sort}" if sort else it.__name__
        for it in TYPED
        for sort in _SORTS.get(it.__name__, ("",))
    ),
    "Create",
)
_CORE = {
    core_names.NAMESPACE: "v1/namespaces",
    core_names.EVENT: "v1/events",
    core_names.POD: "v1/pods",
}
# Paths outside the router, with their own rules. `host/server/server_process` passes them to the
# server.
EXTRAS = (
    *("/livez", "/readyz", "/healthz", "/metrics", "/audit", "/ca", "/ca/bundle", "/join"),
    *("/audit/records", "/audit/records?namespace=team-a"),
    *("/ca/rotation", "/servers", "/peers/forwards", "/peers/heard", "/peers/trust"),
)


class Row(msgspec.Struct, frozen=True):
    """The identities that may use a verb on a resource, and those that get 404 instead of 403."""

    resource: str
    verb: str
    may: tuple[str, ...]
    hidden: tuple[str, ...] = ()

    def expected(self, identity: str) -> int:
        """The code that this identity gets; 200 stands for every success."""
        if identity in self.may:
            return 200
        return 404 if identity in self.hidden else 403


def resource_of(route: Route) -> str:
    """The resource of a route, as rows name it."""
    if route.path.endswith("/targets"):
        return "targets"
    if route.kind is not None:
        resource = _CORE.get(route.facade, route.kind.plural)
        return f"{resource}/{route.subresource}" if route.subresource else resource
    inside = route.path.removeprefix(f"{GROUP}/")
    return inside.replace("{name}/", "").replace("/{part}", "")


def verb_of(route: Route) -> str:
    """The verb of a route; `-all` over all namespaces."""
    is_wide = route.kind is not None and route.kind.namespaced and "{namespace}" not in route.path
    return f"{route.verb}-all" if is_wide else route.verb


def names_of(words: str) -> tuple[str, ...]:
    """The identities that some words stand for: names, groups, and `-name` to exclude one."""
    found: dict[str, None] = {}
    for word in words.split():
        if word.startswith("-"):
            found.pop(word[1:])
        elif word in GROUPS:
            found |= dict.fromkeys(names_of(GROUPS[word]))
        else:
            known = word in IDENTITIES or word in UNKNOWN or word in TURNED_AWAY
            if not known:
                raise KeyError(word)
            found[word] = None
    return tuple(found)


@cache
def rows() -> dict[tuple[str, str], Row]:
    """The rows by resource and verb. Raises KeyError for a duplicate or an unknown identity."""
    found: dict[tuple[str, str], Row] = {}
    for line in ROWS.strip().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        resource, verbs, may, *rest = (part.strip() for part in line.split("|"))
        hidden = names_of(rest[0]) if rest else ()
        for verb in verbs.split():
            if (resource, verb) in found:
                raise KeyError(f"{resource} {verb} has two rows")
            found[resource, verb] = Row(resource, verb, names_of(may), hidden)
    return found


def places() -> Iterator[tuple[str, str]]:
    """Every resource and verb, from the router and from the paths outside it."""
    for route in table():
        if resource_of(route) == "requests":
            yield from ((f"requests/{name}", route.verb) for name in REQUESTS)
        else:
            yield resource_of(route), verb_of(route)
    yield from ((path, "use") for path in EXTRAS)


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    lines += [f"| {name} | {what} |\n" for name, what in IDENTITIES.items()]
    lines.append(_OUTSIDE)
    lines += [f"| {name} | {what} | 401 |\n" for name, what in UNKNOWN.items()]
    lines += [f"| {name} | {what} | no handshake |\n" for name, what in TURNED_AWAY.items()]
    lines.append(_GROUPS)
    lines += [f"| {name} | {words} |\n" for name, words in GROUPS.items()]
    lines.append(_TABLE)
    for line in ROWS.strip().splitlines():
        if line.startswith("#"):
            lines.append(f"| **{line[1:].strip()}** | | | |\n")
        elif line.strip():
            resource, verbs, may, *rest = (part.strip() for part in line.split("|"))
            hidden = rest[0] if rest else ""
            lines.append(f"| {resource} | {verbs} | {may or '-'} | {hidden} |\n")
    return "".join(lines)


_HEAD = """# Who may use which route

Every route of the server, every verb and every identity: everything else is refused. The rows are
written by hand in `tools/matrix_rows.py`; `tests/live/test_matrix.py` sends a request for every
cell to a real server over TLS, and a route without a row fails `make test`. Printed by
`make matrix-page`.

Objects are in the namespace of tenant A; the replica is bound to node-1.

| identity | how |
|---|---|
"""
_OUTSIDE = """
These are not authenticated, and can use only the paths that are open to everyone:

| identity | how | answer |
|---|---|---|
"""
_GROUPS = """
Groups of identities, to keep the table short; `-name` excludes one:

| group | identities |
|---|---|
"""
_TABLE = """
The identities in the third column may use the route; all others are refused with 403, and those in
the last column with 404, as if the object did not exist. A list or a watch that an agent may use
shows only its own objects. `-all` is over all namespaces. A status is written part by part: the
permission is for the identity's own part.

| resource | verbs | allowed | hidden from |
|---|---|---|---|
"""


if __name__ == "__main__":
    PAGE.write_text(page())
