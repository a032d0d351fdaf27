"""The rules of an agent, one by one, against the real authority."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.agent import crew
from holdfast.agent.agent import ASKS_MAX
from holdfast.agent.crew import ASKS_KEPT, LAUNCHES_MAX
from holdfast.agent.renewing import Life
from holdfast.agent.tend import next_step
from holdfast.agent.view import View
from holdfast.agent.words import Attempt, Extend, Halt, Inventory, Item, Launch
from holdfast.agent.work import Work
from holdfast.model import identity as who
from holdfast.model.errors import Unavailable
from holdfast.model.heartbeat import Doing, Renew
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Answered, Ask, Pushed, Started
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Move, RegisterNode, ReportStage
from holdfast.model.transaction import Delete, Transaction
from holdfast.observe.news import Departed, Get, Present, Reached
from tests.plane import REPAIR, target
from tests.unit.agent.rig import Rig


def made(rig: Rig, kind: type[Any]) -> list[Any]:
    """All effects of a kind so far."""
    return [it for it in rig.story if isinstance(it, kind)]


def asked(rig: Rig, kind: type[Any]) -> list[Any]:
    return [it.body for it in made(rig, Ask) if isinstance(it.body, kind)]


def running(rig: Rig, kind: str = "svc", **more: Any) -> Any:
    """A replica that runs and is ready."""
    replica = rig.bound(kind, **more)
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    assert rig.state(replica).stage is Stage.READY
    return replica


def started() -> Rig:
    rig = Rig()
    rig.up()
    return rig


def test_nothing_is_decided_before_inventory_and_lists_are_there() -> None:
    """Whoever knows half of the story starts things twice or kills what he must not. [E4, H2]"""
    rig = Rig()
    rig.bound()
    rig.start()
    rig.wait(5_000)
    assert asked(rig, Get) == []
    rig.news()
    assert asked(rig, Get) == []
    rig.look()
    assert asked(rig, Get) == [Get("nodes", "node-a")]


def test_the_first_life_of_a_node_that_nobody_knew() -> None:
    """Life one, and a uid from the server. [A1, C7.3]"""
    rig = Rig()
    rig.plane.store.txn(_without("objects/nodes/node-a", "ledgers/node/node-a"))
    rig.plane.seed += 1
    rig.plane.authority = rig.plane.new_authority()
    rig.up()
    assert rig.agent is not None
    assert rig.agent.life is not None
    assert rig.agent.life.incarnation == 1
    assert rig.agent.life.uid == rig.it.get(rig.it.node).metadata.uid


def _without(*gone: str) -> Transaction:
    return Transaction((), tuple(Delete(key) for key in gone))


def test_work_that_is_not_listed_is_stopped_only_after_a_read_of_itself() -> None:
    """A list may be wrong; a linearizable read is not. [C6.4, H4]"""
    rig = started()
    replica = running(rig)
    stream = next(n for n, (follow, _) in rig.streams.items() if follow.plural == "replicas")
    revision = rig.plane.store.revision + 1
    rig.feed(Pushed(stream, (Departed(replica, revision), Reached(revision))))
    assert made(rig, Halt) == []
    assert asked(rig, Get)[-1] == Get("replicas", replica.name, "acme")
    rig.drop("Get")
    rig.wait(1_000)
    rig.settle()
    assert made(rig, Halt) == []


def test_work_whose_replica_is_gone_is_stopped_and_cleared() -> None:
    """The operator's word ended it while the agent was away. [I5, C6.4]"""
    rig = started()
    replica = running(rig)
    rig.stop()
    # Behind the back of the books, which so are wrong from here on.
    rig.plane.store.txn(_without(f"objects/replicas/acme/{replica.name}"))
    rig.it.check = lambda: None  # type: ignore[method-assign]
    rig.start()
    rig.look()
    rig.settle()
    assert [halt.attempt.uid for halt in made(rig, Halt)] == [replica.metadata.uid]
    rig.exited(replica.name)
    rig.settle()
    assert rig.table == {}
    assert rig.lines[-1].endswith(f"clear {replica.name}")


def test_a_fence_between_look_and_registration_stops_the_old_work_before_any_extension() -> None:
    """Its replacement may run elsewhere already. [C6.4, H5, K1]"""
    rig = started()
    replica = running(rig)
    rig.stop()
    rig.start()
    rig.look()
    rig.news()
    rig.answer("Get")
    rig.it.unknown(rig.it.get(replica))
    rig.it.fenced()
    rig.story.clear()
    rig.settle()
    order = [it for it in rig.story if isinstance(it, Halt | Extend)]
    assert isinstance(order[0], Halt)
    assert isinstance(order[1], Extend)
    assert rig.agent is not None
    assert rig.agent.life is not None
    assert rig.agent.life.incarnation == 2


