"""Decisions over HTTP: who may hand them in, who may read them, and how they look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.host.api.app import Api
from holdfast.host.process.metrics import Metrics
from holdfast.host.server.decision_archive import Decisions
from holdfast.propose.decision_rounds import Case, DecisionRound
from tests.unit.host.api.api_rig import GROUP, TABLE, ApiRig, play, store_of
from tests.unit.host.server.test_decision_archive import case
from tests.unit.host.server.test_decision_archive import decided as decided_at

SCHEDULER = "system:scheduler:one"
RECORDS = f"{GROUP}/records"
OF_ACME = f"{GROUP}/namespaces/acme/decisions"


def decided(sequence: int, *cases: Case) -> DecisionRound:
    """Just now: what is old is not kept."""
    return decided_at(sequence, *cases, at_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        rig = ApiRig(await store_of("memory", tmp_path))
        metrics = Metrics()
        decisions = Decisions(tmp_path, metrics)
        rig.api.services.decisions = decisions
        assert isinstance(rig.api, Api)
        async with rig:
            await story(rig, metrics)
        decisions.close()

    return lambda story: play(played(story))


async def handed_in(rig: ApiRig, *rounds: DecisionRound, user: str = SCHEDULER, **more: Any) -> Any:
    return await rig.send("POST", RECORDS, {"rounds": list(rounds), **more}, user=user)


def test_a_decision_is_read_like_any_other_object(run: Any) -> None:
    """[M4]"""

    async def story(rig: ApiRig, metrics: Metrics) -> None:
        answer = await handed_in(rig, decided(4, case("acme", "web-0-0", "web-1-0")))
        assert (answer.code, answer.body) == (200, {"kept": 2})
        listed = (await rig.send("GET", OF_ACME)).body
        assert listed["kind"] == "DecisionList"
        assert [it["spec"]["replica"] for it in listed["items"]] == ["web-0-0", "web-1-0"]
        name = listed["items"][1]["metadata"]["name"]
        one = (await rig.send("GET", f"{OF_ACME}/{name}")).body
        assert one == listed["items"][1]
        spec = one["spec"]
        assert (spec["chosen"], spec["result"], spec["seed"]) == ("node-a", "Accepted", 5)
        assert spec["nextOwner"] == "system:node:node-a"
        assert spec["operation"] == f"{SCHEDULER}/uid-web-1-0/0/bind-node-a"
        table = (await rig.send("GET", OF_ACME, headers={"Accept": TABLE})).body
        assert [row["cells"][:4] for row in table["rows"]][1] == [
            name,
            "web-1-0",
            "node-a",
            "Accepted",
        ]
        only = await rig.send("GET", OF_ACME, labelSelector="holdfast.dev/replica=web-1-0")
        assert [it["metadata"]["name"] for it in only.body["items"]] == [name]
        assert (await rig.send("GET", f"{OF_ACME}/d-0-1-1-0")).code == 404
        assert (await rig.send("GET", f"{OF_ACME}/nonsense")).code == 404

    run(story)


def test_pages_bring_each_decision_once(run: Any) -> None:
    """Also when more is handed in meanwhile. [M4]"""

    async def story(rig: ApiRig, metrics: Metrics) -> None:
        for sequence in range(1, 6):
            names = [f"r{sequence}-{number}" for number in range(7)]
            await handed_in(rig, decided(sequence, case("acme", *names), case("other", "x-0")))
        seen: list[str] = []
        token = ""
        while True:
            query = {"continue": token} if token else {}
            page = (await rig.send("GET", OF_ACME, limit="4", **query)).body
            seen += [it["spec"]["replica"] for it in page["items"]]
            assert len(page["items"]) <= 4
            token = page["metadata"].get("continue", "")
            if not token:
                break
            await handed_in(rig, decided(90 + len(seen), case("acme", "late-0")))
        expected = [f"r{sequence}-{n}" for sequence in range(5, 0, -1) for n in range(7)]
        assert seen == expected
        assert (await rig.send("GET", OF_ACME, **{"continue": "x"})).code == 400

    run(story)


def test_a_tenant_reads_its_own_and_no_other(run: Any) -> None:
    async def story(rig: ApiRig, metrics: Metrics) -> None:
        await handed_in(rig, decided(1, case("acme", "a-0"), case("other", "b-0")))
        mine = await rig.send("GET", OF_ACME, user="ada")
        assert [it["spec"]["replica"] for it in mine.body["items"]] == ["a-0"]
        theirs = f"{GROUP}/namespaces/other/decisions"
        assert (await rig.send("GET", theirs, user="ada")).code == 403
        assert (await rig.send("GET", f"{GROUP}/decisions", user="ada")).code == 403
        name = (await rig.send("GET", theirs)).body["items"][0]["metadata"]["name"]
        assert (await rig.send("GET", f"{OF_ACME}/{name}", user="ada")).code == 404
        assert len((await rig.send("GET", f"{GROUP}/decisions")).body["items"]) == 2

    run(story)


@pytest.mark.parametrize("user", ["admin", "ada", "system:node:n1", "system:controller:workload"])
def test_only_a_scheduler_hands_any_in(run: Any, user: str) -> None:
    async def story(rig: ApiRig, metrics: Metrics) -> None:
        assert (await handed_in(rig, decided(1, case("acme", "a-0")), user=user)).code == 403
        assert (await rig.send("GET", OF_ACME)).body["items"] == []

    run(story)


def test_a_scheduler_speaks_for_itself_only(run: Any) -> None:
    async def story(rig: ApiRig, metrics: Metrics) -> None:
        forged = await handed_in(rig, decided(1, case("acme", "a-0")), user="system:scheduler:two")
        assert forged.code == 403
        assert "rounds[0].scheduler" in forged.body["message"]

    run(story)


def test_what_no_client_could_read_is_refused(run: Any) -> None:
    async def story(rig: ApiRig, metrics: Metrics) -> None:
        uneven = msgspec.structs.replace(case("acme", "a-0", "b-0"), nodes=["node-a"])
        answer = await handed_in(rig, decided(1, uneven))
        assert (answer.code, "rounds[0].cases[0]" in answer.body["message"]) == (400, True)
        for body in (b"{", b"[]", b'{"rounds":[{"scheduler":1}]}', b'{"rounds":{}}'):
            assert (await rig.send("POST", RECORDS, body, user=SCHEDULER)).code in (400, 422)
        for method in ("POST", "DELETE"):
            assert (await rig.send(method, OF_ACME, {})).code == 405
        assert (await rig.send("PUT", f"{OF_ACME}/x", {})).code == 405

    run(story)


def test_what_is_lost_is_counted_and_schedulers_go_on(run: Any, tmp_path: Path) -> None:
    async def story(rig: ApiRig, metrics: Metrics) -> None:
        await handed_in(rig, decided(1, case("acme", "a-0")), lost=3)
        assert "holdfast_decisions_lost_total 3" in metrics.text()
        assert "holdfast_decisions_kept_total 1" in metrics.text()

    run(story)


def test_only_an_administrator_lets_it_be_decided_again(run: Any) -> None:
    """It costs a core for a while."""

    async def story(rig: ApiRig, metrics: Metrics) -> None:
        await handed_in(rig, decided(1, case("acme", "a-0")))
        name = f"{decided(1).name}-0"
        assert (await rig.send("GET", f"{OF_ACME}/{name}/again", user="ada")).code == 403
        missing = await rig.send("GET", f"{OF_ACME}/{name}/again")
        assert missing.code == 422
        assert "did not exist at that revision" in missing.body["message"]
        assert (await rig.send("GET", f"{OF_ACME}/d-0-1-1-0/again")).code == 404

    run(story)


def test_a_search_for_few_among_many_goes_on_page_by_page(run: Any) -> None:
    """One response examines a bounded number, and says where to go on."""

    async def story(rig: ApiRig, metrics: Metrics) -> None:
        for sequence in range(1, 7):
            names = [f"r{sequence}-{number}" for number in range(500)]
            await handed_in(rig, decided(sequence, case("acme", *names)))
        query = {"labelSelector": "holdfast.dev/replica=r1-7"}
        found: list[str] = []
        pages = 0
        while True:
            page = (await rig.send("GET", OF_ACME, **query)).body
            found += [it["spec"]["replica"] for it in page["items"]]
            pages += 1
            token = page["metadata"].get("continue", "")
            if not token:
                break
            query["continue"] = token
        assert (found, pages) == (["r1-7"], 2)

    run(story)
