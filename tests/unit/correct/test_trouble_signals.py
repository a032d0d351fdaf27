"""Each signal of trouble carries no more than its row says, played on the real machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.status import StatusController
from holdfast.correct.trouble_signals import (
    BIND,
    CLEAR,
    CREATE,
    FENCE,
    MARK,
    SIGNALS,
    SUSPECT,
    TELL,
    TRUST,
    Signal,
    act_of,
)
from holdfast.model.access.identity import agent, controller
from holdfast.model.kinds.commitment import Commitment, CommitmentSpec, CommitmentState, Promise
from holdfast.model.kinds.replica import Process
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import AcquireLease, Bind, Evict, Move, RenewLease, ReportStage, Update
from tests.plane import ADMIN, WORKLOADS, accepted, refused
from tests.unit.correct.controller_rig import DONE, DOWN, LOST_AFTER, Rig, target
from tests.unit.correct.rollout_rig import RolloutRig, rolling, version
from tests.unit.propose.test_scheduler_on_a_plane import OnPlane
from tools.signals_page import PAGE, page

NODES = ("node-a", "node-b", "node-c", "node-d", "node-e")
SUSPECTED_MS, MARKED_MS, FENCED_MS = 26_000, 44_000, 120_000


def settled(*names: str, **more: Any) -> Rig:
    """A service that runs, one replica on each node, and controllers at rest."""
    rig = Rig(**more)
    rig.plane.tenant()
    for name in names or NODES:
        rig.plane.node(name)
    rig.plane.workload(replicas=len(names or NODES))
    rig.turn()
    rig.run(120_000)
    rig.sent = []
    return rig


def asked(rig: Rig) -> list[Any]:
    return [ask.body for ask in rig.sent]


def silent(count: int, for_ms: int) -> Callable[[], list[Any]]:
    def story() -> list[Any]:
        rig = settled()
        rig.silent = set(NODES[:count])
        rig.run(for_ms)
        return asked(rig)

    return story


def deaf() -> list[Any]:
    rig = settled()
    rig.silent, rig.deaf = set(NODES), {"s1"}
    rig.run(FENCED_MS)
    return asked(rig)


def back_in_time() -> list[Any]:
    rig = settled()
    for away_ms in (SUSPECTED_MS, MARKED_MS):
        rig.silent = {"node-a"}
        rig.run(away_ms)
        rig.sent, rig.silent = [], set()
        rig.run(30_000)
        trusted = asked(rig)
        assert trusted
        if away_ms == SUSPECTED_MS:
            assert {act_of(it) for it in trusted} - {TELL} == {TRUST}
    return trusted


def unready() -> list[Any]:
    rig = settled()
    replica = rig.all("replicas")[0]
    life = replica.status.binding.node_incarnation
    for stage in (Stage.STARTING, Stage.READY, Stage.STARTING):
        known = rig.get("replicas", replica.name, "acme")
        report = ReportStage(target(known), stage, life)
        accepted(rig.plane.ask(agent(replica.status.binding.node), report))
        rig.run(30_000)
    return asked(rig)


def hanging() -> list[Any]:
    rig = settled()
    for _ in range(5):
        replica = rig.all("replicas")[0]
        binding = replica.status.binding
        again = Move(
            target(replica),
            State.RUNNING,
            "Liveness",
            incarnation=binding.node_incarnation,
            process=Process(),
        )
        accepted(rig.plane.ask(agent(binding.node), again))
        rig.run(10_000)
    return asked(rig)


def scaled(rig: Rig, replicas: int) -> None:
    web = rig.get("workloads", "web", "acme")
    spec = msgspec.structs.replace(web.spec, replicas=replicas)
    accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(web, spec=spec))))


def answers_lost() -> list[Any]:
    rig = settled()
    rig.fate = lambda ask: LOST_AFTER if act_of(ask.body) == CREATE else DONE
    scaled(rig, 8)
    rig.run(120_000)
    assert len(rig.all("replicas")) == 8
    names = [it.object.name for it in asked(rig) if act_of(it) == CREATE]
    ids = [it.operation for it in asked(rig) if act_of(it) == CREATE]
    assert len(set(names)) == len(set(ids)) == 3
    return asked(rig)


def disconnected() -> list[Any]:
    rig = settled()
    rig.untold = {plural for it in rig.controllers for plural in it.follows}
    # No server takes the call either.
    rig.open_stream = lambda stream, plural, since: None  # type: ignore[method-assign]
    scaled(rig, 1)
    rig.run(31_000)
    # Servers still answer questions; a stale cache is no ground for a verdict.
    rig.silent = {"node-a"}
    rig.run(120_000)
    assert rig.runner.withheld
    return asked(rig)


def lease_lost() -> list[Any]:
    rig = settled()
    term = rig.runner.terms()["workload"]
    rig.leases_are_down = True
    rig.run(60_000)
    rig.sent = []
    scaled(rig, 8)
    rig.run(60_000)
    # What would still be in flight when another has taken over.
    replica = rig.all("replicas")[0]
    stale = msgspec.structs.replace(term, epoch=term.epoch - 1)
    late = Evict(target(replica), Cause.SCALE_DOWN, term=stale)
    refused(rig.plane.ask(WORKLOADS, late), Reason.STALE_EPOCH)
    return asked(rig)


def waiting_long() -> list[Any]:
    rig = settled()
    scaled(rig, 8)
    rig.run(5_000)
    rig.sent = []
    rig.run(1_800_000)
    assert len(rig.all("replicas")) == 8
    return asked(rig)


def conflicts() -> list[Any]:
    rig = OnPlane()
    rig.plane.node("node-a")
    rig.start()
    real = rig.answer_request
    tries: list[int] = []

    def answer(request: Any) -> Any:
        if isinstance(request, Bind):
            tries.append(rig.now_ms)
            return Refusal(Reason.NODE_FULL, "another was faster")
        return real(request)

    rig.answer_request = answer  # type: ignore[method-assign]
    rig.works(3)
    rig.pass_time(600_000)
    assert len(tries) > 3
    # Pauses grow: ten minutes of refusals are a few dozen tries for each, not thousands.
    assert len(tries) < 3 * 60
    return [it for it in rig.said if not isinstance(it, AcquireLease | RenewLease | Get)]


def rollout_overdue() -> list[Any]:
    rig = RolloutRig()
    rig.build(4, rolling(1))
    rig.want(template=version(2, broken="yes"))
    # All that may be missing is missing; from here on only the deadline changes anything.
    rig.ship(30)
    rig.sent = []
    rig.ship(120)
    assert rig.status.reason == "ProgressDeadlineExceeded"
    assert rig.ready == 3
    return asked(rig)


def servers_down() -> list[Any]:
    rig = settled()
    scaled(rig, 6)
    rig.fate = lambda ask: DOWN
    rig.run(600_000)
    creates = [it for it in asked(rig) if act_of(it) == CREATE]
    assert len({it.operation for it in creates}) == 1
    # The pause grows to half a minute.
    assert 20 <= len(creates) <= 60
    return asked(rig)


def behind() -> list[Any]:
    controllers = (it for it in all_controllers() if not isinstance(it, StatusController))
    rig = settled(controllers=list(controllers))
    web = rig.get("workloads", "web", "acme")
    assert web.status.observed_generation < web.metadata.generation
    rig.run(1_800_000)
    return asked(rig)


def burning() -> list[Any]:
    rig = settled()
    promise = CommitmentSpec(Promise("web", serving=50, within_seconds=1))
    made = rig.plane.create(Commitment(ObjectMeta(name="c", namespace="acme"), spec=promise))
    broken = msgspec.structs.replace(made.status, state=CommitmentState.BROKEN)
    burnt = Update(msgspec.structs.replace(made, status=broken), "status")
    accepted(rig.plane.ask(controller("review"), burnt))
    rig.run(600_000)
    return asked(rig)


STORIES: dict[str, Callable[[], list[Any]]] = {
    "two heartbeats missed": silent(1, SUSPECTED_MS),
    "three and a half heartbeats missed": silent(1, MARKED_MS),
    "silence for fenceAfter since the mark was seen": silent(1, FENCED_MS),
    "most of a zone silent": silent(3, 80_000),
    "no server reports heartbeats": deaf,
    "a heartbeat before the fence": back_in_time,
    "readiness probe fails": unready,
    "liveness probe fails": hanging,
    "API timeout": answers_lost,
    "watch disconnect": disconnected,
    "lease expired": lease_lost,
    "queue age": waiting_long,
    "repeated bind conflicts": conflicts,
    "rollout deadline": rollout_overdue,
    "controller errors": servers_down,
    "stalled observedGeneration": behind,
    "SLO burn": burning,
}
# What must be seen for the story to have told anything.
SHOWN = {
    "two heartbeats missed": {SUSPECT},
    "three and a half heartbeats missed": {SUSPECT, MARK, "to Unknown"},
    "silence for fenceAfter since the mark was seen": {FENCE, "to Failed", "to Released", CREATE},
    "most of a zone silent": {SUSPECT},
    "a heartbeat before the fence": {CLEAR},
    "readiness probe fails": {TELL},
    "liveness probe fails": {TELL},
    "API timeout": {CREATE},
    "repeated bind conflicts": {BIND},
    "rollout deadline": {TELL},
    "controller errors": {CREATE},
}


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda it: it.name)
def test_a_signal_carries_no_more_than_its_row_says(signal: Signal) -> None:
    """[H3, H4, E4, N3, SC6]"""
    acts = {act_of(it) for it in STORIES[signal.name]()}
    assert acts - {TELL} <= set(signal.may)
    assert acts >= SHOWN.get(signal.name, set())


def test_every_signal_has_its_story() -> None:
    """[H3]"""
    assert list(STORIES) == [it.name for it in SIGNALS]
    assert len(STORIES) >= 10


def test_the_page_shows_the_table() -> None:
    """`make signals-page` rewrites it. [H4]"""
    assert PAGE.read_text() == page()
