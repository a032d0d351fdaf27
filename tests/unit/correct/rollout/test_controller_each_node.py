"""controller:rollout: one per node rolls node by node."""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import RolloutPhase, WorkloadType
from holdfast.model.lifecycle import State
from holdfast.model.placement.vacancy import home_of
from holdfast.model.requests import Update
from tests.plane import SCHEDULER, bind
from tests.unit.correct.controller_rig import ADMIN, accepted
from tests.unit.correct.rollout_rig import RolloutRig, rolling, version


def test_one_per_node_rolls_node_by_node() -> None:
    """Within maxUnavailable of its nodes. [I6]"""
    rig = RolloutRig("node-a", "node-b", "node-c")
    rig.bind_all = lambda: _bind_home(rig)  # type: ignore[method-assign]
    rig.build(1, rolling(1), type=WorkloadType.PER_NODE)
    assert rig.ready == 3
    rig.want(template=version(2))
    rig.ship(40)
    assert rig.fewest == 2
    assert sorted(rig.versions(State.RUNNING).values()) == ["2", "2", "2"]
    assert rig.status.phase is RolloutPhase.IDLE


def test_one_per_node_goes_back_to_the_nodes_of_the_old_template() -> None:
    """The stated template, which is given up, says no longer where it belongs."""
    rig = RolloutRig("node-a", "node-b", "node-c")
    rig.bind_all = lambda: _bind_home(rig)  # type: ignore[method-assign]
    rig.build(1, rolling(1, auto_revert=True), type=WorkloadType.PER_NODE)
    broken = version(2, broken="yes")
    placement = msgspec.structs.replace(
        broken.placement, node_selector={"holdfast.dev/node": "node-a"}
    )
    rig.want(template=msgspec.structs.replace(broken, placement=placement))
    rig.ship(120)
    assert rig.status.phase is RolloutPhase.FAILED
    assert sorted(rig.versions(State.RUNNING).values()) == ["1", "1", "1"]


def test_one_per_node_stays_on_a_node_that_takes_nothing_new() -> None:
    """A replacement could not follow there, and each stop would lower the wanted number."""
    rig = RolloutRig("node-a", "node-b", "node-c")
    rig.bind_all = lambda: _bind_home(rig)  # type: ignore[method-assign]
    rig.build(1, rolling(1), type=WorkloadType.PER_NODE)
    for name in ("node-a", "node-b"):
        node: Node = rig.get("nodes", name)
        shut = msgspec.structs.replace(node.spec, cordoned=True)
        accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=shut))))
    rig.ship(2)
    rig.want(template=version(2))
    rig.ship(40)
    assert rig.fewest == 2
    assert sorted(rig.versions(State.RUNNING).values()) == ["1", "1", "2"]
    for name in ("node-a", "node-b"):
        node = rig.get("nodes", name)
        opened = msgspec.structs.replace(node.spec, cordoned=False)
        accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=opened))))
    rig.ship(120)
    assert rig.fewest == 2
    assert sorted(rig.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_does_not_wait_for_a_node_that_was_emptied_by_others() -> None:
    """What ended there comes back when the node takes work again, as what is stable then."""
    rig = RolloutRig("node-a", "node-b", "node-c")
    rig.bind_all = lambda: _bind_home(rig)  # type: ignore[method-assign]
    rig.build(1, rolling(1), type=WorkloadType.PER_NODE)
    cordon(rig, "node-a", cordoned=True)
    rig.ends(next(it for it in rig.all("replicas") if home_of(it) == "node-a"))
    rig.want(template=version(2))
    rig.ship(40)
    assert rig.status.phase is RolloutPhase.IDLE
    assert sorted(rig.versions(State.RUNNING).values()) == ["2", "2"]
    cordon(rig, "node-a", cordoned=False)
    rig.ship(20)
    assert sorted(rig.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_begins_no_second_node_while_the_first_is_closed() -> None:
    """It was closed after the rollout had emptied it; it is missing all the same. [I6]"""
    rig = RolloutRig("node-a", "node-b", "node-c")
    rig.bind_all = lambda: _bind_home(rig)  # type: ignore[method-assign]
    rig.build(1, rolling(1), type=WorkloadType.PER_NODE)
    rig.want(template=version(2))
    while not any(it.status.state is State.STOPPING for it in rig.all("replicas")):
        rig.run(200)
    gone = next(it for it in rig.all("replicas") if it.status.state is State.STOPPING)
    cordon(rig, home_of(gone), cordoned=True)
    rig.ship(30)
    assert rig.fewest == 2
    assert sorted(rig.versions(State.RUNNING).values()) == ["1", "1"]
    cordon(rig, home_of(gone), cordoned=False)
    rig.ship(60)
    assert sorted(rig.versions(State.RUNNING).values()) == ["2", "2", "2"]


def cordon(rig: RolloutRig, name: str, *, cordoned: bool) -> None:
    node: Node = rig.get("nodes", name)
    spec = msgspec.structs.replace(node.spec, cordoned=cordoned)
    accepted(rig.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=spec))))


def _bind_home(rig: RolloutRig) -> None:
    """A scheduler that binds one per node where it belongs."""
    if rig.bind_term is None:
        rig.bind_term = rig.plane.term(SCHEDULER)
    for it in rig.all("replicas"):
        if it.status.state is State.PENDING:
            node: Node = rig.get("nodes", home_of(it))
            accepted(rig.plane.ask(SCHEDULER, bind(it, node, rig.bind_term)))
