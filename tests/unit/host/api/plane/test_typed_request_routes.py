"""Requests of components in one body: creates among them, and how much the answer repeats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.host.client.create_form import can_carry, pack, unpack
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import Invalid
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import AcquireLease, Create
from tests.unit.host.api.api_rig import GROUP, WEB, ApiRig
from tests.unit.host.api.test_objects import Run, run

__all__ = ["run"]

REQUESTS = f"{GROUP}/requests"


def workload(name: str, **changes: Any) -> dict[str, Any]:
    return {**WEB, "metadata": {"name": name, "namespace": "acme"}, **changes}


def create(document: dict[str, Any], operation: str = "") -> dict[str, Any]:
    return {"type": "Create", "object": document, "operation": operation}


def test_the_form_brings_the_very_request() -> None:
    obj = decode_trusted(Workload, msgspec.json.encode(WEB))
    asked = Create(obj, operation="op-1")
    assert can_carry(asked)
    assert unpack(pack(asked)) == asked
    region = Create(Region(ObjectMeta(name="eu")))
    assert unpack(pack(region)) == region


def test_an_object_of_a_namespaced_kind_names_its_namespace() -> None:
    """There is no path to say it."""
    obj = decode_trusted(Workload, msgspec.json.encode(WEB))
    nowhere = msgspec.structs.replace(obj, metadata=ObjectMeta(name="web"))
    with pytest.raises(Invalid, match="namespace"):
        unpack(pack(Create(nowhere)))


def test_creates_among_others_have_one_result_each(run: Run) -> None:
    """What is wrong with one is no other one's fault."""

    async def story(rig: ApiRig) -> None:
        lease = msgspec.to_builtins(AcquireLease("controller:workload", 15_000))
        body = [
            create(workload("a"), "op-1"),
            create(workload("b", spec={"unknown": 1})),
            create({"kind": "Nothing"}),
            {"type": "Create", "object": workload("c"), "operation": "x\u0000"},
            lease,
            create(workload("a"), "op-1"),
            create(workload("a")),
        ]
        answer = await rig.send("POST", REQUESTS, body)
        assert answer.code == 200, answer.body
        items = answer.body["items"]
        assert [item["code"] for item in items] == [201, 422, 422, 400, 403, 201, 409]
        assert items[0]["objects"][0]["metadata"]["name"] == "a"
        assert items[5]["replayed"] is True
        assert (await rig.send("GET", f"{GROUP}/namespaces/acme/workloads/b")).code == 404

    run(story)


def test_a_stranger_creates_nothing_in_another_tenant(run: Run) -> None:
    """The path alone does not refuse a caller."""

    async def story(rig: ApiRig) -> None:
        other = workload("a")
        other["metadata"] = {"name": "a", "namespace": "default"}
        answer = await rig.send("POST", REQUESTS, [create(other)], user="ada")
        assert [item["code"] for item in answer.body["items"]] == [403]

    run(story)


def test_a_terse_answer_leaves_out_what_its_sender_watches(run: Run) -> None:
    """Only of creates and binds: who takes a lease has to learn its epoch."""

    async def story(rig: ApiRig) -> None:
        lease = msgspec.to_builtins(AcquireLease("scheduler:main", 15_000))
        name = "system:scheduler:main"
        (held,) = (await rig.send("POST", f"{REQUESTS}?results=terse", [lease], user=name)).body[
            "items"
        ]
        assert held["objects"][0]["spec"]["epoch"] == 1
        (made,) = (
            await rig.send("POST", f"{REQUESTS}?results=terse", [create(workload("t"))])
        ).body["items"]
        assert (made["code"], "objects" in made, made["revision"] > 0) == (201, False, True)

    run(story)