def test_stale_news_after_the_end_start_nothing_again() -> None:
    """The stream is behind: it still tells that the work is bound here. [C8, C6.4]"""
    rig = started()
    rig.bound("once", restart=RestartPolicy.NEVER)
    rig.settle()
    name = next(iter(rig.table.values())).launch.name
    rig.launched(name)
    rig.answer("Move")
    seen = [rig.objects("replicas")]
    rig.answer("ReportStage")
    rig.exited(name, code=0)
    for _ in range(2):
        rig.answer("Move")
    assert rig.lines[-1].endswith(f"clear {name}")
    before = len(rig.story)
    stream = next(n for n, (follow, _) in rig.streams.items() if follow.plural == "replicas")
    for objects in seen:
        news = [Present(it, int(it.metadata.resource_version) // 2) for it in objects.values()]
        rig.feed(Pushed(stream, tuple(news)))
    rig.news()
    assert [it for it in rig.story[before:] if isinstance(it, Launch | Ask)] == []


def test_the_same_intention_bears_the_same_operation_id_and_the_same_words() -> None:
    """Otherwise a repetition would be a second deed, or be refused as another one. [F6, N1.1]"""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    for _ in range(3):
        rig.drop("Move")
        rig.wait(1_000)
    moves = [it for it in asked(rig, Move) if it.target.uid == replica.metadata.uid]
    assert len(moves) == 4
    assert len({msgspec.json.encode(it) for it in moves}) == 1
    assert moves[0].operation == f"system:node:node-a/{replica.metadata.uid}/1/Running"


def test_a_renewal_says_how_far_work_is_until_the_servers_acknowledge_it() -> None:
    """So that people can tell a binding that was not seen from status that is behind. [M2, SC4]"""
    rig = started()
    first = rig.bound()

    def notes() -> list[tuple[str, str]]:
        rig.wait(30_000)
        said = asked(rig, Renew)[-1].said
        return [(it.uid, it.doing) for it in said.notes]

    rig.settle()
    assert notes() == [(first.metadata.uid, Doing.STARTING)]
    rig.answer("Renew")
    rig.launched(first.name)
    rig.drop("Move")
    assert notes() == [(first.metadata.uid, Doing.RUNS)]
    rig.settle()
    assert rig.state(first).state is State.RUNNING
    assert notes() == []


def test_a_renewal_says_so_much_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """[N3]"""
    monkeypatch.setattr(crew, "NOTES_MAX", 2)
    rig = started()
    for _ in range(3):
        rig.bound()
    rig.settle()
    rig.wait(30_000)
    said = asked(rig, Renew)[-1].said
    assert (len(said.notes), said.more) == (2, 1)


def test_retries_slow_down_and_never_end() -> None:
    """A passing failure of the API is survived. [C7.5, E5]"""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    at_ms = []
    for _ in range(12):
        at_ms.append(rig.now_ms)
        rig.drop("Move")
        for _ in range(200):
            if any(isinstance(ask.body, Move) for ask in rig.calls.values()):
                break
            rig.wait(250)
            for number, ask in list(rig.calls.items()):
                if not isinstance(ask.body, Move):
                    del rig.calls[number]
                    rig.feed(Answered(number, Unavailable("no server")))
    pauses = [b - a for a, b in pairwise(at_ms)]
    assert pauses[0] <= 500
    assert 20_000 <= pauses[-1] <= 30_000
    rig.settle()
    assert rig.state(replica).state is State.RUNNING


@pytest.mark.parametrize("reason", [Reason.STALE_INCARNATION, Reason.STALE_MARK])
def test_a_refusal_about_the_node_leads_to_a_look_at_the_node(reason: Reason) -> None:
    """The refusal says what the agent did not know. [H2, F6]"""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    number = rig.call("Move")
    del rig.calls[number]
    rig.feed(Answered(number, Refusal(reason, "no")))
    assert [ask.body for ask in rig.calls.values()] == [Get("nodes", "node-a")]
    rig.settle()
    rig.wait(1_000)
    rig.settle()
    assert rig.state(replica).stage is Stage.READY


def test_a_stale_replica_is_read_before_anything_more_is_said() -> None:
    """Somebody was faster; what he did decides what comes next. [F6, C4]"""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    rig.it.stopping(rig.it.get(replica))
    assert rig.answer("Move").reason is Reason.STALE_REPLICA
    rig.wait(100)
    rig.answer("Get")
    assert [halt.attempt.uid for halt in made(rig, Halt)] == [replica.metadata.uid]


def test_work_that_serves_goes_on_a_moment_before_it_is_told_to_stop() -> None:
    """Whoever read its address just before still gets an answer. [H1, I6]"""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    ready = rig.it.get(replica)
    rig.it.yes(who.controller("endpoints"), ReportStage(target(ready), Stage.SERVING))
    rig.it.stopping(rig.it.get(replica))
    rig.settle()
    rig.wait(900)
    assert made(rig, Halt) == []
    rig.wait(200)
    (halt,) = made(rig, Halt)
    # The moment is a part of its grace of ten seconds.
    assert 8_500 <= halt.grace_ms <= 9_100


def test_no_more_than_so_many_starts_at_once_and_all_get_their_turn() -> None:
    """A node that comes back with all its work must not choke on it. [E6, V5]"""
    rig = started()
    replicas = [rig.bound("tiny", cpu="100m", memory="10Mi") for _ in range(LAUNCHES_MAX + 3)]
    rig.settle()
    assert len(made(rig, Launch)) == LAUNCHES_MAX
    rig.launched(replicas[0].name)
    assert len(made(rig, Launch)) == LAUNCHES_MAX + 1
    for replica in replicas[1:]:
        rig.launched(replica.name)
    rig.settle()
    assert all(rig.state(replica).stage is Stage.READY for replica in replicas)


def test_renewals_find_room_however_much_there_is_to_say() -> None:
    """Otherwise a talkative node would stop its own work. [E6, H8]"""
    rig = started()
    replicas = [rig.bound("tiny", cpu="50m", memory="10Mi") for _ in range(LAUNCHES_MAX * 2)]
    rig.settle()
    for replica in replicas:
        rig.launched(replica.name)
    rig.news()
    assert len(rig.calls) == ASKS_MAX - ASKS_KEPT
    rig.wait(10_000)
    assert "Renew" in {type(ask.body).__name__ for ask in rig.calls.values()}
    rig.settle()
    assert all(rig.state(replica).stage is Stage.READY for replica in replicas)


def test_kept_work_is_started_without_a_deadline_and_others_never_beyond_the_planes_grace() -> None:
    """The fence waits for no longer grace than the plane's own. [H7, K1]"""
    rig = started()
    rig.bound("kept", on_disconnect=OnDisconnect.KEEP, grace_seconds=60)
    rig.bound("slow", grace_seconds=60)
    rig.settle()
    kept, slow = made(rig, Launch)
    assert (kept.deadline_ms, kept.grace_ms) == (None, 60_000)
    assert (slow.deadline_ms, slow.grace_ms) == (30_000, 10_000)


def test_an_end_that_was_told_before_the_inventory_counts() -> None:
    """A shim does not wait for the agent to look around. [H2, K2]"""
    rig = started()
    replica = running(rig)
    rig.stop()
    rig.start()
    held = rig.held(replica.name, "running")
    rig.exited(replica.name, code=1)
    rig.feed(Inventory((Item(held.launch.attempt, Process(id="1"), True, "acme", replica.name),)))
    rig.settle()
    assert rig.state(replica).process.restarts == 1


def test_a_process_that_the_machine_knows_nothing_of_is_reported_and_started_again() -> None:
    """Its directory was lost. What the inventory does not have does not run. [H2, A7]"""
    rig = started()
    replica = running(rig)
    rig.stop()
    rig.table.clear()
    rig.start()
    rig.feed(Inventory(()))
    rig.settle()
    rig.wait(200)
    assert made(rig, Launch)[-1].attempt == Attempt(replica.metadata.uid, 1)
    rig.launched(replica.name)
    rig.settle()
    status = rig.state(replica)
    assert (status.stage, status.process.restarts) == (Stage.READY, 1)


def test_a_node_that_was_deleted_registers_anew() -> None:
    """As a node of a new uid; the work of the old one is not its own. [C7.3]"""
    rig = started()
    rig.plane.store.txn(_without("objects/nodes/node-a", "ledgers/node/node-a"))
    rig.plane.seed += 1
    rig.plane.authority = rig.plane.new_authority()
    before = rig.agent.life if rig.agent is not None else None
    rig.settle()
    rig.wait(1_000)
    rig.settle()
    assert rig.agent is not None
    assert rig.agent.life is not None
    assert rig.agent.life != before


def test_a_fenced_node_without_work_begins_its_next_life_at_once() -> None:
    """It takes work again. [C7.3]"""
    rig = started()
    rig.it.fenced()
    rig.settle()
    node = rig.it.get(rig.it.node)
    assert (node.status.phase, node.status.incarnation) == (NodePhase.READY, 2)
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    assert rig.state(replica).stage is Stage.READY


def test_the_longest_node_name_still_makes_an_operation_id_that_is_taken() -> None:
    """Without this such a node could never report anything. [C2]"""
    rig = Rig()
    replica = rig.bound()
    binding = replica.status.binding
    work = Work(replica.metadata.uid, "acme", replica.name)
    work.launching(Attempt(work.uid, 0))
    work.launched(Process(id="1"), 0)
    work.take(replica)
    life = Life(binding.node_uid, binding.node_incarnation)
    view = View("node-a", f"system:node:{'n' * 253}", life, True, 30_000, 10_000, 0)
    step = next_step(work, view)
    assert isinstance(step, Move)
    assert step.operation == f"{work.uid}/1/Running"


def test_nothing_moves_once_everything_is_as_it_should_be() -> None:
    """A converged node is silent but for its renewals. [V4]"""
    rig = started()
    running(rig)
    rig.story.clear()
    for _ in range(30):
        rig.wait(10_000)
        rig.settle()
    kinds = {type(it.body).__name__ for it in made(rig, Ask)}
    assert kinds == {"Renew"}
    assert len(made(rig, Ask)) == 30
    assert asked(rig, ReportStage) == asked(rig, RegisterNode) == []


def test_a_start_of_the_machine_asks_first_what_is_there() -> None:
    """And says nothing to anybody before it knows. [K2]"""
    rig = Rig()
    rig.start()
    assert isinstance(rig.story[0], Started)
    assert type(rig.story[1]).__name__ == "LookAround"


def test_a_replica_that_repair_took_over_is_proven_stopped_by_the_next_life() -> None:
    """Kept work is charged until its own proof of stop. [H5, I3]"""
    rig = started()
    replica = running(rig, "kept", on_disconnect=OnDisconnect.KEEP)
    rig.it.unknown(rig.it.get(replica))
    rig.it.fenced()
    rig.settle()
    assert made(rig, Halt) == []
    rig.it.yes(REPAIR, rig.it.repaired(rig.it.get(replica), State.FAILED))
    rig.settle()
    rig.exited(replica.name)
    rig.settle()
    assert rig.state(replica).state is State.RELEASED


def test_a_binding_of_a_later_life_leads_to_that_life_and_not_to_a_stop() -> None:
    """The stream of replicas was faster than that of nodes. [H2, C7.7]"""
    rig = started()
    rig.it.fenced()
    rig.it.registered()
    replica = rig.bound()
    stream = next(n for n, (follow, _) in rig.streams.items() if follow.plural == "replicas")
    found = rig.objects("replicas").values()
    rig.feed(Pushed(stream, tuple(Present(it, rig.plane.store.revision) for it in found)))
    assert [ask.body for ask in rig.calls.values()] == [Get("nodes", "node-a")]
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    assert made(rig, Halt) == []
    assert rig.agent is not None
    assert rig.agent.life is not None
    assert rig.agent.life.incarnation == 2
    assert rig.state(replica).stage is Stage.READY


def test_more_replicas_than_a_node_may_have_wait_until_others_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the servers say, the agent's memory is bounded. [E6, C7.6]"""
    monkeypatch.setattr("holdfast.agent.crew.WORKS_MAX", 2)
    rig = started()
    first, second, third = (rig.bound() for _ in range(3))
    rig.settle()
    for replica in (first, second):
        rig.launched(replica.name)
    rig.settle()
    assert [it.name for it in made(rig, Launch)] == [first.name, second.name]
    rig.it.stopping(rig.it.get(first))
    rig.settle()
    rig.exited(first.name)
    rig.settle()
    assert made(rig, Launch)[-1].name == third.name


def test_work_that_may_not_start_now_starts_with_the_next_acknowledgement() -> None:
    """Close to the deadline nothing is begun; afterwards nobody has to remind the agent. [C7.6]"""
    rig = started()
    for _ in range(3):
        rig.wait(10_000)
        rig.drop("Renew")
    replica = rig.bound()
    rig.news()
    assert made(rig, Launch) == []
    rig.wait(1_000)
    rig.settle()
    assert [it.name for it in made(rig, Launch)] == [replica.name]


def test_failing_starts_of_work_that_once_ran_here_do_not_give_it_up() -> None:
    """It was in a crash loop before the mark, and is after it. [A7, C7.3]"""
    rig = started()
    replica = running(rig)
    rig.exited(replica.name, code=1)
    for _ in range(6):
        rig.settle()
        rig.wait(5_000)
        rig.settle()
        rig.refused(replica.name, "NoSuchFile")
    rig.it.unknown(rig.it.get(replica))
    rig.it.cleared()
    rig.settle()
    rig.wait(20_000)
    rig.settle()
    rig.launched(replica.name)
    rig.settle()
    status = rig.state(replica)
    assert (status.state, status.stage) == (State.RUNNING, Stage.READY)
