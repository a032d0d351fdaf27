"""controller:nodes: suspicion, marks, fences, and what holds them back."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.correct.nodes.controller import LISTEN, LOSE_AFTER_MS, NodesController
from holdfast.correct.nodes.disruption_limits import MARKS_PER_ZONE_MAX
from holdfast.model.kinds.node import Node, NodePhase, NodeSpec
from holdfast.model.kinds.override import Override, OverrideScope, OverrideSpec, OverrideType
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport
from holdfast.model.registry import SYSTEM_NAMESPACE
from holdfast.model.requests import Accepted, Create, JudgeNode, Move, NodeAction, Term
from holdfast.model.time import timestamp
from tests.plane import ADMIN
from tests.scale import scaled, some_of
from tests.unit.correct.controller_rig import DONE, DOWN, LOST_AFTER, LOST_BEFORE, Rig
from tests.unit.correct.views import NOW, TERM, later, node, replica, view

NAMES = ("node-a", "node-b", "node-c", "node-d")


def world(*names: str, zone: str = "eu-west-a", **more: Any) -> Rig:
    rig = Rig(**more)
    rig.plane.tenant()
    for name in names or NAMES:
        agent = rig.plane.node(name, zone=zone)
        assert agent.status.phase is NodePhase.READY
    rig.plane.workload(replicas=len(names or NAMES))
    rig.turn()
    rig.writes()
    return rig


def listened(controller: NodesController, for_ms: int, *nodes: Node) -> None:
    """The nodes become known, and for this time a server reports no heartbeat."""
    for it in nodes:
        controller.reconcile(view(*nodes), ("", it.name), TERM, NOW)
    answer = HeartbeatReport("s1", 2 * LOSE_AFTER_MS, {}, FenceTiming())
    for ms in range(0, for_ms + 1, 2_000):
        now = later(ms)
        controller.answered(HeartbeatQuery(), "s1", answer, now.monotonic_ms, now)


def until(rig: Rig, name: str, phase: str, most_ms: int = 200_000) -> int:
    """Let time pass until a node is in a phase; how long that took."""
    since_ms = rig.now_ms
    while rig.phase(name) != phase:
        rig.run(500)
        assert rig.now_ms - since_ms < most_ms, f"{name} is {rig.phase(name)}, not {phase}"
    return rig.now_ms - since_ms


def approve(rig: Rig, name: str, zone: str, for_s: int) -> None:
    """An operator approves for a time that the silent nodes of a zone are given up."""
    override = Override(
        metadata=ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE),
        spec=OverrideSpec(
            type=OverrideType.REPAIR_APPROVAL,
            scope=OverrideScope(zones=(zone,)),
            reason="the building has burnt down",
            expires=timestamp(rig.plane.now.wall_ms + 1_000 * for_s),
        ),
    )
    answer = rig.plane.ask(ADMIN, Create(override))
    assert isinstance(answer, Accepted), answer


def on(rig: Rig, name: str) -> list[Any]:
    return [
        it
        for it in rig.all("replicas")
        if it.status.binding is not None and it.status.binding.node == name
    ]


def test_a_silent_node_is_suspected_marked_fenced_and_its_work_replaced() -> None:
    """The whole way, on the real authority, at its own times. [H4, H5, C6.4]"""
    rig = world()
    (before,) = on(rig, "node-a")
    rig.silent = {"node-a"}
    assert 20_000 <= until(rig, "node-a", "Suspect") <= 25_000
    assert on(rig, "node-a")[0].status.state is State.RUNNING
    assert 13_000 <= until(rig, "node-a", "Unknown") <= 18_000
    rig.run(1_000)
    assert on(rig, "node-a")[0].status.state is State.UNKNOWN
    assert 44_000 <= until(rig, "node-a", "Fenced") <= 49_000
    rig.turn()
    place = before.spec.ordinal
    after = [it for it in rig.all("replicas") if it.spec.ordinal == place]
    assert [(it.name, it.status.state) for it in after] == [(f"web-{place}-1", State.RUNNING)]
    assert after[0].status.binding.node != "node-a"


def test_no_replacement_is_made_before_the_fence() -> None:
    """Until then the work may still run. [INV2, C6.4, H5]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    rig.run(44_000)
    assert rig.phase("node-a") == "Unknown"
    assert sorted(rig.states()) == [f"web-{at}-0" for at in range(4)]


