"""What an agent says to the servers: reports, renewals, and saying it again."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from holdfast.agent import replica_workers
from holdfast.agent.agent import ASKS_MAX
from holdfast.agent.heartbeats import Life
from holdfast.agent.next_step import next_step
from holdfast.agent.replica_workers import ASKS_KEPT, LAUNCHES_MAX
from holdfast.agent.runtime_protocol import Attempt, Halt
from holdfast.agent.work import NodeContext, ReplicaWork
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.replica import Process
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Answered, Ask
from holdfast.model.nodes.heartbeat import Renew, WorkProgress
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Move, RegisterNode, ReportStage
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import asked, made, running, started


def test_the_same_intention_has_the_same_operation_id_and_the_same_body() -> None:
    """Otherwise a repetition would be a second operation, or be refused as one. [N1.1]"""
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
    assert notes() == [(first.metadata.uid, WorkProgress.STARTING)]
    rig.answer("Renew")
    rig.launched(first.name)
    rig.drop("Move")
    assert notes() == [(first.metadata.uid, WorkProgress.RUNS)]
    rig.settle()
    assert rig.state(first).state is State.RUNNING
    assert notes() == []


def test_a_renewal_says_so_much_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_workers, "NOTES_MAX", 2)
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
    """The refusal says what the agent did not know."""
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
    """Another writer was faster; the new state decides the next step."""
    rig = started()
    replica = rig.bound()
    rig.settle()
    rig.launched(replica.name)
    rig.it.stopping(rig.it.get(replica))
    assert rig.answer("Move").reason is Reason.STALE_REPLICA
    rig.wait(100)
    rig.answer("Get")
    assert [halt.attempt.uid for halt in made(rig, Halt)] == [replica.metadata.uid]


def test_renewals_find_room_however_much_there_is_to_say() -> None:
    """Otherwise a talkative node would stop its own work."""
    rig = started()
    replicas = [rig.bound("tiny", cpu="50m", memory="10Mi") for _ in range(LAUNCHES_MAX * 2)]
    rig.settle()
    for replica in replicas:
        rig.launched(replica.name)
    rig.push_changes()
    assert len(rig.calls) == ASKS_MAX - ASKS_KEPT
    rig.wait(10_000)
    assert "Renew" in {type(ask.body).__name__ for ask in rig.calls.values()}
    rig.settle()
    assert all(rig.state(replica).stage is Stage.READY for replica in replicas)


def test_the_longest_node_name_still_makes_an_operation_id_that_is_taken() -> None:
    """Without this such a node could never report anything."""
    rig = Rig()
    replica = rig.bound()
    binding = replica.status.binding
    work = ReplicaWork(replica.metadata.uid, "acme", replica.name)
    work.launching(Attempt(work.uid, 0))
    work.launched(Process(id="1"), 0)
    work.take(replica)
    life = Life(binding.node_uid, binding.node_incarnation)
    view = NodeContext("node-a", f"system:node:{'n' * 253}", life, True, 30_000, 10_000, 0)
    step = next_step(work, view)
    assert isinstance(step, Move)
    assert step.operation == f"{work.uid}/1/Running"


def test_nothing_moves_once_everything_is_as_it_should_be() -> None:
    """A converged node is silent but for its renewals. [V4]"""
    rig = started()
    running(rig)
    rig.trace.clear()
    for _ in range(30):
        rig.wait(10_000)
        rig.settle()
    kinds = {type(it.body).__name__ for it in made(rig, Ask)}
    assert kinds == {"Renew"}
    assert len(made(rig, Ask)) == 30
    assert asked(rig, ReportStage) == asked(rig, RegisterNode) == []
