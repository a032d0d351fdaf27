"""What a request does, as far as its turn depends on it: by its route, and a list by its size."""

from __future__ import annotations

from holdfast.commit.classes import Errand
from holdfast.host.api.call import Call, Route
from holdfast.host.api.routes import GROUP_PATH
from holdfast.observe.hub import Hub

# A list of more objects than this that asks for no pages can wait.
SWEEP_OVER = 1_000
# A read costs as much more as it has hundreds of objects.
_OBJECTS_PER_COST = 100
_COST_MAX = 100
_READ_VERBS = ("get", "list", "watch", "discover", "review", "attend")
_LIFELINE_PATHS = (f"{GROUP_PATH}/heartbeats", f"{GROUP_PATH}/terms")


def errand_of(route: Route) -> Errand:
    """What a route does. A list turns out to be a sweep only when it is known what it asks for."""
    if route.verb == "renew" or route.path in _LIFELINE_PATHS:
        return Errand.LIFELINE
    if route.subresource in ("log", "exec") or route.verb in _READ_VERBS:
        return Errand.READ
    return Errand.WRITE


def extent(hub: Hub, call: Call) -> tuple[Errand, int]:
    """How much a list, or a watch that begins with one, may have to read, and what that costs."""
    kind, query = call.route.kind, call.query
    if kind is None or "continue" in query or "fieldSelector" in query:
        return Errand.READ, 1
    if call.route.verb == "watch" and not _begins_with_list(query):
        return Errand.READ, 1
    count = hub.count(kind, call.namespace)
    limit = call.number("limit") or 0
    cost = 1 + min(_COST_MAX, min(limit or count, count) // _OBJECTS_PER_COST)
    is_sweep = not limit and count > SWEEP_OVER
    return (Errand.SWEEP if is_sweep else Errand.READ), cost


def _begins_with_list(query: dict[str, str]) -> bool:
    said = query.get("sendInitialEvents")
    return said in ("true", "1") if said else query.get("resourceVersion", "0") == "0"
