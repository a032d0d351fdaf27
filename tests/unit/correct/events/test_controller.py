"""controller:events: each occurrence is recorded once, counted and bounded, and never a secret."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import Controller
from holdfast.correct.events import controller as events_controller
from holdfast.correct.events.controller import (
    EVENTS_BURST,
    EVENTS_PER_S,
    WARNINGS_BURST,
    EventsController,
)
from holdfast.correct.garbage.controller import GarbageController
from holdfast.correct.garbage.event_retention import EVENT_KEPT_MS
from holdfast.correct.nodes.controller import NodesController
from holdfast.correct.repair import RepairController
from holdfast.correct.status import StatusController
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.access.identity import agent
from holdfast.model.kinds.replica import Pending, Process
from holdfast.model.kinds.template import EnvVar
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Move, Remove, ReportPending, Update
from tests.plane import ADMIN, SCHEDULER, WORKLOADS, accepted, template
from tests.unit.correct.controller_rig import LOST_AFTER, LOST_BEFORE, Rig, target


def rig(*more: Controller, nodes: tuple[str, ...] = ("node-a",)) -> Rig:
    on = Rig([EventsController(), *more])
    on.plane.tenant()
    for name in nodes:
        on.plane.node(name)
    on.run()
    return on


def told(on: Rig) -> dict[tuple[str, str], int]:
    return {(it.involved_object.name, it.reason): it.count for it in on.all("events")}


def running(on: Rig, replicas: int = 1, **more: Any) -> Any:
    on.plane.workload(replicas=replicas, **more)
    on.turn()
    return on.all("replicas")[0]


def restarted(on: Rig, reason: str = "exit 1") -> None:
    replica = on.all("replicas")[0]
    binding = replica.status.binding
    life = binding.node_incarnation
    move = Move(target(replica), State.RUNNING, reason, incarnation=life, process=Process())
    accepted(on.plane.ask(agent(binding.node), move))


def test_the_life_of_a_replica_is_reported_in_the_shape_that_kubectl_reads() -> None:
    """With whom, when, by whom and on what evidence. [A8, M1, M4]"""
    on = rig(WorkloadController())
    replica = running(on)
    assert told(on) == {("web-0-0", "Scheduled"): 1, ("web-0-0", "Started"): 1}
    event = next(it for it in on.all("events") if it.reason == "Scheduled")
    bound = replica.status.transitions[1]
    assert event.message.startswith("Bound on node-a by system:scheduler:one")
    assert (event.involved_object.kind, event.involved_object.uid) == (
        "Replica",
        replica.metadata.uid,
    )
    assert event.first_timestamp == event.last_timestamp == bound.at
    assert (event.type.value, event.reporting_component) == ("Normal", "controller:events")


def test_what_is_alike_is_one_event_that_counts() -> None:
    """Also when several came before it was looked at. [M1]"""
    on = rig(WorkloadController())
    running(on)
    restarted(on)
    on.run()
    for _ in range(3):
        restarted(on, "exit 7")
    on.run()
    event = next(it for it in on.all("events") if it.reason == "Restarted")
    assert (event.count, event.type.value) == (4, "Warning")
    assert "exit 7" in event.message
    assert event.last_timestamp > event.first_timestamp


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE])
def test_nothing_is_counted_twice_when_answers_are_lost(fate: str) -> None:
    """The event remembers what it has counted. [C7.5, N1.1]"""
    on = rig(WorkloadController())
    running(on)
    lost: list[str] = []

    def spoil(ask: Any) -> str:
        lost.append(fate)
        return fate if len(lost) % 2 else "done"

    on.fate = spoil
    restarted(on)
    on.run(20_000)
    restarted(on)
    on.run(20_000)
    assert lost
    assert told(on)["web-0-0", "Restarted"] == 2


def test_a_new_controller_records_nothing_twice_and_what_was_missed() -> None:
    """It knows by the events, not by memory. [C7.4, K2]"""
    on = rig(WorkloadController(), StatusController())
    running(on)
    restarted(on)
    on.run()
    restarted(on)
    on.start([EventsController(), WorkloadController(), StatusController()])
    on.run(20_000)
    assert told(on)["web-0-0", "Restarted"] == 2
    on.writes()
    on.run(600_000)
    assert on.writes() == []


def test_what_is_long_over_makes_no_event() -> None:
    """Nor is what was forgotten since. [V4]"""
    on = rig(WorkloadController(), GarbageController(), StatusController())
    running(on)
    restarted(on)
    on.run(EVENT_KEPT_MS + 120_000)
    assert told(on) == {}
    on.start([EventsController(), WorkloadController(), GarbageController(), StatusController()])
    on.run(120_000)
    assert told(on) == {}


def test_why_a_replica_waits_is_reported_and_reported_again_when_it_changes() -> None:
    """[E3]"""
    on = rig(WorkloadController())
    on.plane.workload(replicas=1)
    on.run()
    said = ("too little cpu", "too little cpu", "no quota")
    for attempts, message in enumerate(said):
        waiting = on.all("replicas")[0]
        pending = Pending({message.split()[1]: 1}, message, "Waiting", attempts=attempts)
        accepted(on.plane.ask(SCHEDULER, ReportPending(target(waiting), pending)))
        on.run()
    assert told(on) == {("web-0-0", "FailedScheduling"): 2}
    assert on.all("events")[0].message == "no quota"


def test_a_lost_node_and_what_becomes_of_its_work_are_reported() -> None:
    """Each act of repair with its evidence. [I4, M1, SC6, SC13]"""
    nodes = ("node-a", "node-b", "node-c")
    on = rig(WorkloadController(), NodesController(), RepairController(), nodes=nodes)
    running(on)
    on.silent = {"node-a"}
    on.run(200_000)
    of_node = [it for it in on.all("events") if it.involved_object.kind == "Node"]
    assert [(it.namespace, it.reason) for it in of_node if it.reason == "NodeFenced"] == [
        (SYSTEM_NAMESPACE, "NodeFenced")
    ]
    assert {it.reason for it in of_node} == {"NodeSuspect", "NodeUnknown", "NodeFenced"}
    steps = [reason for name, reason in told(on) if name == "web-0-0"]
    assert sorted(steps) == ["Failed", "OutOfContact", "Repaired", "Scheduled", "Started"]
    repaired = next(it for it in on.all("events") if it.reason == "Repaired")
    assert "node node-a is fenced" in repaired.message
    on.silent = set()
    on.register("node-a")
    on.run(20_000)
    assert told(on)["node-a", "NodeReady"] == 1


def test_a_node_that_comes_and_goes_is_counted() -> None:
    """[M1]"""
    on = rig(NodesController(), nodes=("node-a", "node-b", "node-c"))
    for _ in range(3):
        on.silent = {"node-a"}
        on.run(25_000)
        on.silent = set()
        on.run(25_000)
    assert told(on) == {("node-a", "NodeSuspect"): 3, ("node-a", "NodeReady"): 3}


def test_an_operators_decision_is_recorded() -> None:
    """It is outside what a fence guarantees. [A8]"""
    nodes = ("node-a", "node-b", "node-c")
    on = rig(WorkloadController(), NodesController(), nodes=nodes)
    running(on)
    on.silent = {"node-a"}
    on.run(50_000)
    force = Remove("replicas", "acme", "web-0-0", force=True)
    accepted(on.plane.ask(ADMIN, force))
    on.run()
    event = next(it for it in on.all("events") if it.reason == "OperatorsWord")
    assert "forced by admin" in event.message
    assert event.type.value == "Warning"


def test_the_end_of_a_job_is_reported() -> None:
    """[M1]"""
    on = rig()
    job = on.plane.workload("job", replicas=0)
    failed = Condition(
        "Failed",
        ConditionStatus.TRUE,
        1,
        on.plane.at(),
        reason="RetriesExceeded",
        message="index 3 failed 7 times",
    )
    status = msgspec.structs.replace(job.status, conditions=(failed,))
    after = msgspec.structs.replace(job, status=status)
    accepted(on.plane.ask(WORKLOADS, Update(after, "status")))
    on.run()
    (event,) = on.all("events")
    assert (event.reason, event.message) == ("JobFailed", "RetriesExceeded: index 3 failed 7 times")


def test_no_environment_ends_up_in_an_event() -> None:
    """Whatever the work is given stays with the work."""
    on = rig(WorkloadController())
    env = (EnvVar("PASSWORD", "hunter2"),)
    running(on, template=template(env=env))
    restarted(on)
    on.run()
    assert told(on)
    assert all(b"hunter2" not in msgspec.json.encode(it) for it in on.all("events"))


def test_events_are_written_last() -> None:
    """Thousands of births do not make thousands of events; warnings still find a way. [I1]"""
    on = rig(WorkloadController())
    on.plane.node("big", capacity={"cpu": "800", "memory": "3200Gi"})
    on.plane.workload(replicas=150, template=template(cpu="100m", memory="1Mi"))
    began_ms = on.now_ms
    on.turn(2)
    most = EVENTS_BURST - WARNINGS_BURST + (on.now_ms - began_ms) // 1_000 * EVENTS_PER_S
    assert 0 < len(on.all("events")) <= most
    restarted(on)
    on.run()
    assert told(on)["web-0-0", "Restarted"] == 1


def test_a_tenant_with_too_many_events_gets_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there still counts. [B6]"""
    on = rig(WorkloadController())
    running(on)
    restarted(on)
    on.run()
    monkeypatch.setattr(events_controller, "EVENTS_PER_TENANT_MAX", len(on.all("events")))
    restarted(on)
    on.ends(on.all("replicas")[0])
    on.run()
    assert told(on)["web-0-0", "Restarted"] == 2
    assert ("web-0-0", "Failed") not in told(on)
