"""controller:drain: nodes are emptied inside budgets, and say what is left and for whom."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.drain import DRAINED, LATE_MS, NAMED_MAX, TELL_EVERY_MS, DrainController
from holdfast.model.kinds.node import Node, NodeDrain, NodePhase
from holdfast.model.kinds.placement import Taint, TaintEffect, Toleration, TolerationOperator
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.workload import Disruption, WorkloadType
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import ConditionStatus, condition
from holdfast.model.placement.disruption import is_available
from holdfast.model.requests import Evict, Update
from holdfast.observe.cache import ObjectChange
from tests.unit.correct.controller_rig import (
    ADMIN,
    DONE,
    DOWN,
    LOST_AFTER,
    LOST_BEFORE,
    Rig,
    accepted,
)
from tests.unit.correct.views import (
    TERM,
    at,
    later,
    meta,
    node,
    replaced,
    replica,
    view,
    workload,
)

KEY = ("", "node-a")
BUDGET = Disruption(max_unavailable=1)


def draining(*, deadline_ms: int | None = None, **more: Any) -> Node:
    found = node(**more)
    deadline = at(deadline_ms) if deadline_ms is not None else None
    drain = NodeDrain(reason="new disks", deadline=deadline)
    return replaced(found, spec=replaced(found.spec, drain=drain))


def others(obj: Any, name: str) -> Any:
    """The object under another workload's name."""
    metadata = replaced(
        obj.metadata, name=obj.name.replace("web", name), uid=f"{name}-{obj.metadata.uid}"
    )
    if hasattr(obj.spec, "workload"):
        spec = replaced(obj.spec, workload=name, workload_uid=f"{name}-uid-web")
        return replaced(obj, metadata=metadata, spec=spec)
    return replaced(obj, metadata=replaced(metadata, name=name))


def held(phase_claims: tuple[Claim, ...]) -> Reservation:
    owner = ReservationOwner("Workload", "web", "uid-web")
    spec = ReservationSpec(owner, Intent.RECOVERY, at(60_000))
    status = ReservationStatus(claims=phase_claims)
    return Reservation(meta("web-recovery", "acme"), spec=spec, status=status)


def plan(*objects: Any, ms: int = 0, told: int = 1_000, it: DrainController | None = None) -> Any:
    it = it if it is not None else DrainController()
    return it.reconcile(view(*objects, told=told), KEY, TERM, later(ms))


def evicted(made: Any) -> list[str]:
    stops = [request for request in made.requests if isinstance(request, Evict)]
    assert all(request.cause is Cause.DRAIN and request.term == TERM for request in stops)
    return [request.target.name for request in stops]


def said(made: Any) -> Any:
    (update,) = [request for request in made.requests if isinstance(request, Update)]
    assert update.subresource == "status"
    return condition(update.object.status.conditions, DRAINED)


def test_what_runs_is_stopped_and_what_is_left_is_said() -> None:
    """[E3]"""
    made = plan(
        draining(),
        workload(3),
        replica(),
        replica(State.BOUND, 1),
        replica(State.STOPPING, 2),
        replica(State.RELEASED, 3),
        replica(ordinal=4, node="node-b"),
    )
    assert evicted(made) == ["web-0-0", "web-1-0"]
    assert "new disks" in made.requests[0].evidence
    it = said(made)
    assert (it.status, it.reason) == (ConditionStatus.FALSE, "Draining")
    assert it.message == "3 replicas left, 1 of them stopping"


def tainted() -> Node:
    """A node with a NoExecute taint since time 0."""
    found = node()
    taint = Taint("ill", effect=TaintEffect.NO_EXECUTE, time_added=at(0))
    return replaced(found, spec=replaced(found.spec, taints=(taint,)))


def tolerant(obj: Any, *tolerations: Toleration) -> Any:
    placement = replaced(obj.spec.template.placement, tolerations=tolerations)
    template = replaced(obj.spec.template, placement=placement)
    return replaced(obj, spec=replaced(obj.spec, template=template))


