"""What a Quota says of its use, and a Node of its heartbeat, holds when it is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.commit.record_encoding import encode
from holdfast.model import keys
from holdfast.model.kinds.node import Node, NodeStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.quota.ledger import QuotaLedger, TenantLimits, TenantUse
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, MERGE, ApiRig, events, with_tenant

PATH = "/apis/holdfast.dev/v1/namespaces/acme/quotas"
NODES = f"{GROUP}/nodes"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
QUOTA: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Quota",
    "metadata": {"name": "default", "namespace": "acme"},
    "spec": {"hard": {"cpu": "8"}},
}
COMPONENT = "system:scheduler:main"


async def _used(rig: ApiRig, cpu: int) -> None:
    """The ledger as binds would have it."""
    use = TenantUse(hard={"cpu": cpu, "replicas": 2}, reclaimable={"memory": 1 << 30})
    ledger = QuotaLedger({"acme": TenantLimits(hard={"cpu": 8_000})}, {"acme": use})
    put = Put(keys.quota_ledger("tenant:acme"), encode(ledger))
    await rig.store.txn(Transaction((), (put,)))


def test_a_quota_shows_what_is_used_now_however_it_is_read() -> None:
    """One, many, and as a table. [A4]"""

    async def story(rig: ApiRig) -> None:
        made = await rig.send("POST", PATH, QUOTA)
        assert made.code == 201, made.body
        for cpu, shown in ((1_500, "1500m"), (3_000, "3")):
            await _used(rig, cpu)
            expected = {"hard": {"cpu": shown, "replicas": "2"}, "reclaimable": {"memory": "1Gi"}}
            one = await rig.send("GET", f"{PATH}/default")
            assert one.body["status"]["used"] == expected
            version = made.body["metadata"]["resourceVersion"]
            assert one.body["metadata"]["resourceVersion"] == version
            many = await rig.send("GET", PATH)
            assert [it["status"]["used"] for it in many.body["items"]] == [expected]
            table = await rig.send("GET", PATH, headers={"Accept": TABLE})
            (row,) = table.body["rows"]
            assert any(f"cpu={shown}" in str(cell) for cell in row["cells"][2:]), row["cells"]

    with_tenant(story)


def test_the_use_of_a_quota_says_as_of_when() -> None:
    """By revision and by the calendar, so that its age is known. [A4, D8]"""

    async def story(rig: ApiRig) -> None:
        await rig.send("POST", PATH, QUOTA)
        await _used(rig, 1_000)
        before = datetime.now(UTC) - timedelta(seconds=1)
        status = (await rig.send("GET", f"{PATH}/default")).body["status"]
        assert status["usedRevision"] == await rig.store.revision()
        assert before <= datetime.fromisoformat(status["usedAt"]) <= datetime.now(UTC)

    with_tenant(story)


@pytest.mark.parametrize("is_table", [False, True])
def test_the_events_of_a_watch_show_what_is_used_then(is_table: bool) -> None:
    """Each event as a get at that moment would; bookmarks and deletions come through. [A4]"""

    async def story(rig: ApiRig) -> None:
        await rig.send("POST", PATH, QUOTA)
        await _used(rig, 1_500)
        query = {"allowWatchBookmarks": "true", "sendInitialEvents": "true"}
        query["resourceVersionMatch"] = "NotOlderThan"
        async with rig.watch(PATH, accept=TABLE if is_table else "", **query) as watch:
            (first,) = await events(watch, 1)
            assert _cpu(first[1]) == "1500m"
            ((kind, body),) = await events(watch, 1)
            assert (kind, body["kind"]) == ("BOOKMARK", "Table" if is_table else "Quota")
            await _used(rig, 3_000)
            headers = {"Content-Type": MERGE}
            change = {"metadata": {"labels": {"a": "1"}}}
            patched = await rig.send("PATCH", f"{PATH}/default", change, headers=headers)
            assert patched.body["status"]["used"]["hard"]["cpu"] == "3"
            ((kind, body),) = await events(watch, 1)
            assert (kind, _cpu(body)) == ("MODIFIED", "3")
            await rig.send("DELETE", f"{PATH}/default")
            ((kind, body),) = await events(watch, 1)
            assert (kind, body["kind"]) == ("DELETED", "Table" if is_table else "Quota")

    with_tenant(story)


def _cpu(body: dict[str, Any]) -> str:
    if body["kind"] == "Quota":
        return str(body["status"]["used"]["hard"]["cpu"])
    cell = next(it for it in body["rows"][0]["cells"] if str(it).startswith("cpu=") and "," in it)
    return str(cell).partition(",")[0].removeprefix("cpu=")


async def _node(rig: ApiRig) -> None:
    node = Node(ObjectMeta(name="n1", uid="uid-n1"), status=NodeStatus(incarnation=3))
    await rig.store.txn(Transaction((), (Put(keys.key_of(node), encode(node)),)))


async def _renewed(rig: ApiRig) -> datetime:
    renew = msgspec.json.encode(Renew("n1", "uid-n1", 3))
    answer = await rig.send("POST", f"{NODES}/n1/renewals", renew, user="system:node:n1")
    assert answer.code == 200, answer.body
    return datetime.now(UTC)


def test_a_node_shows_its_last_heartbeat_however_it_is_read() -> None:
    """One, many, as a table and in a watch; no heartbeat writes anything. [A4, H3]"""

    async def story(rig: ApiRig) -> None:
        await _node(rig)
        at = await _renewed(rig)
        revision = await rig.store.revision()
        one = (await rig.send("GET", f"{NODES}/n1")).body
        shown = datetime.fromisoformat(one["status"]["lastHeartbeat"])
        assert abs(shown - at) < timedelta(seconds=30)
        many = (await rig.send("GET", NODES)).body["items"]
        assert [it["status"]["lastHeartbeat"] for it in many] == [one["status"]["lastHeartbeat"]]
        table = (await rig.send("GET", NODES, headers={"Accept": TABLE})).body
        column = [it["name"] for it in table["columnDefinitions"]].index("Heartbeat")
        assert table["rows"][0]["cells"][column] == shown.isoformat(timespec="seconds")
        async with rig.watch(NODES) as watch:
            ((_, body),) = await events(watch, 1)
        assert body["status"]["lastHeartbeat"]
        assert await rig.store.revision() == revision

    with_tenant(story)


def test_a_node_that_never_renewed_has_no_last_heartbeat() -> None:
    async def story(rig: ApiRig) -> None:
        await _node(rig)
        assert "lastHeartbeat" not in (await rig.send("GET", f"{NODES}/n1")).body["status"]

    with_tenant(story)


def test_components_and_readers_of_metadata_get_what_is_stored() -> None:
    """They follow all nodes, and decide by other means."""

    async def story(rig: ApiRig) -> None:
        await _node(rig)
        await _renewed(rig)
        (node,) = (await rig.send("GET", NODES, user=COMPONENT)).body["items"]
        assert "lastHeartbeat" not in node["status"]
        async with rig.watch(NODES, user=COMPONENT) as watch:
            ((_, body),) = await events(watch, 1)
        assert "lastHeartbeat" not in body["status"]
        bare = await rig.send("GET", f"{NODES}/n1", headers={"Accept": PARTIAL})
        assert "status" not in bare.body

    with_tenant(story)