def test_a_suspect_that_renews_again_is_ready() -> None:
    """And nothing of its work was touched. [H4]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Suspect")
    rig.silent = set()
    assert until(rig, "node-a", "Ready") <= 5_000
    assert set(rig.states().values()) == {"Running"}


def test_a_marked_node_that_renews_again_is_cleared() -> None:
    """The very mark goes; its replicas are for the agent to speak for. [H4, C7.3]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    rig.run(20_000)
    rig.silent = set()
    assert until(rig, "node-a", "Ready") <= 5_000
    cleared = rig.get("nodes", "node-a")
    assert (cleared.status.mark, cleared.status.marks) == (None, 1)
    rig.run(60_000)
    assert rig.phase("node-a") == "Ready"
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    assert rig.get("nodes", "node-a").status.mark.number == 2


def test_a_renewal_from_before_the_mark_does_not_clear_it() -> None:
    """A server reports late; only a heartbeat after the mark clears it. [H4]"""
    controller, key = NodesController(), ("", "node-a")
    marked = view(node(phase=NodePhase.UNKNOWN, mark=4))
    controller.reconcile(marked, key, TERM, NOW)
    actions = []
    for age_ms in (3_001, 3_000, 2_999):
        answer = HeartbeatReport("s1", 10_000_000, {"node-a": age_ms}, FenceTiming())
        now = later(3_000)
        controller.answered(HeartbeatQuery(), "s1", answer, now.monotonic_ms, now)
        plan = controller.reconcile(marked, key, TERM, now)
        actions.append([(it.word, it.mark) for it in plan.requests])
    assert actions == [[], [], [(NodeAction.CLEAR, 4)]]