def sent_away(made: Any) -> list[str]:
    assert all(it.cause is Cause.TAINT for it in made.requests)
    return [it.target.name for it in made.requests]


def test_a_taint_sends_away_what_does_not_tolerate_it_within_budgets() -> None:
    """All kinds of work but one per node, whose controller follows taints itself. [C6.7]"""
    bad = tainted()
    two = replica(stage=Stage.READY), replica(ordinal=1, stage=Stage.READY)
    assert sent_away(plan(bad, workload(2), *two)) == ["web-0-0", "web-1-0"]
    assert sent_away(plan(bad, workload(2, disruption=BUDGET), *two)) == ["web-0-0"]
    lasting = Toleration("ill", TolerationOperator.EXISTS)
    assert sent_away(plan(bad, workload(2), *(tolerant(it, lasting) for it in two))) == []
    each = workload(2, type=WorkloadType.PER_NODE)
    assert sent_away(plan(bad, each, *two)) == []


def test_a_toleration_for_a_while_ends_in_time() -> None:
    bad = tainted()
    while_ = Toleration("ill", TolerationOperator.EXISTS, toleration_seconds=30)
    work = workload(1), tolerant(replica(), while_)
    early = plan(bad, *work, ms=10_000)
    assert (sent_away(early), early.wake_after_ms) == ([], 20_000 + LATE_MS)
    assert sent_away(plan(bad, *work, ms=30_000 + LATE_MS)) == ["web-0-0"]


def test_a_node_that_is_not_to_be_emptied_is_left_alone() -> None:
    """[C6.7]"""
    assert plan(node(), workload(1), replica()).requests == ()
    assert plan().requests == ()


def test_as_many_go_as_the_budget_has_room_for_and_the_rest_waits_by_name() -> None:
    """What does not work yet costs nothing. [E3]"""
    there = [replica(ordinal=number) for number in range(3)]
    made = plan(draining(), workload(4, disruption=BUDGET), *there, replica(State.BOUND, 3))
    # One of four does not work yet, and one may be missing.
    assert evicted(made) == ["web-3-0"]
    it = said(made)
    assert it.reason == "WaitingForBudgets"
    assert it.message == (
        "4 replicas left, 0 of them stopping; waits for acme/web (1 of 1 allowed are missing)"
    )
    made = plan(draining(), workload(3, disruption=BUDGET), *there)
    assert evicted(made) == ["web-0-0"]


def test_past_the_deadline_nothing_waits_for_budgets() -> None:
    """[C7.6]"""
    there = workload(1, disruption=Disruption(max_unavailable=0)), replica()
    made = plan(draining(deadline_ms=60_000), *there)
    assert evicted(made) == []
    assert made.wake_after_ms == 60_000 + LATE_MS
    assert said(made).message.endswith("budgets apply until 2027-01-15T08:01:00Z")
    made = plan(draining(deadline_ms=60_000), *there, ms=60_000 + LATE_MS)
    assert evicted(made) == ["web-0-0"]
    assert made.wake_after_ms is None


def test_one_per_node_goes_last() -> None:
    """It serves the others until they are gone."""
    each = others(workload(1, type=WorkloadType.PER_NODE), "log")
    log = others(replica(), "log")
    made = plan(draining(), workload(1), each, log, replica())
    assert evicted(made) == ["web-0-0"]
    assert "1 of per-node workloads are evicted last" in said(made).message
    assert evicted(plan(draining(), workload(1), each, log, replica(State.STOPPING))) == []
    assert evicted(plan(draining(), workload(1), each, log)) == ["log-0-0"]


def test_an_empty_node_is_reported_once_the_snapshot_is_whole() -> None:
    """Something may have been bound just before the drain began. [C3]"""
    made = plan(draining(), replica(State.RELEASED))
    assert said(made).status is ConditionStatus.TRUE
    there = made.requests[0].object
    assert plan(there, replica(State.RELEASED)).requests == ()
    made = plan(draining(), told=3)
    assert made.requests == ()
    assert made.wake_after_ms is not None


