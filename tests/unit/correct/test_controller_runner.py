"""The controller runner as a machine: leases, lost answers, crashes, and quiet at the end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from holdfast.correct import controller_runner
from holdfast.correct.all_controllers import all_controllers, core_controllers
from holdfast.correct.controller import REQUESTS_PER_PLAN_MAX, Controller
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.correct.controller_worker import ControllerWorker
from holdfast.correct.workload import ordinals
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.errors import InvariantBroken
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import ObjectCaps
from holdfast.model.lifecycle import State
from holdfast.model.machine import Ask
from holdfast.model.requests import AcquireLease, Create, Remove, Update
from tests.scale import some_of
from tests.unit.correct.controller_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    WORKLOADS,
    Rig,
    accepted,
)
from tests.unit.correct.views import view, workload


def world(replicas: int = 3, controllers: Iterable[Controller] | None = None) -> Rig:
    rig = Rig(controllers)
    rig.plane.tenant()
    for name in ("node-a", "node-b", "node-c"):
        rig.plane.node(name)
    rig.plane.workload(replicas=replicas)
    return rig


def scale(rig: Rig, replicas: int) -> None:
    workload = rig.get("workloads", "web", "acme")
    spec = msgspec.structs.replace(workload.spec, replicas=replicas)
    accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(workload, spec=spec))))


def creates(rig: Rig) -> list[str]:
    made = [it.body.object for it in rig.sent if isinstance(it.body, Create)]
    return [it.name for it in made if isinstance(it, Replica)]


def test_a_service_comes_to_run_and_then_nothing_is_written_any_more() -> None:
    """Ten minutes with resyncs at the fixed point bring not a single write. [V4, I1]"""
    rig = world()
    rig.turn()
    assert set(rig.states().values()) == {"Running"}
    assert len(rig.states()) == 3
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
    assert rig.runner.cache.missed == 0


def test_a_restarted_runner_at_the_fixed_point_writes_nothing() -> None:
    """It resumes from what is stored, and that is as it should be. [C7.4]"""
    rig = world()
    rig.turn()
    rig.writes()
    rig.start()
    rig.run(120_000)
    assert rig.writes() == []
    assert sorted(rig.runner.terms()) == sorted(it.name for it in all_controllers())


def story(rig: Rig) -> list[Any]:
    """A service is made, one of its replicas fails, it is scaled down, and it is deleted."""
    seen: list[Any] = []
    rig.turn()
    seen.append(_snapshot(rig))
    failing = next(it for it in rig.all("replicas") if it.spec.ordinal == 1)
    rig.ends(failing)
    rig.turn()
    seen.append(_snapshot(rig))
    scale(rig, 1)
    rig.turn()
    seen.append(_snapshot(rig))
    rig.plane.ask(ADMIN, Remove("workloads", "acme", "web"))
    rig.turn()
    seen.append(_snapshot(rig))
    return seen


def _snapshot(rig: Rig) -> Any:
    workload = rig.get("workloads", "web", "acme")
    progress = workload.status.progress if workload is not None else None
    counts = msgspec.structs.replace(progress, last_action="", last_error="") if progress else None
    return rig.states(), counts


CALM = [
    {"web-0-0": "Running", "web-1-0": "Running", "web-2-0": "Running"},
    {"web-0-0": "Running", "web-1-1": "Running", "web-2-0": "Running"},
    {"web-0-0": "Running"},
    {},
]


def test_a_service_lives_and_goes_without_a_trace() -> None:
    """Made, replaced after a failure, scaled down, deleted with its last replica. [I5]"""
    rig = world()
    assert [states for states, _ in story(rig)] == CALM
    assert rig.get("workloads", "web", "acme") is None


def test_a_crash_after_any_write_ends_in_the_same_state() -> None:
    """The write took effect, its answer went nowhere, and a new life takes over. [C7.4, K2, N5]"""
    calm = world(controllers=core_controllers())
    expected = story(calm)
    for at in range(1, len(calm.sent) + 1):
        rig = world(controllers=core_controllers())
        rig.crash_after = at
        assert story(rig) == expected, f"after a crash at write {at}"
        assert rig.crash_after is None


@pytest.mark.parametrize("fate", some_of([LOST_AFTER, LOST_BEFORE, DOWN], 3))
def test_any_lost_answer_or_request_ends_in_the_same_state(fate: str) -> None:
    """Whichever write it hits, nothing is made twice and nothing stays undone. [N1.1, E5, C7.5]"""
    calm = world(controllers=core_controllers())
    expected = story(calm)
    for at in range(1, len(calm.sent) + 1):
        rig = world(controllers=core_controllers())
        rig.fate = lambda ask, rig=rig, at=at: fate if len(rig.sent) == at else DONE
        assert story(rig) == expected, f"{fate} at write {at}"


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE, DOWN])
def test_every_first_try_may_be_lost(fate: str) -> None:
    """Each request is lost once; its repetition has the same operation id. [E5, N1.1]"""
    rig = world()
    tried: dict[str, bytes] = {}

    def first_is_lost(ask: Ask) -> str:
        operation = getattr(ask.body, "operation", "")
        body = msgspec.json.encode(ask.body)
        if not operation or operation in tried:
            assert tried.get(operation, body) == body, "another request under the same id"
            return DONE
        tried[operation] = body
        return fate

    rig.fate = first_is_lost
    assert [states for states, _ in story(rig)] == CALM


def test_nothing_is_written_without_a_lease() -> None:
    """Who cannot get its lease looks on, and acts as soon as it has it. [K1, K3]"""
    rig = world()
    rig.leases_are_down = True
    rig.run(60_000)
    assert rig.writes() == []
    rig.leases_are_down = False
    rig.run(10_000)
    assert "Create" in rig.writes()


def test_a_holder_that_is_not_acknowledged_any_more_stops() -> None:
    """Renewals fail for longer than the lease lasts: no writes, though no other took over. [K3]"""
    rig = world()
    rig.turn()
    rig.leases_are_down = True
    rig.run(20_000)
    rig.writes()
    scale(rig, 5)
    rig.run(30_000)
    assert rig.writes() == []
    rig.leases_are_down = False
    rig.turn()
    assert len(rig.states()) == 5


def test_a_stale_epoch_is_taken_for_a_lost_lease() -> None:
    """Another took over: the write is refused, and the lease counts as lost. [K1, K2]"""
    rig = world()
    rig.turn()
    lease = rig.get("leases", "controller-workload")
    taken = AcquireLease(lease.spec.scope, 15_000, lease.spec.epoch, lease.spec.renewals)
    accepted(rig.plane.ask(WORKLOADS, taken))
    for replica in rig.all("replicas"):
        assert replica.status.state is State.RUNNING
    rig.writes()
    scale(rig, 1)
    rig.run(500)
    assert "Evict" in rig.writes()
    assert "workload" not in rig.runner.terms()
    assert set(rig.states().values()) == {"Running"}
    rig.run(25_000)
    rig.turn()
    assert rig.states() == {"web-0-0": "Running"}


def test_what_another_process_holds_is_taken_over_only_when_it_stands_still() -> None:
    """Two processes share an identity; the lease says which of them acts. [K1, K3]"""
    rig = world()
    rig.plane.ask(WORKLOADS, AcquireLease("controller:workload", 15_000, instance="other"))
    rig.run(14_000)
    assert creates(rig) == []
    assert {it.name for it in all_controllers()} - {*rig.runner.terms()} == {"workload"}
    rig.run(10_000)
    assert len(creates(rig)) == 3


def test_a_key_is_not_looked_at_before_its_last_writes_are_seen() -> None:
    """The watch stands still after the first birth: three births, then patience. [C3, N3]"""
    rig = world()

    def stop_telling(ask: Ask) -> str:
        if isinstance(ask.body, Create):
            rig.untold = {"replicas"}
        return DONE

    rig.fate = stop_telling
    rig.run(20_000)
    assert creates(rig) == ["web-0-0", "web-1-0", "web-2-0"]
    rig.fate, rig.untold = (lambda ask: DONE), set()
    rig.turn()
    assert creates(rig) == ["web-0-0", "web-1-0", "web-2-0"]


def test_nothing_is_done_on_a_snapshot_that_is_too_old() -> None:
    """A node falls silent and so does a stream: it is not marked on what was known before. [E4]"""
    rig = world()
    rig.turn()
    rig.run(rig.bookmark_ms - rig.now_ms)
    rig.silent, rig.untold = {"node-a"}, {"replicas"}
    rig.run(60_000)
    assert rig.phase("node-a") == "Suspect"
    assert rig.runner.withheld > 0
    rig.untold = set()
    rig.run(20_000)
    assert rig.phase("node-a") == "Unknown"


def test_a_large_service_is_made_in_bounded_pieces() -> None:
    """No step sends more than a plan's worth, and all of it comes into being. [I1]"""
    rig = world(replicas=150)
    rig.run(20_000)
    assert len(rig.states()) == 150
    assert sorted(creates(rig)) == sorted(rig.states())
    assert 1 < rig.most_at_once <= REQUESTS_PER_PLAN_MAX + 8