def test_a_new_term_restarts_the_countdown_of_the_fence() -> None:
    """A new life has not seen how long the mark stands. [C6.4, K2]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    rig.run(40_000)
    rig.start()
    rig.run(40_000)
    assert rig.phase("node-a") == "Unknown"
    assert until(rig, "node-a", "Fenced") >= 4_000


def test_a_new_term_of_the_same_process_restarts_it_as_well() -> None:
    """The lease was lost in between: whatever was seen before then does not count. [K2]"""
    controller, key = NodesController(), ("", "node-a")
    marked = view(node(phase=NodePhase.UNKNOWN, mark=1))
    listened(controller, 60_000, node(phase=NodePhase.UNKNOWN, mark=1))
    again = Term(TERM.scope, TERM.epoch + 1)
    for memory in controller.remembers:
        memory.begin_term()
    actions = []
    for ms in range(60_000, 120_001, 2_000):
        now = later(ms)
        plan = controller.reconcile(marked, key, again, now)
        actions += [ms for it in plan.requests if it.word is NodeAction.FENCE]
        answer = HeartbeatReport("s1", LOSE_AFTER_MS, {}, FenceTiming())
        controller.answered(HeartbeatQuery(), "s1", answer, now.monotonic_ms, now)
    assert actions[0] == 60_000 + FenceTiming().fence_after_ms


def test_the_countdown_begins_when_the_mark_is_seen_though_its_answer_was_lost() -> None:
    """The snapshot shows the mark; it counts from there. [N1.1, C6.4]"""
    rig = world()
    rig.silent = {"node-a"}

    def lose_the_mark(ask: Any) -> str:
        is_mark = isinstance(ask.body, JudgeNode) and ask.body.word is NodeAction.MARK
        return LOST_AFTER if is_mark else DONE

    rig.fate = lose_the_mark
    until(rig, "node-a", "Unknown")
    assert rig.get("nodes", "node-a").status.marks == 1
    assert 44_000 <= until(rig, "node-a", "Fenced") <= 49_000
    assert rig.get("nodes", "node-a").status.marks == 1


def test_most_of_a_zone_silent_marks_no_node_and_says_why() -> None:
    """Three of four: suspects take no new work, but nothing is given up for now. [N3, E4]"""
    rig = world()
    rig.silent = {"node-a", "node-b", "node-c"}
    rig.run(100_000)
    assert [rig.phase(name) for name in NAMES] == ["Suspect", "Suspect", "Suspect", "Ready"]
    held = rig.controller("nodes").limits.held
    assert held == {"eu-west/eu-west-a": "3 of 4 nodes of zone eu-west/eu-west-a are silent"}
    # The zone may be dead, and the replicas last reported that they run: that is unknown.
    (service,) = rig.all("workloads")
    progress = service.status.progress
    assert (progress.bound, progress.unknown, progress.starting + progress.ready) == (4, 3, 1)
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    assert rig.controller("nodes").limits.held == {}
    assert [rig.phase(name) for name in NAMES[1:]] == ["Ready", "Ready", "Ready"]


@pytest.mark.parametrize("size", [3, 10, 100])
def test_a_zone_that_stays_silent_is_given_up_and_its_work_replaced(size: int) -> None:
    """By the wait of the plane, the fence and little more, whatever the size of the zone. [H10]"""
    names = tuple(f"node-{at:03}" for at in range(size))
    rig = world(*names)
    room = {"cpu": str(size), "memory": "4Ti"}
    rig.plane.node("node-elsewhere", zone="eu-west-b", capacity=room)
    rig.run(10_000)
    rig.silent = set(names)
    rig.run(100_000)
    assert {rig.phase(name) for name in names} == {"Suspect"}
    rig.run(100_000)
    assert {rig.phase(name) for name in names} == {"Fenced"}
    (mark,) = {rig.get("nodes", name).status.mark.reason for name in names}
    assert mark.endswith("its zone is given up: most of it has been silent for 90 s")
    rig.turn()
    assert {it.status.binding.node for it in rig.all("replicas")} == {"node-elsewhere"}
    assert {it.status.state for it in rig.all("replicas")} == {State.RUNNING}


def test_two_servers_that_get_heartbeats_elsewhere_give_a_zone_up_sooner() -> None:
    """A third of the wait, since both are hardly cut off from that zone alone. [H10]"""
    rig = world(servers=("s1", "s2"))
    rig.plane.node("node-elsewhere", zone="eu-west-b")
    rig.run(10_000)
    rig.silent = set(NAMES)
    until(rig, "node-a", "Suspect")
    rig.run(25_000)
    assert rig.phase("node-a") == "Suspect"
    assert until(rig, "node-a", "Unknown") <= 10_000
    assert "silent for 30 s" in rig.get("nodes", "node-a").status.mark.reason


def test_a_plane_without_any_heartbeat_waits_for_the_whole_time() -> None:
    """Servers that hear nothing agree about nothing: they may be cut off. [H10]"""
    rig = world(servers=("s1", "s2"))
    rig.silent = set(NAMES)
    until(rig, "node-a", "Suspect")
    rig.run(85_000)
    assert rig.phase("node-a") == "Suspect"
    assert until(rig, "node-a", "Unknown") <= 10_000


def test_a_person_gives_a_silent_zone_up_at_once() -> None:
    """The mark and the fence name the override, and the commit allows them by it. [H10]"""
    rig = world()
    rig.silent = set(NAMES)
    until(rig, "node-a", "Suspect")
    approve(rig, "wrong-zone", "eu-west-b", for_s=600)
    rig.run(30_000)
    assert rig.phase("node-a") == "Suspect"
    approve(rig, "burnt-down", "eu-west-a", for_s=600)
    assert until(rig, "node-a", "Unknown") <= 5_000
    assert "override burnt-down approves it" in rig.get("nodes", "node-a").status.mark.reason
    assert until(rig, "node-a", "Fenced") <= 50_000


def test_an_approval_that_ends_before_the_fence_holds_the_zone_back_again() -> None:
    """It ends by its expiry alone, and the wait of the plane goes on. [H10, L1, INV9]"""
    rig = world()
    rig.silent = set(NAMES)
    until(rig, "node-a", "Suspect")
    approve(rig, "brief", "eu-west-a", for_s=20)
    until(rig, "node-a", "Unknown")
    rig.run(60_000)
    assert rig.phase("node-a") == "Unknown"
    assert until(rig, "node-a", "Fenced") <= 50_000


def test_a_node_whose_mark_is_held_back_is_suspected_all_the_same() -> None:
    """Also if a mark was already due before the first check: it must not count as healthy,
    and takes no new work. [H4, N3]"""
    controller, nodes = NodesController(), tuple(node(name) for name in NAMES)
    listened(controller, 100_000, *nodes)
    plan = controller.reconcile(view(*nodes), ("", "node-a"), TERM, later(100_000))
    assert [it.word for it in plan.requests] == [NodeAction.SUSPECT]
    suspects = tuple(node(name, NodePhase.SUSPECT) for name in NAMES)
    plan = controller.reconcile(view(*suspects), ("", "node-a"), TERM, later(100_000))
    assert plan.requests == ()
    assert controller.limits.held


def test_a_fence_waits_while_most_of_its_zone_is_silent() -> None:
    """The mark is there, then the rest falls silent: no fence until they are back. [N3]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    rig.silent = {"node-a", "node-b", "node-c"}
    rig.run(90_000)
    assert rig.phase("node-a") == "Unknown"
    rig.silent = {"node-a"}
    assert until(rig, "node-a", "Fenced") <= 25_000


