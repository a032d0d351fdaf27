"""What a request does, as far as its turn depends on it: by its route, and a list by its size."""

from __future__ import annotations

from holdfast.commit.classes import Errand
from holdfast.host.api.call import Call, Route
from holdfast.host.api.reads import LIMIT_MAX, LOOKED_AT_MAX
from holdfast.host.api.routes import GROUP_PATH
from holdfast.host.api.scope import selection
from holdfast.model.errors import HoldfastError
from holdfast.observe.hub import Hub
from holdfast.observe.selection import Selection

# A list of more objects than this that asks for no pages can wait.
SWEEP_OVER = 1_000
# A read costs as much more as it has hundreds of objects.
_OBJECTS_PER_COST = 100
# An object that has to be decoded to know whether it is selected costs as much as so many others.
DECODED_COST = 5
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
    """How much a list, or a watch that begins with one, may have to read, and what that costs.

    What is looked at counts, not what is found: a selector that finds nothing may look at all.
    """
    kind, query = call.route.kind, call.query
    if kind is None or (call.route.verb == "watch" and not _begins_with_list(query)):
        return Errand.READ, 1
    limit, chosen = call.number("limit") or 0, _chosen(call)
    count, decodes = hub.count(kind, call.namespace), False
    if chosen is not None:
        count, decodes = hub.candidates(chosen).count, chosen.decodes
    if limit:
        count = min(count, LOOKED_AT_MAX if chosen is not None else min(limit, LIMIT_MAX))
    cost = 1 + min(_COST_MAX, count * (DECODED_COST if decodes else 1) // _OBJECTS_PER_COST)
    is_sweep = count > SWEEP_OVER and (decodes or not limit)
    return (Errand.SWEEP if is_sweep else Errand.READ), cost


def _chosen(call: Call) -> Selection | None:
    """What a request selects, where that is not everything. What cannot be read is refused by the
    handler, which looks at nothing for it.
    """
    if "fieldSelector" not in call.query and "labelSelector" not in call.query:
        return None
    try:
        return selection(call, named=bool(call.name))
    except HoldfastError:
        return None


def _begins_with_list(query: dict[str, str]) -> bool:
    said = query.get("sendInitialEvents")
    return said in ("true", "1") if said else query.get("resourceVersion", "0") == "0"
