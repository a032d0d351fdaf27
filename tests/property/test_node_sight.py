"""An agent sees its own node, what is bound to it, and the Secrets of that, however it asks.

Thousands of random reads of a whole server over TLS, as the agent of one of two nodes: by name, as
lists with selectors and in pages, as watches, in every form of answer. What it gets is compared
with what an administrator gets for the same question, less what is none of its business by a rule
of this file's own; and a no must be the same, to the letter, as for what never was.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.api.objects import reads, scope
from tests.canaries import canary
from tests.inner_plane import GROUP, InnerPlane, inner_plane
from tests.lines import Answer, Wish
from tests.scale import scaled

LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
READS = 40_000 if LONG else scaled(400, 1_200)
# A planted bug ends its search, so that more of them cost nothing.
BUG_READS = 40_000 if LONG else 1_200
TENANTS = ("acme", "globex")
ME = "system:node:n1"
FORMS = (
    "application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
)
SELECTORS = (
    *("", "", ""),
    *("labelSelector=holdfast.dev/workload%3Dweb", "labelSelector=holdfast.dev/workload"),
    *("labelSelector=%21holdfast.dev/workload", "labelSelector=none%3Dnone"),
    *("fieldSelector=status.binding.node%3Dn2", "fieldSelector=status.binding.node%3Dn1"),
    *("fieldSelector=status.binding.node!%3Dn1", "fieldSelector=metadata.name%3Dweb-1-0"),
    *("fieldSelector=metadata.namespace%3Dglobex", "resourceVersion=0"),
)
LISTED = "watch=1&sendInitialEvents=true&endsWithInitialEvents=true&allowWatchBookmarks=true"
# Of these it sees nothing at all, not even that there is nothing.
FORBIDDEN = (
    *("workloads", "events", "quotas", "roles", "rolebindings", "tokens", "endpoints"),
    *("reservations", "overrides", "commitments", "workloadrevisions", "decisions"),
)
CLUSTER = ("tenants", "leases", "schedulerpolicies", "grants")
# What becomes of the replicas of each workload, by ordinal.
FATES = (
    *(("n1", "Running"), ("n2", "Running"), ("n1", ""), ("n2", ""), ("", "")),
    *(("n1", "Released"), ("n2", "Released"), ("n1", "Failed")),
)


def _template(name: str) -> dict[str, Any]:
    secret = {"name": f"{name}-secret", "key": "k"}
    return {"command": ["sleep", "60"], "env": [{"name": "P", "secret": secret}]}


async def furnish(plane: InnerPlane) -> None:
    """Work of two tenants on two nodes in several states; `late` has ended on n1 by now."""
    await plane.place("n1", "n2")
    for tenant in TENANTS:
        await plane.tenant(tenant)
        for name, fates in (("web", FATES), ("db", FATES[1::2]), ("late", FATES[5:7])):
            template = _template(name)
            await plane.workload(tenant, name, template, replicas=len(fates))
            for ordinal, (node, state) in enumerate(fates):
                replica = await plane.replica(tenant, name, ordinal, template)
                if node:
                    replica = await plane.bound(replica, node)
                for step in _steps(state):
                    replica = await plane.moved(replica, step)
        for name in ("web", "db", "late", "unused"):
            body = {"metadata": {"name": f"{name}-secret"}, "stringData": {"k": canary("sight")}}
            await plane.make(f"user-{tenant}", f"{GROUP}/namespaces/{tenant}/secrets", body)


def _steps(state: str) -> tuple[str, ...]:
    return {"": (), "Released": ("Running", "Failed", "Released")}.get(state, ("Running", state))[
        : 1 if state == "Running" else None
    ]


class Reader:
    """Reads as the agent of n1, and compares."""

    def __init__(self, plane: InnerPlane, rng: random.Random) -> None:
        self._plane, self._rng = plane, rng
        self.heard: Counter[str] = Counter()

    async def begin(self) -> None:
        """Learn who is where, once: nothing changes afterwards."""
        found = (await self._admin(f"{GROUP}/replicas")).body["items"]
        self._all = [(it["metadata"]["namespace"], it["metadata"]["name"]) for it in found]
        mine = [it for it in found if _node(it) == "n1"]
        self._own = {(it["metadata"]["namespace"], it["metadata"]["name"]) for it in mine}
        self._own.add(("", "n1"))
        self._secrets = {
            (it["metadata"]["namespace"], it["spec"]["template"]["env"][0]["secret"]["name"])
            for it in mine
            if it["status"]["state"] != "Released"
        }

    async def _admin(self, path: str, form: str = FORMS[0]) -> Answer:
        wish = Wish("GET", path, headers={"Accept": form})
        return await self._plane.line("admin").send_patiently(wish)

    async def _mine(self, path: str, form: str = FORMS[0]) -> Answer:
        wish = Wish("GET", path, headers={"Accept": form})
        return await self._plane.line(ME).send_patiently(wish)

    async def read(self) -> None:
        await self._rng.choice((self._list, self._list, self._get, self._secret, self._other))()

    async def _list(self) -> None:
        within = f"namespaces/{self._rng.choice(TENANTS)}"
        paths = (f"{GROUP}/replicas", f"{GROUP}/{within}/replicas", f"{GROUP}/nodes")
        path = self._rng.choice((*paths, "/api/v1/pods", f"/api/v1/{within}/pods"))
        query = self._rng.choice(SELECTORS)
        if path.endswith("/nodes"):
            query = query.replace("status.binding.node", "metadata.name")
        if path.endswith("/nodes") and "namespace" in query:
            query = ""
        if self._rng.random() < 0.3:
            query = f"{LISTED}&{query.replace('resourceVersion=0', '')}".removesuffix("&")
            return await self._compare(f"{path}?{query}", FORMS[0])
        form, limit = self._rng.choice(FORMS), self._rng.choice((0, 0, 1, 2, 3))
        if not limit or query == "resourceVersion=0":
            return await self._compare(f"{path}?{query}" if query else path, form)
        return await self._pages(path, query, form, limit)

    async def _compare(self, path: str, form: str) -> None:
        all_, mine = await self._admin(path, form), await self._mine(path, form)
        assert mine.code == all_.code, (path, mine.raw)
        if mine.code == 200:
            assert names(mine) == [it for it in names(all_) if it in self._own], (path, form)
        self.heard[f"list {mine.code}"] += 1

    async def _pages(self, path: str, query: str, form: str, limit: int) -> None:
        all_ = await self._admin(f"{path}?{query}", form)
        if all_.code != 200:
            return
        found: list[tuple[str, str]] = []
        token = ""
        for _ in range(len(self._all) + 1):
            more = f"&continue={token}" if token else ""
            answer = await self._mine(f"{path}?{query}&limit={limit}{more}", form)
            assert answer.code == 200, (path, answer.raw)
            found += names(answer)
            metadata = answer.body["metadata"]
            assert "remainingItemCount" not in metadata
            token = metadata.get("continue", "")
            if not token:
                break
            begins = msgspec.json.decode(base64.urlsafe_b64decode(token))["start"]
            assert tuple(begins.rstrip("\0").split("/")[-2:]) in self._own, begins
        assert found == [it for it in names(all_) if it in self._own]
        self.heard["pages"] += 1

    async def _get(self) -> None:
        namespace, name = self._rng.choice((*self._all, ("", "n1"), ("", "n2")))
        part = self._rng.choice(("", "/status"))
        path = f"{GROUP}/namespaces/{namespace}/replicas/" if namespace else f"{GROUP}/nodes/"
        if namespace and self._rng.random() < 0.3:
            path, part = f"/api/v1/namespaces/{namespace}/pods/", ""
        await self._one(path, name, part, is_own=(namespace, name) in self._own)

    async def _secret(self) -> None:
        namespace = self._rng.choice(TENANTS)
        name = f"{self._rng.choice(('web', 'db', 'late', 'unused'))}-secret"
        path = f"{GROUP}/namespaces/{namespace}/secrets/"
        await self._one(path, name, "", is_own=(namespace, name) in self._secrets)

    async def _one(self, path: str, name: str, part: str, *, is_own: bool) -> None:
        mine, all_ = await self._mine(path + name + part), await self._admin(path + name + part)
        none = await self._mine(f"{path}no-{name}{part}")
        if is_own and mine.code == 200:
            assert mine.raw == all_.raw
        else:
            assert (mine.code, mine.raw) == (none.code, none.raw.replace(b"no-", b"")), path + name
        # Of its own it reads the whole, not the parts that only people ask for.
        assert (mine.code == 200) == (is_own and not part), (path + name + part, mine.raw)
        self.heard[f"get {mine.code}"] += 1

    async def _other(self) -> None:
        plural = self._rng.choice((*FORBIDDEN, *CLUSTER, "secrets"))
        path = f"{GROUP}/namespaces/{self._rng.choice(TENANTS)}/{plural}"
        if plural in CLUSTER or self._rng.random() < 0.3:
            path = f"{GROUP}/{plural}"
        elif plural != "secrets" and self._rng.random() < 0.3:
            path += "/web"
        watch = f"?{LISTED}" if plural != "decisions" and self._rng.random() < 0.3 else ""
        answer = await self._mine(path + watch)
        assert answer.code == 403, (path, answer.raw)
        self.heard["other 403"] += 1


def _node(replica: Any) -> str:
    return str(replica.get("status", {}).get("binding", {}).get("node", ""))


def names(answer: Answer) -> list[tuple[str, str]]:
    """Namespace and name of everything in an answer: a list, a table, or lines of a watch."""
    lines = [msgspec.json.decode(it) for it in answer.raw.split(b"\n") if it]
    if lines and "type" in lines[0]:
        found = [it["object"] for it in lines if it["type"] in ("ADDED", "MODIFIED")]
    elif "rows" in lines[0]:
        found = [it["object"] for it in lines[0]["rows"]]
    else:
        found = lines[0].get("items", []) if lines else []
    return [(it["metadata"].get("namespace", ""), it["metadata"]["name"]) for it in found]


def campaign(folder: Path, reads: int) -> Counter[str]:
    async def story() -> Counter[str]:
        async with inner_plane(folder) as plane:
            await furnish(plane)
            reader = Reader(plane, random.Random(1))
            await reader.begin()
            for _ in range(reads):
                await reader.read()
            return reader.heard

    return asyncio.run(story())


@pytest.mark.timeout(1_200 if LONG else 600)
def test_an_agent_sees_its_own_and_nothing_else(tmp_path: Path) -> None:
    heard = campaign(tmp_path, READS)
    assert set(heard) >= {"list 200", "pages", "get 200", "get 404", "get 403", "other 403"}


@pytest.mark.parametrize("name", ["visible", "node_needs"])
def test_a_rule_of_sight_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    careless: Any = {"visible": lambda *args: (), "node_needs": lambda *args: True}[name]
    for module in (scope, reads):
        monkeypatch.setattr(module, name, careless)
    with pytest.raises(AssertionError):
        campaign(tmp_path, BUG_READS)


def test_a_watch_of_an_agent_shows_its_own_objects_alone(tmp_path: Path) -> None:
    """While work is bound to it and to another, and moves on. [C8]"""

    async def story() -> None:
        async with inner_plane(tmp_path) as plane:
            await plane.place("n1", "n2")
            await plane.tenant("acme")
            template = {"command": ["sleep", "60"]}
            await plane.workload("acme", "web", template, replicas=9)
            waiting = [await plane.replica("acme", "web", it, template) for it in range(6)]
            now = (await plane.line(ME).ask("GET", f"{GROUP}/replicas")).body
            since = now["metadata"]["resourceVersion"]
            path = f"{GROUP}/replicas?watch=1&timeoutSeconds=1&resourceVersion={since}"
            told = asyncio.create_task(plane.line(ME, 1).ask("GET", path))
            await asyncio.sleep(0)
            for number, replica in enumerate(waiting):
                bound = await plane.bound(replica, f"n{1 + number % 2}")
                await plane.moved(bound, "Running")
            seen = names(await told)
            mine = [("acme", it["metadata"]["name"]) for it in waiting[::2]]
            assert seen == [name for name in mine for _ in ("ADDED", "MODIFIED")]

    asyncio.run(story())
