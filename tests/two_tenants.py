"""What a tenant asks of a server, drawn at random: in its own namespace and in its neighbour's.

A program is a list of wishes. Uids differ from plane to plane, so that they stand in bodies and
paths as `{uid:NAMESPACE/NAME}`, which `tests/property/test_tenants_apart.py` fills in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from tests.inner_plane import GROUP
from tests.lines import APPLY, JSON_PATCH, MERGE, Wish

NAMES = ("web", "db", "cron", "none")
PLURALS = (
    *("workloads", "replicas", "secrets", "events", "quotas", "overrides", "commitments"),
    *("endpoints", "decisions", "reservations", "workloadrevisions", "roles", "rolebindings"),
    "tokens",
)
CLUSTER = (
    "nodes",
    "tenants",
    "priorityclasses",
    "regions",
    "leases",
    "grants",
    "schedulerpolicies",
)
SELECTORS = (
    "",
    "labelSelector=team%3Dred",
    "labelSelector=team",
    "labelSelector=%21team",
    "fieldSelector=metadata.name%3Dweb",
    "fieldSelector=status.binding.node%3Dn1",
    "fieldSelector=metadata.namespace%3D{other}",
    "limit=1",
    "limit=2",
    "resourceVersion=0",
)
# A watch that ends when it has told what is there.
LISTED = "watch=1&sendInitialEvents=true&endsWithInitialEvents=true&allowWatchBookmarks=true"
EXPIRES = "2099-01-01T00:00:00Z"
LABELS = ({}, {"team": "red"}, {"team": "blue"})


class Tenant:
    """Draws the wishes of one tenant. `other` is the namespace of its neighbour.

    Operation ids are used again within an `era`, and no longer: servers forget them after a while,
    each at a moment of its own.
    """

    def __init__(self, mine: str, other: str, rng: random.Random, era: int = 0) -> None:
        self._mine, self._other, self._rng, self._era = mine, other, rng, era
        self._sorts: tuple[Callable[[], Wish], ...] = (
            *(self._create,) * 4,
            *(self._change,) * 3,
            *(self._delete,) * 2,
            *(self._read,) * 4,
            *(self._list,) * 4,
            self._watch,
            self._look_inside,
            *(self._typed,) * 2,
            self._review,
            self._other_path,
        )

    def program(self, length: int) -> Iterator[Wish]:
        for _ in range(length):
            yield self._rng.choice(self._sorts)()

    # Where ---------------------------------------------------------------------------------------

    def _namespace(self) -> str:
        places = (self._mine, self._other, "holdfast-system", "nowhere")
        return self._rng.choices(places, (62, 28, 5, 5))[0]

    def _collection(self, plural: str = "") -> str:
        plural = plural or self._rng.choice(PLURALS)
        return f"{GROUP}/namespaces/{self._namespace()}/{plural}"

    def _name(self, plural: str) -> str:
        if plural == "replicas":
            return f"{self._rng.choice(NAMES[:2])}-{self._rng.randrange(3)}-0"
        return self._rng.choice(NAMES) if plural != "quotas" else "default"

    def _headers(self) -> dict[str, str]:
        """Sometimes with an operation id that its neighbour uses as well."""
        chosen = self._rng.randrange(8)
        return {"X-Holdfast-Operation": f"op-{self._era}-{chosen}"} if chosen < 3 else {}

    def _dry(self) -> str:
        return "?dryRun=All" if self._rng.random() < 0.15 else ""

    # Writes --------------------------------------------------------------------------------------

    def _document(self, plural: str, name: str) -> dict[str, Any]:
        rng = self._rng
        metadata: dict[str, Any] = {"labels": rng.choice(LABELS)}
        if name:
            metadata["name"] = name
        else:
            # The number keeps them in order, whatever is drawn for the rest of the name.
            metadata["generateName"] = f"made-{rng.randrange(10**6)}-"
        if rng.random() < 0.1:
            uid = f"{{uid:{self._other}/web}}"
            owner = {"apiVersion": "holdfast.dev/v1", "kind": "Workload", "name": "web"}
            metadata["ownerReferences"] = [{**owner, "uid": uid}]
        made: dict[str, Any] = {"apiVersion": "holdfast.dev/v1", "metadata": metadata}
        match plural:
            case "workloads":
                return made | {"kind": "Workload", "spec": self._workload()}
            case "secrets":
                return made | {"kind": "Secret", "stringData": {"k": rng.choice(("v", "w"))}}
            case "commitments":
                promise = {"workload": rng.choice(NAMES), "serving": 1}
                return made | {"kind": "Commitment", "spec": {"promise": promise}}
            case "overrides":
                scope = {"tenants": [self._mine], "workloads": [rng.choice(NAMES)]}
                spec = {"type": "Pause", "scope": scope, "reason": "a test"}
                return made | {"kind": "Override", "spec": {**spec, "expires": EXPIRES}}
        return made | {"kind": "Event", "involvedObject": {"kind": "Workload", "name": "web"}}

    def _workload(self) -> dict[str, Any]:
        rng = self._rng
        template: dict[str, Any] = {"command": ["sleep", str(rng.randrange(3))]}
        template["resources"] = {"cpu": rng.choice(("100m", "1", "99"))}
        wish = rng.randrange(10)
        if wish == 0:
            template["priorityClass"] = rng.choice(("vip", "none"))
        elif wish == 1:
            template["placement"] = {"pool": "kept", "regions": ["eu"]}
        elif wish == 2:
            secret = {"name": rng.choice(NAMES), "key": "k"}
            template["env"] = [{"name": "P", "secret": secret}]
        elif wish == 3:
            return {"template": template, "replicas": -1}
        return {"template": template, "replicas": rng.randrange(4)}

    def _create(self) -> Wish:
        plural = self._rng.choice(("workloads", "workloads", "secrets", "commitments", "overrides"))
        path = self._collection(plural) + self._dry()
        names = [self._rng.choice((*NAMES, "")) for _ in range(self._rng.choice((1, 1, 1, 2, 3)))]
        bodies = [self._document(plural, name) for name in names]
        return Wish(
            "POST", path, bodies[0] if len(bodies) == 1 else bodies, headers=self._headers()
        )

    def _change(self) -> Wish:
        rng = self._rng
        plural = rng.choice(
            ("workloads", "workloads", "secrets", "replicas", "quotas", "endpoints")
        )
        name = self._name(plural)
        path = f"{self._collection(plural)}/{name}{rng.choice(('', '', '/status'))}"
        sort = rng.randrange(5)
        if sort == 0:
            body = self._document(plural, name)
            return Wish("PUT", path + self._dry(), body, headers=self._headers())
        if sort == 1:
            body = self._document(plural, name)
            force = rng.choice(("true", "false"))
            return Wish("PATCH", f"{path}?fieldManager=one&force={force}", body, APPLY)
        if sort == 2:
            test = {"op": rng.choice(("test", "replace", "add")), "path": "/metadata/labels"}
            return Wish("PATCH", path + self._dry(), [{**test, "value": {}}], JSON_PATCH)
        if sort == 3 and plural == "workloads":
            scale = path.removesuffix("/status") + "/scale"
            return Wish("PATCH", scale, {"spec": {"replicas": rng.randrange(4)}}, MERGE)
        body = rng.choice(
            ({}, {"metadata": {"labels": {"team": "red"}}}, {"metadata": {"uid": "u"}})
        )
        return Wish("PATCH", path + self._dry(), body, MERGE, self._headers())

    def _delete(self) -> Wish:
        plural = self._rng.choice(("workloads", "secrets", "replicas", "overrides", "quotas"))
        path = self._collection(plural)
        if self._rng.random() < 0.2:
            return Wish("DELETE", f"{path}?labelSelector=team%3Dred")
        name = self._name(plural)
        body = {"preconditions": {"uid": f"{{uid:{self._other}/{name}}}"}}
        options = self._rng.choice((None, None, body, {"gracePeriodSeconds": 0}))
        return Wish("DELETE", f"{path}/{name}{self._dry()}", options, headers=self._headers())

    # Reads ---------------------------------------------------------------------------------------

    def _read(self) -> Wish:
        plural = self._rng.choice(PLURALS)
        part = self._rng.choice(("", "", "/status", "/scale"))
        if self._rng.random() < 0.1:
            plural, part = "replicas", "/explanation"
        if self._rng.random() < 0.2:
            name = self._rng.choice((self._other, self._mine, "n1", "vip", "eu"))
            return Wish("GET", f"{GROUP}/{self._rng.choice(CLUSTER)}/{name}")
        if self._rng.random() < 0.2:
            place = f"/api/v1/namespaces/{self._namespace()}"
            return Wish("GET", self._rng.choice((place, f"{place}/pods/{self._name('replicas')}")))
        return Wish("GET", f"{self._collection(plural)}/{self._name(plural)}{part}")

    def _query(self) -> str:
        query = self._rng.choice(SELECTORS).replace("{other}", self._other)
        return f"?{query}" if query else ""

    def _list(self) -> Wish:
        place = self._rng.random()
        if place < 0.15:
            path = f"{GROUP}/{self._rng.choice((*CLUSTER, *PLURALS))}"
        elif place < 0.3:
            within = f"/api/v1/namespaces/{self._namespace()}"
            core = ("/api/v1/namespaces", "/api/v1/pods", f"{within}/pods", f"{within}/events")
            path = self._rng.choice(core)
        else:
            path = self._collection()
        return Wish("GET", path + self._query())

    def _watch(self) -> Wish:
        collections = (self._collection(), f"{GROUP}/{self._rng.choice(PLURALS)}")
        query = self._query().replace("resourceVersion=0", "").removeprefix("?")
        path = f"{self._rng.choice(collections)}?{LISTED}"
        return Wish("GET", f"{path}&{query}" if query else path)

    def _look_inside(self) -> Wish:
        part = self._rng.choice(("log", "exec?command=sh&stdout=1"))
        path = f"{self._collection('replicas')}/{self._name('replicas')}/{part}"
        return Wish("GET", path)

    # What is no object ---------------------------------------------------------------------------

    def _typed(self) -> Wish:
        rng, namespace, name = self._rng, self._namespace(), self._name("replicas")
        uid = rng.choice((f"{{uid:{namespace}/{name}}}", "00000000-0000-4000-8000-000000000000"))
        target = {"namespace": namespace, "name": name, "uid": uid, "number": rng.randrange(5)}
        term = {"scope": "scheduler:one", "epoch": 1}
        requests: tuple[dict[str, Any], ...] = (
            {"type": "Evict", "target": target, "cause": "UserDelete"},
            {"type": "Evict", "target": target, "cause": "Drain", "term": term},
            {"type": "Move", "target": target, "to": "Failed", "word": "gone"},
            {"type": "ReportStage", "target": target, "stage": "Ready", "incarnation": 1},
            {"type": "Bind", "target": target, "node": "n1", "node_uid": "u", "term": term},
            {"type": "RenewLease", "term": term},
            {
                "type": "DropReservation",
                "namespace": namespace,
                "reservation": f"{name}-bind",
                "uid": uid,
                "reason": "mine",
            },
        )
        chosen = rng.sample(requests, rng.choice((1, 1, 2)))
        return Wish("POST", f"{GROUP}/requests", chosen[0] if len(chosen) == 1 else chosen)

    def _review(self) -> Wish:
        asked = {
            "verb": self._rng.choice(("get", "create", "delete")),
            "group": "holdfast.dev",
            "resource": self._rng.choice(PLURALS),
            "namespace": self._namespace(),
        }
        group = "/apis/authorization.k8s.io/v1"
        if self._rng.random() < 0.5:
            body = {"spec": {"namespace": asked["namespace"]}}
            return Wish("POST", f"{group}/selfsubjectrulesreviews", body)
        return Wish(
            "POST", f"{group}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": asked}}
        )

    def _other_path(self) -> Wish:
        paths = (
            *("/metrics", "/healthz", "/readyz", "/version", f"{GROUP}/pulses"),
            *(
                f"{GROUP}/heartbeats",
                f"{GROUP}/targets",
                f"{GROUP}/namespaces/{self._other}/targets",
            ),
            f"{GROUP}/nodes/n1/summons",
            f"{GROUP}/namespaces/{quote('..', safe='')}/workloads",
        )
        return Wish("GET", self._rng.choice(paths))
