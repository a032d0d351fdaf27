"""Explanations over HTTP: what a server gathers for them, and who may ask."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commit.record_encoding import encode
from holdfast.explain.answer import Explanation, ProgressStep, StuckReason
from holdfast.host.process.metrics import Metrics
from holdfast.host.server.decision_archive import Decisions
from holdfast.model import keys
from holdfast.model.kinds.replica import Pending
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.nodes.heartbeat import ProgressNote, ProgressNotes, Renew, WorkProgress
from holdfast.model.pulse import Beat, Pulse
from holdfast.model.time import timestamp
from holdfast.model.transaction import Put, Transaction
from tests.unit.correct.views import node, replaced, replica
from tests.unit.host.api.api_rig import GROUP, Answer, ApiRig, play, store_of
from tests.unit.host.server.test_decision_archive import case
from tests.unit.host.server.test_decision_archive import decided as decided_at

WHERE = f"{GROUP}/namespaces/acme/replicas/web-0-0/explanation"
AGENT = "system:node:node-a"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    async def played(story: Any) -> None:
        rig = ApiRig(await store_of("memory", tmp_path))
        decisions = Decisions(tmp_path, Metrics())
        rig.api.services.decisions = decisions
        async with rig:
            await story(rig)
        decisions.close()

    return lambda story: play(played(story))


async def put(rig: ApiRig, *objects: Object) -> None:
    """Let the store hold these, as of now."""
    bare = [replaced(it, metadata=replaced(it.metadata, resource_version="")) for it in objects]
    puts = tuple(Put(keys.key_of(it), encode(it)) for it in bare)
    await rig.store.txn(Transaction((), puts))


def read(answer: Answer) -> Explanation:
    assert answer.code == 200, answer.body
    return msgspec.json.decode(answer.raw, type=Explanation)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_an_agents_report_distinguishes_an_unseen_binding_from_status_that_is_behind(
    run: Any,
) -> None:
    """By the heartbeats that this server received itself. [M2, M3, SC4]"""
    bound = replica(State.BOUND)
    binding = replaced(bound.status.binding, at=timestamp(now_ms() - 60_000))
    bound = replaced(bound, status=replaced(bound.status, binding=binding))

    async def story(rig: ApiRig) -> None:
        await put(rig, bound, node())
        answer = read(await rig.send("GET", WHERE))
        assert (answer.finding.why, answer.finding.leg) == (
            StuckReason.UNTOLD,
            ProgressStep.BINDING,
        )
        renew = Renew("node-a", "uid-node-a", 1)
        renewals = f"{GROUP}/nodes/node-a/renewals"
        assert (await rig.send("POST", renewals, renew, user=AGENT)).code == 200
        answer = read(await rig.send("GET", WHERE))
        assert (answer.finding.why, answer.finding.owner) == (StuckReason.UNSEEN, AGENT)
        assert answer.signs[0].revision == answer.revision == await rig.store.revision()
        said = ProgressNotes((ProgressNote(bound.metadata.uid, WorkProgress.RUNS),))
        renew = replaced(renew, said=said)
        assert (await rig.send("POST", renewals, renew, user=AGENT)).code == 200
        answer = read(await rig.send("GET", WHERE))
        assert (answer.finding.why, answer.finding.then) == (
            StuckReason.UNPROPAGATED,
            "controller:repair",
        )

    run(story)


def test_what_was_decided_and_who_acts_is_part_of_the_evidence(run: Any) -> None:
    """From the archive and from pulses. [M1, M4]"""
    pending = Pending({"NodeFull": 1}, "no room", "Waiting", next_wake=timestamp(now_ms()))
    about = replica(State.PENDING, pending=pending)

    async def story(rig: ApiRig) -> None:
        await put(rig, about, node())
        rounds = [decided_at(4, case("acme", "web-0-0"), at_ms=now_ms())]
        await rig.send("POST", f"{GROUP}/records", {"rounds": rounds}, user="system:scheduler:one")
        beat = Beat("scheduler:one", 2)
        pulse = Pulse("scheduler one", (beat,))
        await rig.send("POST", f"{GROUP}/pulses", pulse, user="system:scheduler:one")
        answer = read(await rig.send("GET", WHERE))
        assert answer.finding.why is StuckReason.NO_PLACE
        assert answer.finding.deadline is not None
        names = [it.what for it in answer.signs]
        assert any(it.startswith("decision d-") for it in names)
        assert "scheduler:one in scheduler one" in names
        assert answer.unknown == {}

    run(story)


def test_what_a_server_does_not_know_is_said(run: Any) -> None:
    """[M2]"""

    async def story(rig: ApiRig) -> None:
        await put(rig, replica(State.PENDING), node())
        rig.api.services.decisions = rig.api.services.renewals = rig.api.services.pulses = None
        answer = read(await rig.send("GET", WHERE))
        assert set(answer.unknown) == {"decisions", "heartbeats"}
        assert answer.finding.no_deadline == "scheduler is not active: no process holds its lease"

    run(story)


def test_work_that_serves_is_compared_with_what_is_counted_of_it(run: Any) -> None:
    """[M2]"""

    async def story(rig: ApiRig) -> None:
        await put(rig, replica(), replica(ordinal=1), node())
        answer = read(await rig.send("GET", WHERE))
        assert answer.finding.why is StuckReason.NOTHING
        other = f"{GROUP}/namespaces/acme/replicas/web-2-0/explanation"
        missing = await rig.send("GET", other)
        assert (missing.code, missing.body["reason"]) == (404, "NotFound")

    run(story)


@pytest.mark.parametrize(
    "user, code",
    [("ada", 200), ("admin", 200), ("bob", 403), (AGENT, 403), ("system:scheduler:one", 403)],
)
def test_only_a_caller_that_may_see_a_replica_may_ask_why(run: Any, user: str, code: int) -> None:
    async def story(rig: ApiRig) -> None:
        await put(rig, replica(), node())
        assert (await rig.send("GET", WHERE, user=user)).code == code

    run(story)
