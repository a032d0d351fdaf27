"""Prometheus asks where work can be scraped: a target for each address, for those who may know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.commit.record_encoding import encode as stored
from holdfast.model import keys
from holdfast.model.kinds.endpoints import Endpoint, Endpoints
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Reach
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, PATIENCE_S, ApiRig, play, store_of


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await _furnish(rig)
            await story(rig)

    return lambda story: play(played(story))


async def _furnish(rig: ApiRig) -> None:
    ports = {"http": "10.0.0.1:80", "metrics": "10.0.0.1:9100"}
    made = [
        _listed("acme", "web", Endpoint("web-0-0", "n1", "a", ports)),
        _listed("acme", "web.1", Endpoint("web-9-0", "n2", "b", {"http": "10.0.0.2:80"})),
        _listed("other", "api", Endpoint("api-0-0", "n1", "a", {"http": "10.0.0.1:81"})),
        _listed("other", "idle"),
    ]
    writes = tuple(Put(keys.key_of(it), stored(it)) for it in made)
    done = await rig.store.txn(Transaction((), writes))
    await rig.hub_shell.ask("test", Reach(done.revision), PATIENCE_S)


def _listed(namespace: str, name: str, *entries: Endpoint) -> Endpoints:
    metadata = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}")
    return Endpoints(metadata=metadata, endpoints=entries)


async def found(rig: ApiRig, path: str = f"{GROUP}/targets", **more: Any) -> dict[str, str]:
    """Targets with the replica that each is of."""
    answer = await rig.send("GET", path, **more)
    assert answer.code == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json"
    return {
        one: it["labels"]["__meta_holdfast_replica"] for it in answer.body for one in it["targets"]
    }


def test_every_address_is_a_target_with_all_that_is_known_of_it(run: Any) -> None:
    """Also those of the further lists of a large service, under its own name."""

    async def story(rig: ApiRig) -> None:
        assert await found(rig) == {
            "10.0.0.1:80": "web-0-0",
            "10.0.0.1:9100": "web-0-0",
            "10.0.0.2:80": "web-9-0",
            "10.0.0.1:81": "api-0-0",
        }
        (one,) = (await rig.send("GET", f"{GROUP}/targets", port="metrics")).body
        assert one == {
            "targets": ["10.0.0.1:9100"],
            "labels": {
                "__meta_holdfast_namespace": "acme",
                "__meta_holdfast_workload": "web",
                "__meta_holdfast_replica": "web-0-0",
                "__meta_holdfast_node": "n1",
                "__meta_holdfast_zone": "a",
                "__meta_holdfast_port": "metrics",
            },
        }
        assert await found(rig, port="none-such") == {}

    run(story)


def test_a_namespace_has_its_own_targets_for_those_who_work_there(run: Any) -> None:
    async def story(rig: ApiRig) -> None:
        own, others = (f"{GROUP}/namespaces/{it}/targets" for it in ("acme", "other"))
        assert await found(rig, others) == {"10.0.0.1:81": "api-0-0"}
        assert len(await found(rig, own, user="ada")) == 3
        assert await found(rig, own, user="ada", fieldSelector="metadata.name=web.1") == {
            "10.0.0.2:80": "web-9-0"
        }
        for user, path in (("ada", others), ("ada", f"{GROUP}/targets"), ("system:node:n1", own)):
            assert (await rig.send("GET", path, user=user)).code == 403
        assert len(await found(rig, user="prometheus")) == 4

    run(story)
