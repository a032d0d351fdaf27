"""What is asked in each cell of the matrix: something that succeeds for those who may do it.

Nothing is changed by any of it: objects are written in dry runs, and requests of components rest on
a transition or an epoch that never was, which is found out only after it is clear who asks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.host.api.call import Route
from holdfast.host.pki.join_protocol import JOIN_PATH
from holdfast.host.server.forwarding import PATH as FORWARDS
from holdfast.model.refusal import Reason
from tests.lines import MERGE, Answer, Wish
from tests.live.matrix_plane import BUSY, GROUP, IDLE, WAITING
from tests.live.matrix_requests import fresh, requests
from tools.matrix_page import REQUESTS, resource_of

LISTED = "watch=1&sendInitialEvents=true&endsWithInitialEvents=true&allowWatchBookmarks=true"
YES = (200, 201)
DRY = "dryRun=All"
# What the name of something begins with that is not there.
NONE = "none-"
LABEL = {"metadata": {"labels": {"probe": "two"}}}


class Probe(msgspec.Struct, frozen=True):
    """How one cell is asked, and which codes say that it was let through."""

    wish: Callable[[str], Wish]
    yes: tuple[int, ...] = YES
    # One of several requests in a body, each with a code of its own.
    is_leaf: bool = False
    # What it is about, if it is about one thing.
    name: str = ""

    def of_none(self, identity: str) -> Wish:
        """The same about something that is not there."""
        wish = self.wish(identity)
        body = msgspec.json.encode(wish.body).decode() if wish.body is not None else ""
        return msgspec.structs.replace(
            wish,
            path=wish.path.replace(f"/{self.name}", f"/{NONE}{self.name}"),
            body=body.replace(f'"{self.name}"', f'"{NONE}{self.name}"').encode() or None,
        )

    def heard(self, answer: Answer) -> int:
        """The answer to a caller: 200 for a yes, whatever it was. What only the rules behind the
        door refuse, such as a stale epoch, was let through.
        """
        code, reason = answer.code, answer.headers.get("x-holdfast-reason", "")
        if self.is_leaf and code == 200:
            leaf = answer.body["items"][0]
            code, reason = leaf["code"], leaf.get("reason", "")
        is_law = code == 403 and reason not in (Reason.NOT_ALLOWED, Reason.NOT_OWNER)
        return 200 if code in self.yes or is_law else code


def _condition(type_: str) -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": "True"}]}


# What each says of an object's status; a caller that owns none of it claims the first of these.
STATUS: dict[str, dict[str, dict[str, Any]]] = {
    "workloads": {
        "controller-status": {"observedGeneration": 1},
        "controller-rollout": _condition("Progressing"),
        "controller-autoscale": _condition("ScalingLimited"),
        "controller-workload": _condition("Complete"),
        "controller-repair": _condition("Recovered"),
        "controller-reserves": _condition("RecoveryReserved"),
        "scheduler": _condition("SchedulerOverrideObserved"),
    },
    "replicas": {
        "scheduler": _condition("Bound"),
        "node-1": _condition("Ready"),
        "node-2": _condition("Ready"),
        "controller-endpoints": _condition("Serving"),
        "controller-repair": _condition("Repairing"),
    },
    "nodes": {
        "controller-nodes": _condition("Ready"),
        "node-1": _condition("Pressure"),
        "node-2": _condition("Pressure"),
        "controller-drain": _condition("Drained"),
    },
    "reservations": {"scheduler": {"by": "me"}},
    "quotas": {"controller-quota": _condition("Exhausted")},
    "tenants": {"controller-garbage": _condition("Emptied")},
    "regions": {"controller-nodes": _condition("Healthy")},
    "schedulerpolicies": {"controller-policy": _condition("Observed")},
    "grants": {"controller-quota": _condition("Accepted")},
    "overrides": {"controller-policy": _condition("Active")},
    "commitments": {"controller-review": _condition("Proven")},
    "tokens": {"server": {"usedBy": "n1"}},
}


class Wishes:
    """The probes of all routes, over what is in the plane."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects
        self._typed = requests(objects)

    def of_route(self, route: Route) -> dict[str, Probe]:
        """The probes of a route by the resource of their row."""
        resource = resource_of(route)
        if resource == "requests":
            return {f"requests/{name}": self._request(name) for name in REQUESTS}
        if resource == "bindings":
            body = [_without_type(self._typed["Bind"])]
            wish = Wish("POST", f"{GROUP}/bindings", body)
            return {resource: Probe(lambda who: wish, (409,), is_leaf=True)}
        if resource == "terms":
            term = Wish("POST", f"{GROUP}/terms", self._typed["RenewLease"])
            return {resource: Probe(lambda who: term, (409,))}
        if route.kind is None:
            return {resource: self._other(route)}
        return {resource: self._of_kind(route)}

    def of_extra(self, path: str) -> Probe:
        """The probe of a path with rules of its own."""
        if path == JOIN_PATH:
            # Every caller may try; an invalid name is refused before anything is asked for.
            wish = Wish("POST", path, {"node": "../n9", "request": "none"})
            return Probe(lambda who: wish, (422,))
        if path == FORWARDS:
            return Probe(lambda who: Wish("POST", path, b""))
        return Probe(lambda who: Wish("GET", path))

    # Objects -------------------------------------------------------------------------------------

    def _name(self, route: Route) -> str:
        """The name that stands in the path, if one does."""
        assert route.kind is not None
        plural = route.kind.plural
        if "{name}" not in route.path:
            return ""
        if route.subresource in ("log", "exec", "binding"):
            return WAITING
        if (plural, route.verb) == ("nodes", "delete"):
            return IDLE
        return str(self._objects[plural]["metadata"]["name"]) if plural in self._objects else "no"

    def _path(self, route: Route) -> str:
        return route.path.replace("{namespace}", "team-a").replace("{name}", self._name(route))

    def _of_kind(self, route: Route) -> Probe:
        probe = self._probe(route)
        return msgspec.structs.replace(probe, name=self._name(route))

    def _probe(self, route: Route) -> Probe:
        path = self._path(route)
        simple = self._simple(route, path)
        if simple is not None:
            return Probe(lambda who: simple[0], simple[1])
        assert route.kind is not None
        plural = route.kind.plural
        found = self._objects[plural]
        if route.subresource == "status":
            return Probe(lambda who: self._status(route, plural, who))
        if route.subresource == "scale":
            scale = _stated(found, {"spec": {"replicas": 2}})
            wish = Wish(route.method, f"{path}?{DRY}", scale, _media_type(route))
            return Probe(lambda who: wish)
        if route.verb == "create":
            wish = Wish("POST", f"{path}?{DRY}", fresh(plural, found))
            # A tenant has one quota.
            return Probe(lambda who: wish, (409,) if plural == "quotas" else YES)
        body = _stated(found, LABEL) if route.method == "PATCH" else _labelled(found)
        wish = Wish(route.method, f"{path}?{DRY}", body, _media_type(route))
        return Probe(lambda who: wish)

    def _simple(self, route: Route, path: str) -> tuple[Wish, tuple[int, ...]] | None:
        """What needs no object: reading, deleting, looking inside, binding."""
        if route.subresource == "exec":
            # A WebSocket is demanded after it is clear who asks.
            return Wish(route.method, f"{path}?command=sh&stdout=1"), (400,)
        if route.subresource == "log":
            return Wish("GET", path), (400,)
        if route.subresource == "token":
            uid = self._objects["replicas"]["metadata"]["uid"]
            return Wish("POST", path, {"uid": uid, "attempt": 0}), (201,)
        if route.subresource == "binding":
            return Wish("POST", path, _without_type(self._typed["Bind"])), (409,)
        match route.verb:
            case "get":
                of_none = route.kind is not None and route.kind.plural == "decisions"
                return Wish("GET", path), (404,) if of_none else YES
            case "list":
                return Wish("GET", path), YES
            case "watch":
                return Wish("GET", f"{path}?{LISTED}"), YES
            case "delete":
                return Wish("DELETE", f"{path}?{DRY}", self._meant(route)), YES
            case "deletecollection":
                busy = f"&fieldSelector=metadata.name!%3D{BUSY}" if path.endswith("/nodes") else ""
                return Wish("DELETE", f"{path}?{DRY}{busy}"), YES
        return None

    def _meant(self, route: Route) -> Any:
        """The very object that is to go, where one of the plane's own is meant."""
        assert route.kind is not None
        found = self._objects.get(route.kind.plural)
        if found is None or found["metadata"]["name"] != self._name(route):
            return None
        return {"preconditions": {"uid": found["metadata"]["uid"]}}

    def _status(self, route: Route, plural: str, who: str) -> Wish:
        words = STATUS[plural]
        said = words.get(who, next(iter(words.values())))
        path = f"{self._path(route)}?{DRY}"
        if route.method == "PATCH":
            return Wish("PATCH", path, _stated(self._objects[plural], {"status": said}), MERGE)
        body = copy.deepcopy(self._objects[plural])
        body["status"] = {**body.get("status", {}), **said}
        return Wish("PUT", path, body)

    # What is no object ---------------------------------------------------------------------------

    def _other(self, route: Route) -> Probe:
        path = route.path.replace("{name}", "n1").replace("{part}", "none")
        node = self._objects["nodes"]
        match route.verb:
            case "renew":
                body: Any = {"node": "n1", "uid": node["metadata"]["uid"], "incarnation": 1}
                return Probe(lambda who: Wish("POST", path, body))
            case "attend":
                codes = (404,) if "{part}" in route.path else YES
                return Probe(lambda who: Wish("GET", path, is_endless=True), codes)
            case "pulse":
                return Probe(lambda who: Wish("POST", path, {"process": "probe"}))
            case "record":
                return Probe(lambda who: Wish("POST", path, {"rounds": []}))
            case "repair":
                # Nothing is in quarantine, so a caller that may repair gets that answer.
                wish = {"key": "ledgers/pools/all", "action": "Recount"}
                return Probe(lambda who: Wish("POST", path, wish), (404,))
            case "raise":
                # The plane has the newest format, so a caller that may raise it gets that answer.
                return Probe(lambda who: Wish("POST", path, {"to": 2, "word": "probe"}), (409,))
            case "review":
                asked = {"verb": "get", "resource": "nodes", "group": "holdfast.dev"}
                spec = {"resourceAttributes": asked, "user": "tom", "namespace": "team-a"}
                return Probe(lambda who: Wish("POST", path, {"spec": spec}))
        assert route.method == "GET", route
        return Probe(lambda who: Wish("GET", path))

    def _request(self, name: str) -> Probe:
        """One request among others, whose own code counts."""
        wish = Wish("POST", f"{GROUP}/requests", [self._typed[name]])
        about = self._typed[name].get("target", {}).get("name", "")
        # A replica is made for a workload that is not there.
        codes = (404,) if name == "Create" else (200, 409)
        return Probe(lambda who: wish, codes, is_leaf=True, name=about)


def _stated(found: Any, change: dict[str, Any]) -> dict[str, Any]:
    """A change of the object as it was seen."""
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    return {**change, "metadata": {**version, **change.get("metadata", {})}}


def _labelled(found: Any) -> Any:
    changed = copy.deepcopy(found)
    changed["metadata"]["labels"] = LABEL["metadata"]["labels"]
    return changed


def _media_type(route: Route) -> str:
    return MERGE if route.method == "PATCH" else "application/json"


def _without_type(body: Any) -> Any:
    return {key: value for key, value in body.items() if key != "type"}
