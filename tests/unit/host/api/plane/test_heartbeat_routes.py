"""Renewals and heartbeats over HTTP: who may send them, and what the answers say."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commit.record_encoding import encode as stored
from holdfast.model import keys
from holdfast.model.kinds.node import Mark, Node, NodePhase, NodeStatus
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.heartbeat import HeartbeatReport, Renew, Renewed
from holdfast.model.transaction import Put, Transaction
from tests.unit.host.api.api_rig import GROUP, Answer, ApiRig, play, store_of

AGENT = "system:node:n1"
RENEWALS = f"{GROUP}/nodes/n1/renewals"
HEARTBEATS = f"{GROUP}/heartbeats"
RENEW = Renew("n1", "uid-n1", 3)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        async with ApiRig(await store_of("memory", tmp_path)) as rig:
            await story(rig)

    return lambda story: play(played(story))


async def put_node(rig: ApiRig, phase: NodePhase = NodePhase.READY, mark: int = 0) -> None:
    marked = Mark(number=mark, at=datetime(2026, 1, 1, tzinfo=UTC)) if mark else None
    status = NodeStatus(phase=phase, incarnation=3, mark=marked)
    node = Node(ObjectMeta(name="n1", uid="uid-n1"), status=status)
    key = keys.key_of(node)
    await rig.store.txn(Transaction((), (Put(key, stored(node)),)))


def renewed(answer: Answer) -> Renewed:
    assert answer.code == 200, answer.body
    return msgspec.json.decode(answer.raw, type=Renewed)


def test_an_agent_is_let_run_on_until_its_node_is_marked(run: Any) -> None:
    """The very read that the answer rests on shows the mark. [H5, H7]"""

    async def story(rig: ApiRig) -> None:
        await put_node(rig)
        answer = renewed(await rig.send("POST", RENEWALS, RENEW, user=AGENT))
        assert answer.acknowledges(RENEW)
        assert answer.timing.self_stop_after_ms == 30_000
        await put_node(rig, NodePhase.UNKNOWN, mark=7)
        answer = renewed(await rig.send("POST", RENEWALS, RENEW, user=AGENT))
        assert (answer.mark, answer.phase) == (7, NodePhase.UNKNOWN)
        assert not answer.acknowledges(RENEW)

    run(story)


@pytest.mark.parametrize(
    "user, code, reason",
    [
        ("system:anonymous", 401, "Unauthenticated"),
        ("system:node:n2", 403, "NotOwner"),
        ("system:controller:nodes", 403, "NotAllowed"),
        ("admin", 403, "NotAllowed"),
        ("ada", 403, "NotAllowed"),
    ],
)
def test_no_node_renews_for_another(run: Any, user: str, code: int, reason: str) -> None:
    """A renewal by another caller would keep a silent node alive. [A9]"""

    async def story(rig: ApiRig) -> None:
        await put_node(rig)
        answer = await rig.send("POST", RENEWALS, RENEW, user=user)
        assert (answer.code, answer.headers["X-Holdfast-Reason"]) == (code, reason)
        heard = await rig.send("GET", HEARTBEATS, user="system:controller:nodes")
        assert msgspec.json.decode(heard.raw, type=HeartbeatReport).ages_ms == {}

    run(story)


def test_an_agent_of_a_missing_node_gets_an_error(run: Any) -> None:
    """Its agent must register, not wait."""

    async def story(rig: ApiRig) -> None:
        answer = await rig.send("POST", RENEWALS, RENEW, user=AGENT)
        assert (answer.code, answer.headers["X-Holdfast-Reason"]) == (404, "NodeMissing")

    run(story)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"node":"n1"}', b"x" * 2_000_000])
def test_what_is_no_renewal_is_refused(run: Any, body: bytes) -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("POST", RENEWALS, body, user=AGENT)
        assert answer.code in (400, 413), answer.body

    run(story)


def test_a_renewal_is_about_the_node_of_its_path(run: Any) -> None:
    """Counting requests by their paths must not be deceived."""

    async def story(rig: ApiRig) -> None:
        body = Renew("n2", "uid-n2", 1)
        answer = await rig.send("POST", RENEWALS, body, user="system:node:n2")
        assert answer.code == 400

    run(story)


def test_controller_nodes_and_administrators_may_read_who_renewed(run: Any) -> None:
    """[H3]"""

    async def story(rig: ApiRig) -> None:
        await put_node(rig)
        await rig.send("POST", RENEWALS, RENEW, user=AGENT)
        for user in ("system:controller:nodes", "admin"):
            answer = await rig.send("GET", HEARTBEATS, user=user)
            heard = msgspec.json.decode(answer.raw, type=HeartbeatReport)
            assert heard.server == "one"
            assert list(heard.ages_ms) == ["n1"]
            assert 0 <= heard.ages_ms["n1"] <= heard.listening_ms
        for user, code in (("ada", 403), (AGENT, 403), ("system:anonymous", 401)):
            assert (await rig.send("GET", HEARTBEATS, user=user)).code == code

    run(story)