def test_what_is_reserved_there_is_waited_for() -> None:
    """[E3]"""
    claims = (Claim(node="node-a"), Claim(node="node-b", consumed=True))
    made = plan(draining(), held(claims))
    assert said(made).reason == "WaitingForReservations"
    assert said(made).message.endswith("reserved: acme/web-recovery")
    assert said(plan(draining(), held(claims[1:]))).status is ConditionStatus.TRUE


def test_no_agent_is_asked_on_a_node_that_is_out_of_contact() -> None:
    """Its work ends by the fence. [H4]"""
    away = draining(phase=NodePhase.UNKNOWN, mark=1)
    made = plan(away, workload(1), replica(State.UNKNOWN))
    assert evicted(made) == []
    assert said(made).reason == "NodeOutOfContact"


def test_a_drain_that_is_taken_back_leaves_no_condition_behind() -> None:
    told = plan(draining(), workload(1), replica()).requests[-1].object
    back = replaced(told, spec=replaced(told.spec, drain=None))
    (update,) = plan(back, workload(1), replica()).requests
    assert update.object.status.conditions == ()
    assert plan(update.object, workload(1), replica()).requests == ()


def test_progress_is_reported_once_a_second_and_the_end_at_once() -> None:
    it = DrainController()
    two = [replica(State.STOPPING, number) for number in range(2)]
    there = plan(draining(), workload(2), *two, it=it).requests[0].object
    assert plan(there, workload(2), *two, it=it, ms=1).requests == ()
    made = plan(there, workload(2), two[0], it=it, ms=1)
    assert (made.requests, made.wake_after_ms) == ((), TELL_EVERY_MS - 1)
    assert said(plan(there, it=it, ms=1)).status is ConditionStatus.TRUE
    assert said(plan(there, workload(2), two[0], it=it, ms=2_000)).message.startswith("1 replicas")


def test_a_sentence_names_a_few_and_counts_the_rest() -> None:
    objects: list[Any] = [draining()]
    for number in range(NAMED_MAX + 2):
        name = f"app-{number}"
        owner = workload(1, disruption=Disruption(max_unavailable=0))
        owner = others(owner, name)
        objects += [owner, others(replica(), name)]
    message = said(plan(*objects)).message
    assert message.count("allowed are missing") == NAMED_MAX
    assert message.endswith(", 2 more")


def test_only_events_of_draining_nodes_are_reconciled() -> None:
    """And of what they wait for."""
    it = DrainController()
    there = draining(), workload(1, disruption=Disruption(max_unavailable=0)), replica()
    snapshot = view(*there)
    assert list(it.all_keys(snapshot)) == [KEY]
    assert list(it.all_keys(view(node()))) == []
    near = ObjectChange("replicas", None, replica())
    assert list(it.keys_of(near, snapshot)) == [KEY]
    far = ObjectChange("replicas", None, replica(ordinal=1, node="node-b"))
    assert list(it.keys_of(far, snapshot)) == []
    plan(*there, it=it)
    assert list(it.keys_of(far, snapshot)) == [KEY]
    assert list(it.keys_of(ObjectChange("workloads", None, there[1]), snapshot)) == [KEY]
    assert list(it.keys_of(near, view(node()))) == []
    claim = ObjectChange("reservations", held((Claim(node="node-a"),)), None)
    assert list(it.keys_of(claim, snapshot)) == [KEY]
    drain, plain = draining(), node()
    for before, after, is_news in (
        (plain, drain, True),
        (drain, plain, True),
        (plain, plain, False),
        (None, plain, False),
        (None, drain, True),
        (drain, None, True),
        (drain, drain, False),
    ):
        found = list(it.keys_of(ObjectChange("nodes", before, after), snapshot))
        assert found == ([KEY] if is_news else []), (before, after)


# In a runner -------------------------------------------------------------------------------------


