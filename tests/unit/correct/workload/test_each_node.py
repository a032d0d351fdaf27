"""One per node: on every node that fits, on no other, and never two on one."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.workload.controller import WorkloadController
from holdfast.correct.workload.each_node import is_same_home, pin_to_node
from holdfast.correct.workload.endings import ENDINGS_ANNOTATION
from holdfast.model.kinds.node import Node, NodeDrain, NodePhase, Protection
from holdfast.model.kinds.placement import Placement, Taint, TaintEffect, Toleration
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object
from holdfast.model.placement import vacancy as places
from holdfast.model.placement.vacancy import home_of
from holdfast.model.requests import Create, Evict, Move, Remove, Term, Update
from holdfast.observe.cache import ObjectChange
from tests.plane import accepted, bind, template
from tests.unit.correct.controller_rig import ADMIN, SCHEDULER, Rig
from tests.unit.correct.views import (
    AGENT,
    NOW,
    TEMPLATE,
    TERM,
    later,
    meta,
    node,
    record,
    replaced,
    replica,
    view,
    workload,
)

PLACES = ("acme", "web/0")
TENANT = Tenant(meta("acme"))


def daemon(**placement: Any) -> Workload:
    made = replaced(TEMPLATE, placement=Placement(**placement))
    return workload(1, type=WorkloadType.PER_NODE, template=made)


def at_home(
    home: str, state: State = State.RUNNING, ordinal: int = 0, incarnation: int = 0, **more: Any
) -> Replica:
    made = pin_to_node(TEMPLATE, home)
    return replica(state, ordinal, incarnation, node=home, template=made, **more)


def spec(name: str, **changes: Any) -> Node:
    made = node(name)
    return replaced(made, spec=replaced(made.spec, **changes))


def plan(*objects: Object, after_ms: int = 0) -> Any:
    return WorkloadController().reconcile(view(TENANT, *objects), PLACES, TERM, later(after_ms))


def short(made: Any) -> list[tuple[str, str]]:
    return [_short(it) for it in made.requests]


def _short(request: Any) -> tuple[str, str]:
    match request:
        case Create(object=obj):
            return "Create", home_of(obj)
        case Move(target=aim, to=to):
            return to.value, aim.name
        case Evict(target=aim, cause=cause):
            return cause.value, aim.name
        case Remove(name=name):
            return "Remove", name
    raise AssertionError(request)


def test_every_node_gets_one_of_its_own() -> None:
    """The place follows from the node's name, so every server makes the same. [I1, E5]"""
    nodes = [node("node-b"), node("node-a")]
    made = plan(daemon(), *nodes)
    assert short(made) == [("Create", "node-a"), ("Create", "node-b")]
    assert made == plan(daemon(), *reversed(nodes))
    first, second = (it.object for it in made.requests)
    assert first.spec.ordinal != second.spec.ordinal
    assert first.spec.template.placement.node_selector == {"holdfast.dev/node": "node-a"}
    assert first.spec.revision == second.spec.revision
    assert short(plan(daemon(), *nodes, at_home("node-a"))) == [("Create", "node-b")]


