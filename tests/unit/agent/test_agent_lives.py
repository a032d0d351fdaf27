"""The lives of a node: beginning one, losing it to a fence, and what becomes of the old work."""

from __future__ import annotations

from holdfast.agent.runtime_protocol import Attempt, Extend, Halt, Inventory, Item, Launch
from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Node, NodePhase, NodeStatus
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import Stage, State
from holdfast.model.machine import Pushed
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get
from holdfast.model.requests import Move, RegisterNode
from holdfast.observe.watch_events import Present
from tests.plane import ADMIN, REPAIR, target
from tests.unit.agent.rig import Rig
from tests.unit.agent.running_work import made, running, started, without


def test_the_first_life_of_an_unknown_node() -> None:
    """Life one, and a uid from the server."""
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
    rig.push_changes()
    rig.answer("Get")
    rig.it.unknown(rig.it.get(replica))
    rig.it.fenced()
    rig.trace.clear()
    # The registration rests on the node as it was, so it is refused, and the node is looked at.
    rig.settle()
    rig.wait(1_000)
    rig.settle()
    order = [it for it in rig.trace if isinstance(it, Halt | Extend)]
    assert isinstance(order[0], Halt)
    assert rig.agent is not None
    assert rig.agent.life is None
    rig.exited(replica.name, code=0)
    rig.wait(1_000)
    rig.settle()
    assert rig.agent.life is not None
    assert rig.agent.life.incarnation == 2


def test_an_end_that_was_reported_before_the_inventory_counts() -> None:
    """A shim does not wait for the agent to look around."""
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
    """Its directory was lost. What the inventory does not have does not run."""
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


def test_a_node_that_was_deleted_registers_again() -> None:
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
    """The stream of replicas was faster than that of nodes."""
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
    """It was in a crash loop before the mark, and is after it."""
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


def taken_over(rig: Rig, installation: str) -> None:
    """Another installation registers under the node's name after a fence."""
    rig.it.fenced()
    node = rig.it.get(rig.it.node)
    status = NodeStatus(installation=installation)
    given = Node(ObjectMeta(name=node.name), spec=node.spec, status=status)
    rig.it.yes(who.agent(node.name), RegisterNode(given, (), f"register-{installation}"))


def test_an_agent_that_lost_its_name_stops_what_was_given_up_and_keeps_the_rest() -> None:
    """It proves the stop without the name, and never takes the other's life for its own.
    [C6.4, C7.6, I3]"""
    rig = Rig(installation="first")
    rig.up()
    kept = running(rig, on_disconnect=OnDisconnect.KEEP)
    given_up = running(rig)
    for replica in (kept, given_up):
        rig.it.unknown(rig.it.get(replica))
    taken_over(rig, "second")
    rig.it.yes(ADMIN, Move(target(rig.it.get(given_up)), State.FAILED, word="replace it"))
    rig.wait(60_000)
    rig.settle()
    assert rig.agent is not None
    assert rig.agent.life is None
    assert rig.held(given_up.name, "stopping")
    assert rig.held(kept.name, "running")
    rig.exited(given_up.name, signal=15, reason="Stopped")
    rig.settle()
    assert rig.state(given_up).state is State.RELEASED
    assert rig.state(kept).state is State.UNKNOWN
    # What ends there cannot be started again there.
    rig.exited(kept.name)
    rig.wait(10_000)
    rig.settle()
    assert rig.state(kept).state is State.RELEASED
    assert [it for it in rig.plane.get(kept).status.transitions if it.reason == "NameLost"]


def test_a_registration_that_was_accepted_once_is_no_claim_to_anothers_life() -> None:
    """Its answer was lost, and the name has passed on since. [C6.4, A9]"""
    rig = Rig(installation="first")
    rig.start()
    rig.look()
    rig.push_changes()
    rig.answer("Get")
    rig.lose("RegisterNode")
    taken_over(rig, "second")
    rig.wait(60_000)
    rig.settle()
    assert rig.agent is not None
    assert rig.agent.life is None


def test_kept_work_is_taken_into_the_next_life_of_its_node() -> None:
    """The same process, neither stopped nor started again; what ended is reported. [H8]"""
    rig = Rig(installation="first")
    rig.up()
    kept, ended = (running(rig, on_disconnect=OnDisconnect.KEEP) for _ in range(2))
    for replica in (kept, ended):
        rig.it.unknown(rig.it.get(replica))
    rig.it.fenced()
    rig.exited(ended.name, code=3)
    rig.trace.clear()
    for _ in range(12):
        rig.wait(10_000)
        rig.settle()
    status = rig.state(kept)
    assert (status.state, status.binding.node_incarnation) == (State.RUNNING, 2)
    assert status.process.id == rig.held(kept.name, "running").process.id
    assert not made(rig, Halt)
    # It ended in the life before: that is said, and then it is started again in this one.
    assert [it.attempt.number for it in made(rig, Launch)] == [1]
    assert rig.state(ended).process.restarts == 1


def test_kept_work_that_was_never_started_is_not_started_under_an_old_life() -> None:
    """What is known of it may be old, and another one in its place. [INV2, C6.4]"""
    rig = Rig(installation="first")
    rig.up()
    replica = rig.bound(on_disconnect=OnDisconnect.KEEP)
    rig.it.unknown(replica)
    rig.it.fenced()
    rig.wait(60_000)
    rig.settle()
    rig.wait(10_000)
    rig.settle()
    assert not made(rig, Launch)
    assert rig.state(replica).state is State.RELEASED