def test_no_plan_is_made_again_for_each_answer_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan for which there is hardly room only a part would be sent each time. [I1]"""
    planned: list[Any] = []
    reconcile = WorkloadController.reconcile

    def counted(self: WorkloadController, *arguments: Any) -> Any:
        plan = reconcile(self, *arguments)
        planned.extend(plan.requests)
        return plan

    monkeypatch.setattr(WorkloadController, "reconcile", counted)
    monkeypatch.setattr(ordinals, "ORDINALS_PER_RANGE", 16)
    monkeypatch.setattr(controller_runner, "ASKS_PER_CONTROLLER_MAX", 40)
    monkeypatch.setattr(controller_runner, "ROOM_MIN", 16)
    rig = world(replicas=150)
    rig.run(20_000)
    assert len(rig.states()) == 150
    assert len(planned) <= 1.5 * 150


def test_a_small_workload_does_not_wait_for_the_births_of_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for within a few turns, while the large one has hundreds left. [I1, E6]"""
    span, asks = 8, 16
    monkeypatch.setattr(ordinals, "ORDINALS_PER_RANGE", span)
    monkeypatch.setattr(controller_runner, "ASKS_PER_CONTROLLER_MAX", asks)
    monkeypatch.setattr(controller_runner, "ROOM_MIN", span)
    rig = world(replicas=400, controllers=[WorkloadController()])
    wanted = ["small"]

    def fate(ask: Ask) -> str:
        if isinstance(ask.body, Create) and wanted:
            rig.plane.workload(wanted.pop(), replicas=3)
        return DONE

    rig.fate = fate
    rig.run(20_000)
    born = creates(rig)
    assert len(born) == 403
    before = born.index("small-0-0")
    assert {"small-1-0", "small-2-0"} <= set(born[before : before + 3])
    # What was in flight when the small one became known, and two turns: for the workload itself
    # and for its places.
    assert before <= 2 * asks + 2 * span