def test_the_later_of_two_nodes_at_one_place_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two new ones ask for the same one; the other is seen to when one has it."""
    monkeypatch.setattr(places, "PLACES_MAX", 1)
    both = [node("node-a"), node("node-b")]
    made = plan(daemon(), *both)
    assert [it.object.spec.ordinal for it in made.requests] == [0, 0]
    assert len({it.operation for it in made.requests}) == 2
    monkeypatch.setattr(places, "PLACES_MAX", 2)
    place = places.first_place("node-b")
    made = plan(daemon(), *both, at_home("node-a", ordinal=place))
    assert [it.object.spec.ordinal for it in made.requests] == [1 - place]


@pytest.mark.parametrize(
    "where, fits",
    [
        (spec("node-a"), True),
        (spec("node-a", cordoned=True), False),
        (spec("node-a", drain=NodeDrain()), False),
        (spec("node-a", taints=(Taint("gpu"),)), False),
        (spec("node-a", taints=(Taint("gpu", effect=TaintEffect.PREFER_NO_SCHEDULE),)), True),
        (spec("node-a", zone="b"), False),
        (spec("node-a", protected_for=Protection(tenants=("others",))), False),
        (node("node-a", NodePhase.SUSPECT), False),
        (node("node-a", NodePhase.UNKNOWN, mark=1), False),
        (node("a." + "b" * 62), False),
    ],
)
def test_a_node_that_does_not_take_the_work_gets_none(where: Node, fits: bool) -> None:
    """By the rules that the scheduler and the commit go by. [D4]"""
    assert bool(plan(daemon(zones=("a",)), where).requests) is fits


def test_a_taint_that_is_tolerated_does_not_keep_it_away() -> None:
    """As anywhere else."""
    stated = daemon(tolerations=(Toleration("gpu"),))
    assert short(plan(stated, spec("node-a", taints=(Taint("gpu"),)))) == [("Create", "node-a")]


@pytest.mark.parametrize(
    "where, leaves",
    [
        (spec("node-a", cordoned=True), False),
        (spec("node-a", drain=NodeDrain()), False),
        (spec("node-a", taints=(Taint("gpu"),)), False),
        (node("node-a", NodePhase.UNKNOWN, mark=1), False),
        (spec("node-a", taints=(Taint("gpu", effect=TaintEffect.NO_EXECUTE),)), True),
        (spec("node-a", zone="b"), True),
        (node("node-b"), True),
    ],
)
def test_what_runs_stays_unless_its_node_is_not_its_place_any_more(
    where: Node, leaves: bool
) -> None:
    """A cordon is for new work; another controller carries out a drain."""
    made = short(plan(daemon(zones=("a",)), where, at_home("node-a")))
    assert (("ScaleDown", "web-0-0") in made) is leaves
    waits = short(plan(daemon(zones=("a",)), where, at_home("node-a", State.PENDING)))
    assert (("Released", "web-0-0") in waits) is leaves


def test_nothing_is_stopped_for_a_node_that_may_not_have_arrived_yet() -> None:
    """Kinds arrive on streams of their own, and another controller may have known more. [I1]"""
    mine = at_home("node-new")
    behind = view(TENANT, daemon(), node(), mine, told=6)
    waits = WorkloadController().reconcile(behind, PLACES, TERM, NOW)
    assert (short(waits), waits.wake_after_ms) == ([("Create", "node-a")], 1_000)
    elsewhere = view(TENANT, daemon(zones=("z",)), spec("node-new"), mine, told=6)
    waits = WorkloadController().reconcile(elsewhere, PLACES, TERM, NOW)
    assert (short(waits), waits.wake_after_ms) == ([], 1_000)


def test_labels_decide_where_it_belongs() -> None:
    """A node that loses its label loses its replica."""
    ssd = replaced(node("node-a"), metadata=meta("node-a", labels={"disk": "ssd"}))
    assert short(plan(daemon(node_selector={"disk": "ssd"}), ssd, node("node-b"))) == [
        ("Create", "node-a")
    ]
    made = plan(daemon(node_selector={"disk": "hdd"}), ssd, at_home("node-a"))
    assert short(made) == [("ScaleDown", "web-0-0")]


def test_its_next_incarnation_comes_at_the_same_place_after_its_pause() -> None:
    """And the old object goes once the new one is there."""
    steps = (record(State.FAILED, AGENT, 0, State.RUNNING),)
    old = at_home("node-a", State.RELEASED, ordinal=7, transitions=steps)
    assert plan(daemon(), node(), old).wake_after_ms == 1_000
    (birth,) = plan(daemon(), node(), old, after_ms=1_000).requests
    assert birth.object.name == "web-7-1"
    assert birth.object.metadata.annotations == {ENDINGS_ANNOTATION: "1"}
    new = at_home("node-a", State.PENDING, ordinal=7, incarnation=1)
    assert short(plan(daemon(), node(), old, new)) == [("Remove", "web-7-0")]


def test_of_two_on_one_node_the_one_that_came_further_stays() -> None:
    """Two controllers that knew different nodes may have made them. [C6.4]"""
    mine = [at_home("node-a", ordinal=3), at_home("node-a", State.PENDING, ordinal=5)]
    assert short(plan(daemon(), node(), *mine)) == [("Released", "web-5-0")]


@pytest.mark.parametrize("state", [State.UNKNOWN, State.STOPPING, State.FAILED, State.SUCCEEDED])
def test_no_successor_comes_before_the_last_one_was_released(state: State) -> None:
    """What may still run is not doubled. [INV2, C6.4]"""
    assert short(plan(daemon(), node(), at_home("node-a", state))) == []


def test_events_of_a_node_concern_all_per_node_work_and_only_if_they_matter() -> None:
    """What a node reports of itself all day queues no key."""
    controller, stated = WorkloadController(), daemon()
    snapshot = view(TENANT, stated, node())
    told = replaced(node(), status=replaced(node().status, images=("busybox",)))
    assert is_same_home(node(), told)
    assert list(controller.keys_of(ObjectChange("nodes", node(), told), snapshot)) == []
    cordoned = spec("node-a", cordoned=True)
    assert list(controller.keys_of(ObjectChange("nodes", node(), cordoned), snapshot)) == [PLACES]
    assert list(controller.keys_of(ObjectChange("nodes", None, node()), snapshot)) == [PLACES]
    assert list(controller.keys_of(ObjectChange("tenants", TENANT, TENANT), snapshot)) == [PLACES]


def test_a_large_fleet_is_not_reconciled_for_each_of_its_events() -> None:
    """A pause by size, and nothing is forgotten."""
    controller = WorkloadController()
    nodes = [node(f"node-{number}") for number in range(50)]
    snapshot = view(TENANT, daemon(), *nodes)
    assert len(controller.reconcile(snapshot, PLACES, TERM, NOW).requests) == 50
    again = controller.reconcile(snapshot, PLACES, TERM, NOW)
    assert (again.requests, again.wake_after_ms) == ((), 5)
    assert len(controller.reconcile(snapshot, PLACES, TERM, later(5)).requests) == 50


# On the real authority ----------------------------------------------------------------------------


def bind_home(rig: Rig, term: Term) -> None:
    """A scheduler that sends each to the node that it asks for."""
    for one in rig.all("replicas"):
        if one.status.state is State.PENDING:
            there = rig.get("nodes", home_of(one))
            accepted(rig.plane.ask(SCHEDULER, bind(one, there, term)))


def homes(rig: Rig) -> dict[str, str]:
    return {home_of(it): it.status.state.value for it in rig.all("replicas")}


def test_nodes_come_and_go_and_each_has_one() -> None:
    """A new node gets one, a cordoned one keeps its own, a drained one gets none back. [I1]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.node("node-b")
    rig.plane.workload(type=WorkloadType.PER_NODE, template=template())
    term = rig.plane.term(SCHEDULER)
    rig.run()
    bind_home(rig, term)
    rig.agents()
    assert homes(rig) == {"node-a": "Running", "node-b": "Running"}
    rig.plane.node("node-c")
    rig.run()
    assert homes(rig)["node-c"] == "Pending"
    bind_home(rig, term)
    rig.agents()
    rig.run()
    status = rig.get("workloads", "web", "acme").status
    assert (status.progress.desired, status.progress.ready) == (3, 3)
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
    there = rig.get("nodes", "node-c")
    drained = replaced(there, spec=replaced(there.spec, drain=NodeDrain()))
    accepted(rig.plane.ask(ADMIN, Update(drained)))
    rig.run()
    assert homes(rig)["node-c"] == "Stopping"
    rig.agents()
    rig.run(60_000)
    assert homes(rig) == {"node-a": "Running", "node-b": "Running", "node-c": "Released"}
    assert rig.get("workloads", "web", "acme").status.progress.desired == 2
