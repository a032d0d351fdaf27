"""controller:rollout: one per node rolls node by node."""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import RolloutPhase, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.vacancy import home_of
from holdfast.model.requests import Update
from tests.plane import SCHEDULER, bind
from tests.unit.correct.shipyard import Yard, rolling, version
from tests.unit.correct.team_rig import ADMIN, accepted


def test_one_per_node_rolls_node_by_node() -> None:
    """Within maxUnavailable of its nodes. [I6]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    assert yard.ready == 3
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]
    assert yard.status.phase is RolloutPhase.IDLE


def test_one_per_node_goes_back_to_the_nodes_of_the_old_template() -> None:
    """The stated template, which is given up, says no longer where it belongs."""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1, auto_revert=True), type=WorkloadType.PER_NODE)
    broken = version(2, broken="yes")
    placement = msgspec.structs.replace(
        broken.placement, node_selector={"holdfast.dev/node": "node-a"}
    )
    yard.want(template=msgspec.structs.replace(broken, placement=placement))
    yard.ship(120)
    assert yard.status.phase is RolloutPhase.FAILED
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1", "1"]


def test_one_per_node_stays_on_a_node_that_takes_nothing_new() -> None:
    """A replacement could not follow there, and each stop would lower the wanted number."""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    for name in ("node-a", "node-b"):
        node: Node = yard.get("nodes", name)
        shut = msgspec.structs.replace(node.spec, cordoned=True)
        accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=shut))))
    yard.ship(2)
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1", "2"]
    for name in ("node-a", "node-b"):
        node = yard.get("nodes", name)
        opened = msgspec.structs.replace(node.spec, cordoned=False)
        accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=opened))))
    yard.ship(120)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_does_not_wait_for_a_node_that_was_emptied_by_others() -> None:
    """What ended there comes back when the node takes work again, as what is stable then."""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    cordon(yard, "node-a", cordoned=True)
    yard.ends(next(it for it in yard.all("replicas") if home_of(it) == "node-a"))
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.status.phase is RolloutPhase.IDLE
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2"]
    cordon(yard, "node-a", cordoned=False)
    yard.ship(20)
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_begins_no_second_node_while_the_first_is_closed() -> None:
    """It was closed after the rollout had emptied it; it is missing all the same. [I6]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    yard.want(template=version(2))
    while not any(it.status.state is State.STOPPING for it in yard.all("replicas")):
        yard.run(200)
    gone = next(it for it in yard.all("replicas") if it.status.state is State.STOPPING)
    cordon(yard, home_of(gone), cordoned=True)
    yard.ship(30)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1"]
    cordon(yard, home_of(gone), cordoned=False)
    yard.ship(60)
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def cordon(yard: Yard, name: str, *, cordoned: bool) -> None:
    node: Node = yard.get("nodes", name)
    spec = msgspec.structs.replace(node.spec, cordoned=cordoned)
    accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=spec))))


def _bind_home(yard: Yard) -> None:
    """A scheduler that binds one per node where it belongs."""
    if yard.bind_term is None:
        yard.bind_term = yard.plane.term(SCHEDULER)
    for it in yard.all("replicas"):
        if it.status.state is State.PENDING:
            node: Node = yard.get("nodes", home_of(it))
            accepted(yard.plane.ask(SCHEDULER, bind(it, node, yard.bind_term)))