def test_a_restarted_server_does_not_lift_the_disruption_limit() -> None:
    """All silence counts from then, so the share of silent nodes is unknown. [SC6, N3]"""
    rig = world()
    rig.silent = {"node-a"}
    until(rig, "node-a", "Unknown")
    rig.silent = {"node-a", "node-b", "node-c"}
    rig.run(60_000)
    rig.listening_ms["s1"] = rig.now_ms
    rig.run(60_000)
    assert rig.phase("node-a") == "Unknown"
    rig.silent = {"node-a"}
    assert until(rig, "node-a", "Fenced") <= 25_000


def test_another_zone_is_not_held_back() -> None:
    """The share is that of the zone. [N3]"""
    rig = world()
    for name in ("node-x", "node-y", "node-z", "node-w"):
        rig.plane.node(name, zone="eu-west-b")
    rig.run(10_000)
    rig.silent = {"node-a", "node-b", "node-c", "node-x"}
    until(rig, "node-x", "Unknown")
    assert rig.phase("node-a") == "Suspect"


def test_marks_are_rate_limited_per_zone() -> None:
    """Eight of twenty become silent at once: only a few are marked at a time. [I1]"""
    names = tuple(f"node-{at:02}" for at in range(20))
    rig = world(*names)
    rig.silent = set(names[:8])
    until(rig, names[0], "Suspect")
    while not any(rig.phase(name) == "Unknown" for name in names):
        rig.run(100)
    rig.run(5_000)
    marked = [name for name in names if rig.phase(name) == "Unknown"]
    assert len(marked) == MARKS_PER_ZONE_MAX
    rig.run(20_000)
    assert sum(rig.phase(name) == "Unknown" for name in names) == 8


def test_no_node_is_suspected_while_the_servers_do_not_answer() -> None:
    """The controller is cut off from the servers' ears, not the nodes. [E4, N3]"""
    rig = world()
    rig.silent, rig.deaf = set(NAMES), {"s1"}
    rig.run(300_000)
    assert {rig.phase(name) for name in NAMES} == {"Ready"}
    rig.silent, rig.deaf = {"node-a"}, set()
    assert until(rig, "node-a", "Suspect") >= 18_000


def test_no_node_is_suspected_soon_after_a_server_began_to_listen() -> None:
    """A server that just started has received no heartbeat. [H4]"""
    rig = world()
    rig.silent = {"node-a"}
    rig.run(15_000)
    rig.listening_ms["s1"] = rig.now_ms
    assert until(rig, "node-a", "Suspect") >= 18_000


def test_one_lost_server_of_three_only_delays() -> None:
    """Waiting for all certainty would wait for ever. [I3]"""
    rig = world(servers=("s1", "s2", "s3"))
    rig.deaf, rig.silent = {"s3"}, {"node-a"}
    assert until(rig, "node-a", "Suspect") >= 40_000


def test_a_node_without_an_agent_is_marked_like_any_other() -> None:
    """An operator made it: work stays away, and the first registration brings it back. [C7.3]"""
    rig = world()
    made = Node(ObjectMeta(name="node-e"), spec=NodeSpec(region="eu-west", zone="eu-west-a"))
    rig.plane.create(made)
    rig.silent = {"node-e"}
    until(rig, "node-e", "Unknown")
    until(rig, "node-e", "Fenced")
    rig.silent = set()
    rig.register("node-e")
    rig.run(30_000)
    assert rig.phase("node-e") == "Ready"
    assert {rig.phase(name) for name in NAMES} == {"Ready"}