class Draining(Rig):
    """A service of three with a budget of one, on two nodes; a third one has room."""

    def __init__(self) -> None:
        super().__init__()
        self.plane.tenant()
        for name in ("node-a", "node-b"):
            self.plane.node(name)
        self.plane.workload(replicas=3, disruption=BUDGET)
        self.turn()
        self.plane.node("node-c")

    def start(self, controllers: Any = None) -> None:
        super().start((*core_controllers(), DrainController()))

    def drain(self, name: str, *, ends: bool = False, **drain: Any) -> None:
        there = self.get("nodes", name)
        wish = None if ends else NodeDrain(**drain)
        wanted = replaced(there, spec=replaced(there.spec, drain=wish))
        accepted(self.plane.ask(ADMIN, Update(wanted)))

    def said(self, name: str) -> Any:
        return condition(self.get("nodes", name).status.conditions, DRAINED)

    def ready(self) -> int:
        return sum(is_available(it) for it in self.all("replicas"))

    def on(self, name: str) -> list[str]:
        return [
            it.name
            for it in self.all("replicas")
            if it.status.binding is not None
            and it.status.binding.node == name
            and it.status.state is not State.RELEASED
        ]


def test_a_node_is_emptied_with_never_fewer_ready_than_the_budget_says() -> None:
    """[C7.6]"""
    rig = Draining()
    assert len(rig.on("node-a")) == 2
    rig.drain("node-a")
    seen: list[int] = []
    for _ in range(8):
        for act in (rig.run, rig.bind_all, rig.agents):
            act()
            seen.append(rig.ready())
    rig.run()
    assert rig.on("node-a") == []
    assert (min(seen), rig.ready()) == (2, 3)
    assert rig.said("node-a").status is ConditionStatus.TRUE
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []


def test_a_drain_waits_without_a_write_and_goes_on_when_the_budget_does() -> None:
    """[E3, V4]"""
    rig = Draining()
    there = rig.get("workloads", "web", "acme")
    tight = replaced(there.spec, disruption=Disruption(max_unavailable=0))
    accepted(rig.plane.ask(ADMIN, Update(replaced(there, spec=tight))))
    rig.drain("node-a")
    rig.run()
    assert rig.said("node-a").reason == "WaitingForBudgets"
    assert "acme/web" in rig.said("node-a").message
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []
    there = rig.get("workloads", "web", "acme")
    accepted(rig.plane.ask(ADMIN, Update(replaced(there, spec=replaced(tight, disruption=None)))))
    rig.turn()
    assert rig.on("node-a") == []


def test_the_operators_deadline_ends_the_wait() -> None:
    """[C7.6]"""
    rig = Draining()
    there = rig.get("workloads", "web", "acme")
    tight = replaced(there.spec, disruption=Disruption(max_unavailable=0))
    accepted(rig.plane.ask(ADMIN, Update(replaced(there, spec=tight))))
    rig.drain("node-a", deadline=rig.plane.at(30))
    rig.run(29_000)
    assert len(rig.on("node-a")) == 2
    rig.run(10_000)
    rig.turn()
    assert rig.on("node-a") == []


def test_a_drain_can_be_taken_back_at_any_moment() -> None:
    """What was not stopped by then stays, and the node takes work again."""
    rig = Draining()
    rig.drain("node-a")
    rig.run()
    rig.drain("node-a", ends=True)
    rig.turn()
    assert rig.said("node-a") is None
    assert len(rig.on("node-a")) >= 1
    rig.writes()
    rig.run(120_000)
    assert rig.writes() == []


@pytest.mark.parametrize("fate", [LOST_AFTER, LOST_BEFORE, DOWN])
def test_lost_answers_and_crashes_end_in_the_same_state(fate: str) -> None:
    """[C7.4, C7.5, E5]"""
    rig = Draining()
    spoilt: set[str] = set()

    def once(ask: Any) -> str:
        name = f"{type(ask.body).__name__} {getattr(ask.body, 'operation', '')}"
        if name in spoilt:
            return DONE
        spoilt.add(name)
        return fate

    rig.fate = once
    rig.drain("node-a")
    rig.run()
    rig.crash_after = len(rig.sent) + 1
    rig.turn(16)
    assert any(name.startswith("Evict") for name in spoilt)
    assert rig.on("node-a") == []
    assert rig.said("node-a").status is ConditionStatus.TRUE
    assert sorted(rig.states().values()) == ["Running"] * 3