def test_ten_thousand_replicas_are_one_turn_among_those_of_others() -> None:
    """Of another workload, of the same tenant or of another one. [I1, E6]"""
    controller = WorkloadController()
    member = ControllerWorker(controller, random.Random(1))
    for key in controller.all_keys(view(workload(10_000))):
        member.queue.add(key, 0)
    assert member.queue.take(0) == ("acme", "web")
    later = [("acme", "small/0"), ("globex", "api/0")]
    for key in later:
        member.queue.add(key, 1)
    taken = [member.queue.take(1) for _ in range(4)]
    assert set(later) <= set(taken)


def test_a_refusal_is_tried_again_with_growing_pauses_until_it_is_none() -> None:
    """A tenant's cap stands in the way for ten minutes; then it is raised. [C7.6, E5]"""
    rig = world()
    quota = rig.plane.quota(objects=ObjectCaps(replicas=2))
    rig.run(600_000)
    assert sorted(rig.states()) == ["web-0-0", "web-1-0"]
    assert len(creates(rig)) < 50
    spec = msgspec.structs.replace(quota.spec, objects=ObjectCaps(replicas=5))
    accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(quota, spec=spec))))
    rig.run(31_000)
    assert sorted(rig.states()) == ["web-0-0", "web-1-0", "web-2-0"]


def test_each_request_is_sent_as_its_own_controller() -> None:
    """One machine speaks for several identities, each for what it owns. [A9, C6.7]"""
    rig = world()
    rig.turn()
    senders = {(ask.sender, type(ask.body).__name__) for ask in rig.sent}
    assert senders == {
        ("system:controller:workload", "Create"),
        ("system:controller:status", "Update"),
        ("system:controller:endpoints", "Create"),
        ("system:controller:endpoints", "ReportStage"),
        ("system:controller:events", "Create"),
        ("system:controller:rollout", "Create"),
        ("system:controller:rollout", "Update"),
    }


def test_a_runner_has_each_controller_once() -> None:
    """Two of one name would fight over one lease."""
    with pytest.raises(InvariantBroken):
        ControllerRunner((*all_controllers(), all_controllers()[0]), rng=_Half())


class _Half:
    def random(self) -> float:
        return 0.5


@pytest.mark.parametrize("plural", ["workloads", "replicas", "nodes"])
def test_events_that_never_come_are_found_by_the_resync(plural: str) -> None:
    """One kind's stream loses everything but its signs of life; its lists do not. [C7.7, N3]"""
    rig = world(replicas=2)
    rig.turn()
    rig.lossy = {plural}
    scale(rig, 3)
    rig.silent = {"node-a"}
    for _ in range(8):
        rig.turn(10)
    running = [it for it in rig.all("replicas") if it.status.state is State.RUNNING]
    assert sorted(it.spec.ordinal for it in running) == [0, 1, 2]
    assert rig.phase("node-a") == "Fenced"
    assert "node-a" not in {it.status.binding.node for it in running}
    assert rig.runner.cache.missed > 0


def test_a_server_that_owes_an_answer_is_not_asked_again() -> None:
    """Questions do not pile up on the way to a server that is slow. [I1]"""
    rig = Rig(servers=("s1", "s2"))
    rig.mute = {"s2"}
    rig.run(60_000)
    assert rig.questions.count("s2") == 1
    assert 20 <= rig.questions.count("s1") <= 35