def test_a_fenced_node_is_lost_after_a_long_time() -> None:
    """Six hours of observed silence; less than that is not enough. [A7]"""
    controller, key, fenced = (
        NodesController(),
        ("", "node-a"),
        node(phase=NodePhase.FENCED, mark=1),
    )
    listened(controller, LOSE_AFTER_MS - 2_000, fenced)
    early = controller.reconcile(view(fenced), key, TERM, later(LOSE_AFTER_MS - 2_000))
    assert (early.requests, early.wake_after_ms) == ((), 2_000)
    listened(controller, LOSE_AFTER_MS, fenced)
    plan = controller.reconcile(view(fenced), key, TERM, later(LOSE_AFTER_MS))
    assert [it.word for it in plan.requests] == [NodeAction.LOSE]


def test_a_fence_waits_until_all_work_of_the_node_is_unknown() -> None:
    """What is still Running could never be failed in the agent's next life. [H5]"""
    controller, key = NodesController(), ("", "node-a")
    marked, running = node(phase=NodePhase.UNKNOWN, mark=1), replica(State.RUNNING)
    listened(controller, 60_000, marked)
    plan = controller.reconcile(view(marked, running), key, TERM, later(60_000))
    assert [type(it) for it in plan.requests] == [Move]
    plan = controller.reconcile(view(marked, replica(State.UNKNOWN)), key, TERM, later(60_000))
    assert [it.word for it in plan.requests] == [NodeAction.FENCE]
    assert plan.requests[0].mark == 1


def test_a_node_that_has_just_registered_is_not_silent() -> None:
    """The silence of its last life is not its own. [C7.3, N3]"""
    controller, key = NodesController(), ("", "node-a")
    listened(controller, 60_000, node())
    (request,) = controller.reconcile(view(node()), key, TERM, later(60_000)).requests
    assert request.word is NodeAction.SUSPECT
    reborn = view(node(incarnation=2))
    assert controller.reconcile(reborn, key, TERM, later(60_000)).requests == ()


def test_the_same_decision_has_the_same_operation_until_it_is_committed() -> None:
    """A second try of a lost Suspect is the same request. [E5]"""
    controller, ready = NodesController(), node()
    listened(controller, 60_000, ready)
    first = controller.reconcile(view(ready), ("", "node-a"), TERM, later(60_000))
    second = controller.reconcile(view(ready), ("", "node-a"), TERM, later(60_500))
    assert first.requests == second.requests
    # However long it was silent: a heartbeat must invalidate a mark in flight.
    assert first.requests[0].word is NodeAction.SUSPECT


def test_servers_are_asked_again_and_again() -> None:
    """Each of them, and never twice at a time. [H3]"""
    plan = NodesController().reconcile(view(), LISTEN, TERM, NOW)
    assert plan.questions == (HeartbeatQuery(),)
    assert plan.wake_after_ms == 2_500
    assert plan.requests == ()


def loss(rig: Rig) -> list[Any]:
    """A node is lost, its work is replaced, and it comes back in a new life."""
    rig.silent = {"node-a"}
    rig.run(100_000)
    rig.turn()
    seen: list[Any] = [rig.phase("node-a"), sorted(rig.states().items())]
    rig.silent = set()
    rig.register("node-a")
    rig.turn()
    node = rig.get("nodes", "node-a")
    return [*seen, node.status.phase, node.status.incarnation, node.status.marks, rig.states()]


def points(calm: Rig) -> range:
    """Which of the writes are disturbed: one in four, and all of them in the long run."""
    return range(1, len(calm.sent) + 1, scaled(4, 1))


def test_a_crash_after_any_write_of_a_node_loss_ends_in_the_same_state() -> None:
    """The countdown may restart, so it takes longer; nothing else differs. [C7.4, K2, C6.4]"""
    calm = world()
    expected = loss(calm)
    assert (expected[0], expected[4]) == ("Fenced", 1)
    # Suspect, mark, Unknown, fence, Failed, Released, the next one, its removal, and the counts.
    assert len(calm.sent) >= 8
    for at in points(calm):
        rig = world()
        rig.crash_after = at
        rig.silent = {"node-a"}
        rig.run(60_000)
        assert loss(rig) == expected, f"after a crash at write {at}"


@pytest.mark.parametrize("fate", some_of([LOST_AFTER, LOST_BEFORE, DOWN], 3))
def test_any_lost_answer_of_a_node_loss_ends_in_the_same_state(fate: str) -> None:
    """No second mark, no second replacement. [N1.1, E5]"""
    calm = world()
    expected = loss(calm)
    for at in points(calm):
        rig = world()
        rig.fate = lambda ask, rig=rig, at=at: fate if len(rig.sent) == at else DONE
        assert loss(rig) == expected, f"{fate} at write {at}"
