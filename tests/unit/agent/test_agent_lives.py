"""The lives of a node: beginning one, losing it to a fence, and what becomes of the old work."""

from __future__ import annotations

from holdfast.agent.words import Attempt, Extend, Halt, Inventory, Item, Launch
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Pushed
from holdfast.observe.news import Get, Present
from tests.plane import REPAIR
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import made, running, started, without


def test_the_first_life_of_a_node_that_nobody_knew() -> None:
    """Life one, and a uid from the server. [A1, C7.3]"""
    rig = Rig()
    rig.plane.store.txn(without("objects/nodes/node-a", "ledgers/node/node-a"))
    rig.plane.seed += 1
    rig.plane.authority = rig.plane.new_authority()
    rig.up()
    assert rig.agent is not None
    assert rig.agent.life is not None
    assert rig.agent.life.incarnation == 1
    assert rig.agent.life.uid == rig.it.get(rig.it.node).metadata.uid


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
    rig.plane.store.txn(without("objects/nodes/node-a", "ledgers/node/node-a"))
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
